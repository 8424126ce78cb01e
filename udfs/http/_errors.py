"""The errors of HTTP responses: call more slowly, call again, or never again; and which failures to retry."""

from __future__ import annotations

from collections.abc import Mapping

from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.http import LEAST_ERROR, USED_UP, error_code, refusal_of, status_of, used_up_quota
from .._errors.http import retry_after as asked_wait
from .._errors.records import is_fatal
from .._errors.task_faults import is_at_a_limit
from .._errors.traces import is_group, leaves, related
from .._policies.call_outcome import CallOutcome, outcome_of
from .._text.safe import one_line, printable, safe_repr, type_name

TOO_MANY_REQUESTS = 429
RETRYABLE = (408, 425)  # request timeout, too early
NOT_RETRYABLE = (501, 505)  # not implemented, HTTP version not supported: the next call gets the same
BODY_LENGTH = 300  # characters that are shown; error pages are long, and their first line says the same
# Errors of aiohttp, by name, so that it need not be imported: a body that ended too early, and a certificate that is
# not the pinned one, which aiohttp counts as a failed connection, though it lasts.
_BROKEN, _WRONG_SERVER = "ClientPayloadError", "ServerFingerprintMismatch"


class HTTPStatusError(AsyncUDFError):
    """A response with a status of 400 or more; `raise_for_status` raises one of its three subclasses.

    Tests of a function can make one themselves.

    Attributes:
        status: the HTTP status, such as 503.
        reason: the text after the status, such as "Service Unavailable"; may be empty.
        body: the beginning of the body, at most 300 characters in one line; may be empty.
        retry_after: the seconds that the server asks to wait; None if it does not say.
        headers: the headers that say when to call again, by their names in lower case; may be empty.
        code: the code, or else the type, of the error in a body of JSON, such as "insufficient_quota"; may be empty.
        request: the request, such as "GET https://api.example.com/v1?***"; without user, password and query.

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
        self.code: str = ""
        self.request: str = printable(request)
        wait = "" if retry_after is None else f", asks to wait {retry_after:g} s"
        short = f"{status} {self.reason}".rstrip() + wait
        asked, said = f", {self.request}" if self.request else "", f": {self.body}" if self.body else ""
        super().__init__(f"{short}{asked}{said}")
        self.without_value: str | None = short


class ThrottledError(HTTPStatusError):
    """The service asks for fewer calls: a 429, or another error that says when to call again, such as GitHub's 403."""


class RetryableError(HTTPStatusError):
    """The service cannot answer now, but may the next time: 408, 425, and 500 or more except 501 and 505."""


class PermanentError(HTTPStatusError):
    """The same request gets the same response the next time: 400, 401, 403, 404 and every other status.

    A quota that is used up is one too, with any status: no request will be accepted.
    """


def error_class(status: int, retry_after: float | None) -> type[HTTPStatusError]:
    """The class of the error for a status; `retry_after` is the wait that the response asks for."""
    if status == TOO_MANY_REQUESTS or retry_after is not None:
        return ThrottledError
    is_retryable = status in RETRYABLE or (status >= 500 and status not in NOT_RETRYABLE)
    return RetryableError if is_retryable else PermanentError


def error_for(
    status: int, reason: str = "", body: str = "", retry_after: float | None = None
) -> ThrottledError | RetryableError | PermanentError:
    """The error that `raise_for_status` raises for such a response: for one item in the answer of a bulk endpoint.

    A vectorized function returns it in its list of answers, and the row of this item has failed.

    Args:
        status: of the item, 400 or more.
        reason, body: what the service says of it.
        retry_after: seconds after which to send it again.

    Raises:
        OptionError: the status is not one of an error.

    >>> error_for(429, retry_after=7.0), error_for(400, body='{"error": "no such field"}')
    (ThrottledError('429, asks to wait 7 s'), PermanentError('400: {"error": "no such field"}'))
    """
    if isinstance(status, bool) or not isinstance(status, int) or status < LEAST_ERROR:
        raise OptionError(f"status must be that of an error, 400 or more, not {safe_repr(status)}")
    code = error_code(body)
    error = (PermanentError if code in USED_UP else error_class(status, retry_after))(status, reason, body, retry_after)
    error.code = code
    return error  # type: ignore[return-value]


def _excerpt(body: str) -> str:
    # Secrets are removed before the text is cut: half a URL does not look like one.
    text = printable(body[: 20 * BODY_LENGTH])
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= BODY_LENGTH else f"{text[: BODY_LENGTH - 3]}..."


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may succeed: a default for `retry_on=` that suits HTTP.

    True for a service that asks for fewer calls or cannot answer now (statuses as in `raise_for_status`), for
    connections that fail or break, for too many open files, and for timeouts, `attempt_timeout=` among them. False for
    a refusal with `x-should-retry: false`, for a quota that is used up, for every other status, for wrong certificates,
    for clients of another event loop, and for errors of Python or of the function itself, such as a KeyError or a
    result that does not fit. An exception counts as the one that it was raised from (`raise ... from error`); a group
    is retryable only if everything in it is.

    It knows the exceptions of `raise_for_status` and aiohttp, `TimeoutError`, and the `OSError`s of the network. By
    their `status`, `response`, code or names it knows those of httpx, requests, botocore, gRPC and others, and imports
    none of these.

    >>> from asyncudf import RetryStrategy
    >>> retry = RetryStrategy.exponential_backoff(attempts=5, initial=0.2, maximum=30.0, retry_on=is_retryable)
    >>> is_retryable(ThrottledError(429)), is_retryable(ConnectionResetError()), is_retryable(TimeoutError())
    (True, True, True)
    >>> is_retryable(PermanentError(404)), is_retryable(KeyError("title"))
    (False, False)
    """
    if is_fatal(error) or not issubclass(type(error), Exception):
        return False
    if is_group(error):
        return all(map(is_retryable, leaves(error)))
    if used_up_quota(error) is not None:
        return False
    refusal, status = refusal_of(error), status_of(error)
    if refusal is not None:
        return refusal.may_retry
    if status is not None:
        return error_class(status, asked_wait(error)) is not PermanentError
    names = {type_name(one) for one in related(error)}
    if _WRONG_SERVER in names:
        return False
    return _BROKEN in names or outcome_of(error) is CallOutcome.DOWN or is_at_a_limit(error)
