"""The errors of HTTP responses: call more slowly, call again, or never again; and which failures to retry."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import warnings
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from .._errors import answers, bodies
from .._errors.call_outcome import CallOutcome, outcome_of
from .._errors.exceptions import AsyncUDFError, CredentialsError, OptionError
from .._errors.records import is_fatal
from .._errors.safe import one_line, presentable, safe_repr, tried
from .._errors.task_faults import PASSING, fault_of
from .._errors.traces import is_group, leaves, related
from .._errors.waits import seconds_of
from .._functions.async_function import FAIL_TASK

if TYPE_CHECKING:
    import aiohttp


_Error = TypeVar("_Error", bound="HTTPStatusError")

Wait = float | str | timedelta | datetime | None
RETRYABLE = (408, 425)  # request timeout, too early
NOT_RETRYABLE = (501, 505)  # not implemented, HTTP version not supported: the next call gets the same
LEAST_REDIRECT = 300  # status
MOVED = (301, 302)  # after a POST aiohttp follows these with a GET
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class HTTPStatusError(AsyncUDFError):
    """A response with a status of 400 or more, or one that is no answer; one of its three subclasses is raised.

    Tests of a function can make one themselves. `body` and `retry_after` may be whatever `error_for` takes.

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
        self, status: int, reason: str = "", body: Any = "", retry_after: Wait = None, request: str = ""
    ) -> None:
        self.status: int = status
        self.reason: str = one_line(reason)
        self.body: str = bodies.excerpt(bodies.body_text(body))
        self.retry_after: float | None = _wait_of(retry_after)
        self.headers: Mapping[str, str] = {}
        self.code: str = ""
        self.request: str = presentable(request)
        wait = "" if self.retry_after is None else f", asks to wait {self.retry_after:g} s"
        short = f"{status} {self.reason}".rstrip() + wait
        asked, said = f", {self.request}" if self.request else "", f": {self.body}" if self.body else ""
        super().__init__(f"{short}{asked}{said}")
        self.without_value: str | None = short


class ThrottledError(HTTPStatusError):
    """The service asks for fewer calls: a 429, or another error that says when to call again, such as GitHub's 403.

    AWS says it with a code too, whatever the status.
    """


class RetryableError(HTTPStatusError):
    """The service cannot answer now, but may the next time: 408, 425, and 500 to 599 except 501 and 505.

    So may one that has sent a broken answer, whose status is 200 to 299, has refused a token that can be renewed, or
    says so by a code of AWS.
    """


class PermanentError(HTTPStatusError):
    """The same request gets the same response the next time: 400, 401, 403, 404 and every other status.

    A quota that is used up is one too, with any status: no request will be accepted. So is a write that was redirected,
    and not sent there; its status is 300 to 399. So is an answer of 2xx that is whole, and that `response.json()` does
    not take for JSON.
    """


def error_class(status: int, retry_after: float | None) -> type[HTTPStatusError]:
    """The class of the error for a status; `retry_after` is the wait that the response asks for."""
    if status == answers.TOO_MANY_REQUESTS or retry_after is not None:
        return ThrottledError
    is_of_the_service = 500 <= status <= bodies.MOST_STATUS and status not in NOT_RETRYABLE
    return RetryableError if status in RETRYABLE or is_of_the_service else PermanentError


def _class_by(code: str) -> type[HTTPStatusError] | None:
    """The class of the error for a code that counts with any status; None for another code."""
    if code in bodies.USED_UP:
        return PermanentError
    if code in bodies.THROTTLING:
        return ThrottledError
    return RetryableError if code in bodies.TRANSIENT else None


def _wait_in(status: int, body: Any) -> float | None:
    return bodies.wait_in(bodies.parsed(body)) if answers.body_may_ask(status) else None


def _wait_of(value: Any) -> float | None:
    """The seconds of a wait, 0 for a time in the past; None for what says nothing, as in a header."""
    wait = None if bodies.is_missing(value) else seconds_of(value, {})
    return None if wait is None else max(0.0, wait)


def _status_of(value: Any) -> int:
    """The status of an error, from a number or a text of its digits; OptionError for what is none."""
    is_text = issubclass(type(value), str)
    number = tried(lambda: int(value) if (value.strip().isdecimal() if is_text else int(value) == value) else 0)
    if number is None or not bodies.LEAST_ERROR <= number <= bodies.MOST_STATUS:
        raise OptionError(
            f"status must be the HTTP status of an error, 400 to 599, not {safe_repr(value)}; a code of the service's "
            "own belongs into body="
        )
    return int(number)


def error_for(
    status: int | str, reason: str = "", body: Any = "", retry_after: Wait = None
) -> ThrottledError | RetryableError | PermanentError:
    """The error that `raise_for_status` raises for such a response: for one item in the answer of a bulk endpoint.

    A vectorized function returns it in its list of answers, and the row of this item has failed. It takes what such
    answers hold: None, NaN and what pandas has for a missing value say nothing.

    Args:
        status: the status of the item, 400 to 599; a number, or a text of its digits.
        reason: the text after the status.
        body: what the service says of it: a text, bytes, or what JSON has, such as a dict. Its code counts as in a
            response: that of a quota that is used up, and AWS's for throttling and for failures that pass.
        retry_after: when to send it again: seconds as a number or a text, an HTTP date, a time of RFC 3339, a duration
            such as "1m30s", a timedelta or a datetime. A text that says nothing of these is ignored, as in a header.
            None: what Google's `RetryInfo` in the body says, if it is there.

    Raises:
        OptionError: the status is not one of an error, such as a code of the service's own; or `retry_after` is of
            another type.

    >>> error_for(429, retry_after="7"), error_for(400, body={"error": "no such field"})
    (ThrottledError('429, asks to wait 7 s'), PermanentError('400: {"error": "no such field"}'))
    """
    number, wait = _status_of(status), _wait_of(retry_after)
    is_read = wait is not None or bodies.is_missing(retry_after)
    if not is_read and (type(retry_after) is bool or not issubclass(type(retry_after), (str, float, int))):
        raise OptionError(
            f"retry_after must be seconds, a date, or a timedelta, not {safe_repr(retry_after)}; None if the service "
            "does not say"
        )
    if wait is None:
        wait = _wait_in(number, body)
    code = bodies.error_code(body)
    error = (_class_by(code) or error_class(number, wait))(number, reason, body, wait)
    error.code = code
    return error  # type: ignore[return-value]


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may succeed: a default for `retry_on=` that suits HTTP.

    True for a service that asks for fewer calls or cannot answer now (statuses as in `raise_for_status`), for
    connections that fail or break, for answers that a client could not read, such as half a JSON, for too many open
    files, a client's pool without a free connection, deadlocks of databases, and for timeouts, `attempt_timeout=` among
    them. False for a refusal with `x-should-retry: false`, for a
    quota that is used up, for every other status, for answers that aiohttp does not read, for wrong certificates, for
    clients of another event loop, and for errors of Python or of the function itself, such as a KeyError or a result
    that does not fit. An exception counts as the one that it was raised from (`raise ... from error`) or wraps; a group
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
    said = answers.answer_of(error)
    if said.quota is not None:
        return False
    if said.refusal is not None:
        return said.refusal.may_retry
    of_status = next((type(one) for one in related(error) if issubclass(type(one), HTTPStatusError)), None)
    if of_status is not None and issubclass(of_status, RetryableError):
        return True  # also with a status that is not: a 401 for which there is a new token
    if said.status is not None and not said.may_pass:
        return error_class(said.status, said.wait) is not PermanentError
    return outcome_of(error) is CallOutcome.DOWN or fault_of(error) in PASSING


BODY_BYTES = 16 * 1024  # to read: a response that is read to its end leaves its connection to the next call
BODY_SECONDS = 2.0  # to wait for the body: a slow server must not hold the slot
SECRET_NAME = re.compile(r"auth|cookie|credential|jwt|key|pass|pwd|secret|session|signature|sig\b|token", re.IGNORECASE)
PLAIN_NAME = re.compile(r"accept|content-|user-agent", re.IGNORECASE)  # among headers that a function returns
SEPARATORS = re.compile(r"[\s;,=\"]+")
# How JSON, forms and HTML write these characters.
ESCAPES = {'"': '\\"', "/": "\\/", " ": "+", "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"}
NOT_AWAITED = (
    "called http.raise_for_status without await, so that no response could fail the call; "
    "write `await http.raise_for_status(response)`"
)
SECRET_LENGTH = 6  # characters; shorter ones occur in any text


def raise_for_status(response: aiohttp.ClientResponse) -> Coroutine[Any, Any, None]:
    """Raise an error if the status is 400 or more; for POST, PUT, PATCH and DELETE, if it is 300 or more.

    For any other status the body is not read. A 207 is none of these: its body has a status for each part.

    The class of the error says what to do next (`is_retryable` reads it). The error has the beginning of the body: at
    most 16 KiB are read, for at most 2 seconds. Secrets of the request's own headers and query are `***` in it, also
    if they are percent-encoded, or decoded as the user and password of `Basic`. Afterwards the connection is free for
    the next call, or closed; also if the call is cancelled meanwhile.

    aiohttp can call it for each response too: `http.session(url, raise_for_status=raise_for_status)`.

    Without `await` it could not fail the call. So it fails the task then, whatever the status; the error says so.

    Args:
        response: a response of aiohttp.

    Raises:
        ThrottledError: the service asks for fewer calls: 429, any other error with a `Retry-After`, a 403 whose
            `x-ratelimit-remaining` is 0, or a code of AWS for it.
        RetryableError: 408, 425, 500 to 599 except 501 and 505, and codes of AWS for failures that pass.
        PermanentError: every other status of 400 or more, and a quota that is used up, whatever its status; a write
            that was redirected and not sent there.
        TypeError: not a response of aiohttp; most often the `await` or `async with` of the request is missing.

    >>> from asyncudf import http
    >>> async def title(key: str, session: "aiohttp.ClientSession") -> str:
    ...     async with session.get(f"/titles/{key}") as response:
    ...         if response.status == 404:
    ...             return "unknown"
    ...         await http.raise_for_status(response)
    ...         return (await response.json())["title"]
    """
    status: Any = getattr(response, "status", None)
    if type(status) is not int or not hasattr(response, "content"):
        raise TypeError(
            "raise_for_status takes a response of aiohttp, as from `async with session.get(...) as response`, "
            f"not {safe_repr(response)}"
        )
    return _Awaited(response, status)


class _Awaited(Coroutine[Any, Any, None]):
    """A coroutine that fails the task if it is never awaited: Python alone only warns, and the row would be wrong."""

    def __init__(self, response: aiohttp.ClientResponse, status: int) -> None:
        self._response, self._status = response, status
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._in_task = FAIL_TASK.get(None)
        self._fail = None if self._in_task is None else self._in_task()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        self._begun().close()

    def _begun(self) -> Coroutine[Any, Any, None]:
        if self._coroutine is None:
            self._coroutine = _check(self._response, self._status)
        return self._coroutine

    def __del__(self) -> None:
        if self._coroutine is not None:
            return
        # The garbage collector may call it from anywhere.
        if self._fail is None or FAIL_TASK.get(None) is not self._in_task:
            warnings.warn(NOT_AWAITED, RuntimeWarning, stacklevel=2)
        else:
            self._fail(NOT_AWAITED)


async def _check(response: aiohttp.ClientResponse, status: int) -> None:
    if status < bodies.LEAST_ERROR:
        _check_write(response, status)
        return
    try:
        body = await _beginning(response)
    finally:
        response.close()  # closes the connection only if the body is not at its end
    said = answers.answer_of(response)
    wait = said.wait
    if wait is None:
        wait = _wait_in(status, body)
    kind = ThrottledError if said.refusal is not None else error_class(status, wait)
    refused = getattr(response, "refused", None)
    if refused is not None:  # the session has a new token for the next attempt
        kind = RetryableError
    body = _without_own_secrets(body, response)
    code = bodies.error_code(body)
    kind = _class_by(code) or kind
    error = kind(status, response.reason or "", body, wait, f"{response.method} {response.url}")
    error.headers = answers.limit_headers(response)
    error.code = code
    if refused is None:
        raise error
    error.refused = refused  # type: ignore[attr-defined]
    is_lasting = response.token.refuses_all(status, body)  # type: ignore[attr-defined]
    raise error from (CredentialsError("the service refuses the new token too") if is_lasting else None)


def _check_write(response: aiohttp.ClientResponse, status: int) -> None:
    """Raise an error for a write that was not done, though no status says so."""
    history = getattr(response, "history", ())  # tests of users have responses of their own making
    if getattr(history[0] if history else response, "method", "") not in WRITES:
        return
    if status >= LEAST_REDIRECT:
        what = "it was redirected{}" if "Location" in response.headers else "it has no answer of its own"
        what = f"{what}, so it may not be done; if it is, do not call raise_for_status for this status"
        raise redirected(response, what, response.headers.get("Location"))
    if not getattr(response, "knows_redirects", False):  # of a session of the user's own
        for one in history:
            if one.status in MOVED and one.method == "POST":
                raise redirected(one, f"{BECAME_GET} look at the response yourself, with allow_redirects=False")


BECAME_GET = "it was redirected{}, where a GET would go, and nothing was written; send it to that address, or"


def redirected(response: Any, what: str, target: Any = None) -> PermanentError:
    """The error of a request that was redirected; `what` has `{}` for where to."""
    error = PermanentError(response.status, response.reason or "", request=f"{response.method} {response.url}")
    to = f" to {presentable(str(target or response.headers.get('Location')))}"
    return _noted(error, what.replace("{}", to), what.replace("{}", ""))


def broken(response: Any, body: bytes, what: str, lasts: bool = False) -> HTTPStatusError:
    """The error of an answer that is not what the function reads it as; unless it lasts, another may be whole."""
    kind: type[HTTPStatusError] = PermanentError if lasts else RetryableError
    if response.status >= bodies.LEAST_ERROR:
        kind = error_class(response.status, None)
    text = _without_own_secrets(_decoded(body[:BODY_BYTES], response), response)
    error = kind(response.status, response.reason or "", text, request=f"{response.method} {response.url}")
    return _noted(error, what)


def _noted(error: _Error, what: str, without_value: str | None = None) -> _Error:
    """The error with a remark, which may repeat the input if there is another one without it."""
    error.args = (f"{error} ({what})",)
    error.without_value = f"{error.without_value} ({without_value or what})"
    return error


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The beginning of the body as text, up to where it breaks or takes too long; empty for binary data."""
    data = bytearray()
    with contextlib.suppress(Exception):  # the status is enough, if the body cannot be read
        async with asyncio.timeout(BODY_SECONDS):
            if response.content.at_eof():
                data += await response.read()  # the caller has read it already
            while len(data) < BODY_BYTES and (chunk := await response.content.read(BODY_BYTES - len(data))):
                data += chunk
    return _decoded(data, response)


def _decoded(data: bytes | bytearray, response: aiohttp.ClientResponse) -> str:
    try:
        text = data.decode(response.charset or "utf-8", "replace")
    except (LookupError, ValueError):  # an unknown charset, or one that is no text encoding
        text = data.decode("utf-8", "replace")
    return "" if "\0" in text else text


def _without_own_secrets(text: str, response: aiohttp.ClientResponse) -> str:
    """The text with `***` for each secret of the request, which debugging pages repeat."""
    for secret in sorted(set(_secrets(response)), key=len, reverse=True):
        text = re.sub("".join(map(_written, secret)), "***", text)
    return text


def _written(one: str) -> str:
    """A pattern for a character, plain and as URLs, forms, JSON and HTML write it."""
    if one.isalnum() and one.isascii():
        return one
    escapes = [one, quote(one, safe="", errors="replace"), *([ESCAPES[one]] if one in ESCAPES else [])]
    return f"(?:{'|'.join(f'(?i:{re.escape(escape)})' for escape in escapes)})"


def _secrets(response: aiohttp.ClientResponse) -> Iterator[str]:
    hidden = getattr(response, "hidden_headers", ())
    sent = (response, *getattr(response, "history", ()))  # a page may repeat what was sent before a redirect
    for name, value in chain.from_iterable((*one.request_info.headers.items(), *one.url.query.items()) for one in sent):
        if SECRET_NAME.search(name) or (name.lower() in hidden and not PLAIN_NAME.match(name)):
            scheme, _, token = value.partition(" ")
            parts = [value, token, *SEPARATORS.split(value)]  # of `Bearer <token>` and `session=<token>`
            if scheme.lower() == "basic":
                parts += _of_basic(token)
            yield from (part for part in parts if len(part) > SECRET_LENGTH)


def _of_basic(token: str) -> Sequence[str]:
    """The user and password of a `Basic` header, and the secret of the two: with some services a key is the user."""
    try:
        both = base64.b64decode(token).decode("utf-8", "replace")
    except ValueError:
        return ()
    user, _, password = both.partition(":")
    return both, password or user
