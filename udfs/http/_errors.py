"""What is raised for an HTTP answer that is none: whether to ask more slowly, again, or not again."""

from __future__ import annotations

from collections.abc import Mapping

from .._errors.exceptions import AsyncUDFError
from .._text.safe import one_line, printable

__all__ = (
    "HTTPStatusError",
    "PermanentError",
    "RetryableError",
    "ThrottledError",
    "error_class",
    "is_retryable_status",
)


TOO_MANY_REQUESTS = 429
RETRYABLE = (408, 425)  # request timeout, too early
NEVER_MENDED = (501, 505)  # not implemented, HTTP version not supported: so it will be the next time
BODY_LENGTH = 300  # characters that are shown; pages of error are long, and say the same in their first line


class HTTPStatusError(AsyncUDFError):
    """An answer with a status of 400 or more: raised by `raise_for_status` as one of its three subclasses.

    It can be made by hand, for tests of a function's own.

    Attributes:
        status: of HTTP, such as 503.
        reason: the text behind the status, such as "Service Unavailable"; may be empty.
        body: the begin of the answer, at most 300 characters in one line; may be empty.
        retry_after: the seconds that the server asks to wait; None if it does not say.
        headers: those of the answer that say when to ask again, by their names in lower case; may be empty.
        request: what was asked, such as "GET https://api.example.com/v1?***"; no user, password or query in it.

    With `redact=` neither the body nor the request is shown: both may repeat the input.

    >>> error = ThrottledError(429, "Too Many Requests", retry_after=7.0)
    >>> error
    ThrottledError('429 Too Many Requests, asks to wait 7 s')
    >>> error.status, error.retry_after, isinstance(error, HTTPStatusError)
    (429, 7.0, True)
    """

    def __init__(
        self, status: int, reason: str = "", body: str = "", retry_after: float | None = None, request: str = ""
    ) -> None:
        self.status: int = status
        self.reason: str = one_line(reason)
        self.body: str = _excerpt(body)
        self.retry_after: float | None = retry_after
        self.headers: Mapping[str, str] = {}
        self.request: str = printable(request)
        wait = "" if retry_after is None else f", asks to wait {retry_after:g} s"
        short = f"{status} {self.reason}".rstrip() + wait
        asked, said = f", {self.request}" if self.request else "", f": {self.body}" if self.body else ""
        super().__init__(f"{short}{asked}{said}")
        self.without_value: str | None = short


class ThrottledError(HTTPStatusError):
    """The service asks for fewer calls: a 429, or another error that says when to ask again, such as GitHub's 403."""


class RetryableError(HTTPStatusError):
    """The service cannot answer now, and may the next time: 408, 425, and 500 or more but for 501 and 505."""


class PermanentError(HTTPStatusError):
    """The answer to this request, and it will be the next time: 400, 401, 403, 404 and what is none of the others."""


def is_retryable_status(status: int, retry_after: float | None) -> bool:
    """Whether the next answer to the same request may be another one."""
    return error_class(status, retry_after) is not PermanentError


def error_class(status: int, retry_after: float | None) -> type[HTTPStatusError]:
    """Which of the three an answer is; `retry_after` is what it asks to wait for."""
    if status == TOO_MANY_REQUESTS or retry_after is not None:
        return ThrottledError
    is_retryable = status in RETRYABLE or (status >= 500 and status not in NEVER_MENDED)
    return RetryableError if is_retryable else PermanentError


def _excerpt(body: str) -> str:
    # Cleaned before it is cut: half a URL does not look like one.
    text = printable(body[: 20 * BODY_LENGTH])
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= BODY_LENGTH else f"{text[: BODY_LENGTH - 3]}..."
