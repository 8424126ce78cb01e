"""raise_for_status: the error of an HTTP response, with the beginning of its body and without secrets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import warnings
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .._errors.http import USED_UP, error_code, limit_headers, refusal_of, retry_after
from .._functions.context import FAIL_TASK
from .._text.safe import safe_repr
from ._errors import PermanentError, ThrottledError, error_class

if TYPE_CHECKING:
    import aiohttp

BODY_BYTES = 16 * 1024  # to read: a response that is read to its end leaves its connection to the next call
BODY_SECONDS = 2.0  # to wait for the body: a slow server must not hold the slot
SECRET_NAME = re.compile(r"auth|cookie|key|token|secret|password|signature|session", re.IGNORECASE)
SEPARATORS = re.compile(r"[\s;,=\"]+")
# How JSON, forms and HTML write these characters.
ESCAPES = {'"': '\\"', "/": "\\/", " ": "+", "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"}
NOT_AWAITED = (
    "called http.raise_for_status without await, so that no response could fail the call; "
    "write `await http.raise_for_status(response)`"
)
SECRET_LENGTH = 6  # characters; shorter ones occur in any text


def raise_for_status(response: aiohttp.ClientResponse) -> Coroutine[Any, Any, None]:
    """Raise an error if the status is 400 or more. For any other status the body is not read.

    The class of the error says what to do next (`is_retryable` reads it). The error has the beginning of the body: at
    most 16 KiB are read, for at most 2 seconds. Secrets of the request's own headers and query are `***` in it, also
    if they are percent-encoded, or decoded as the user and password of `Basic`. Afterwards the connection is free for
    the next call, or closed; also if the call is cancelled meanwhile.

    aiohttp can call it for each response too: `http.session(url, raise_for_status=raise_for_status)`.

    Without `await` it could not fail the call. So it fails the task then, whatever the status; the error says so.

    Args:
        response: a response of aiohttp.

    Raises:
        ThrottledError: the service asks for fewer calls: 429, any other error with a `Retry-After`, or a 403 whose
            `x-ratelimit-remaining` is 0.
        RetryableError: 408, 425, and 500 or more except 501 and 505.
        PermanentError: every other status of 400 or more, and a quota that is used up, whatever its status.
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
    if status < 400:
        return
    try:
        body = await _beginning(response)
    finally:
        response.close()  # closes the connection only if the body is not at its end
    wait = retry_after(response)
    kind = ThrottledError if refusal_of(response) is not None else error_class(status, wait)
    body = _without_own_secrets(body, response)
    if (code := error_code(body)) in USED_UP:
        kind = PermanentError
    error = kind(status, response.reason or "", body, wait, f"{response.method} {response.url}")
    error.headers = limit_headers(response)
    error.code = code
    raise error


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The beginning of the body as text, up to where it breaks or takes too long; empty for binary data."""
    data = bytearray()
    with contextlib.suppress(Exception):  # the status is enough, if the body cannot be read
        async with asyncio.timeout(BODY_SECONDS):
            if response.content.at_eof():
                data += await response.read()  # the caller has read it already
            while len(data) < BODY_BYTES and (chunk := await response.content.read(BODY_BYTES - len(data))):
                data += chunk
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
    for name, value in (*response.request_info.headers.items(), *response.url.query.items()):
        if SECRET_NAME.search(name):
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
