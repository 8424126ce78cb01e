"""Raises for an answer of an HTTP service that is an error, with the begin of what it says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import warnings
from collections.abc import Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .._errors.http import limit_headers, refusal_of, retry_after
from .._functions.context import FAIL_TASK
from .._text.safe import safe_repr
from ._errors import ThrottledError, error_class

if TYPE_CHECKING:
    import aiohttp

__all__ = ("raise_for_status",)


BODY_BYTES = 16 * 1024  # that are read: an answer that is read to its end leaves the connection to the next call
BODY_SECONDS = 2.0  # a server that cannot say why must not hold the slot
SECRET_NAME = re.compile(r"auth|cookie|key|token|secret|password|signature|session", re.IGNORECASE)
SEPARATORS = re.compile(r"[\s;,=\"]+")
# Of JSON, forms and HTML.
ESCAPES = {'"': '\\"', "/": "\\/", " ": "+", "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;"}
NOT_AWAITED = (
    "called http.raise_for_status without await, so that no answer could fail the call; "
    "write `await http.raise_for_status(response)`"
)
SECRET_LENGTH = 6  # characters; shorter ones would be found in any text


def raise_for_status(response: aiohttp.ClientResponse) -> Coroutine[Any, Any, None]:
    """Raise unless the status is less than 400; then nothing is read of the answer.

    What is raised tells apart what to do next (`is_retryable` reads it), and has the begin of the body, for which at
    most 16 KiB are read and 2 seconds waited. What the request's own headers and query have of secrets is `***` in it,
    also where it is percent-encoded, or decoded as the user and password of `Basic`.
    The connection is free for the next call afterwards, or closed; also when the call is cancelled meanwhile.

    It can be given to aiohttp too, to be done with each answer: `http.session(url, raise_for_status=raise_for_status)`.

    Args:
        response: an answer of aiohttp.

    Without `await` it could not fail the call; so it ends the task, with an error that says so, whatever the status.

    Raises:
        ThrottledError: the service asks for fewer calls: 429, any other error with a `Retry-After`, or a 403 whose
            `x-ratelimit-remaining` is 0.
        RetryableError: 408, 425, and 500 or more but for 501 and 505.
        PermanentError: every other status of 400 or more.
        TypeError: it is no answer of aiohttp; most often the `await` or `async with` of the request is missing.

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
            "raise_for_status takes an answer of aiohttp, as from `async with session.get(...) as response`, "
            f"not {safe_repr(response)}"
        )
    return _Awaited(response, status)


class _Awaited(Coroutine[Any, Any, None]):
    """A coroutine that is missed if nobody awaits it: Python itself would only warn, and an error be a result."""

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
        # The garbage collector may ask from anywhere.
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
        response.close()  # closes the connection only if there is more to come on it
    wait = retry_after(response)
    kind = ThrottledError if refusal_of(response) is not None else error_class(status, wait)
    body = _without_own_secrets(body, response)
    error = kind(status, response.reason or "", body, wait, f"{response.method} {response.url}")
    error.headers = limit_headers(response)
    raise error


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The first bytes of the body as text; what has come until it breaks or takes too long; nothing of binary data."""
    data = bytearray()
    with contextlib.suppress(Exception):  # the status is what counts, whatever becomes of the rest
        async with asyncio.timeout(BODY_SECONDS):
            if response.content.at_eof():
                data += await response.read()  # the caller has read it already
            while len(data) < BODY_BYTES and (chunk := await response.content.read(BODY_BYTES - len(data))):
                data += chunk
    try:
        text = data.decode(response.charset or "utf-8", "replace")
    except (LookupError, ValueError):  # no charset that there is, or one that cannot be read
        text = data.decode("utf-8", "replace")
    return "" if "\0" in text else text


def _without_own_secrets(text: str, response: aiohttp.ClientResponse) -> str:
    """The text with `***` where it repeats a secret of the request, as pages for debugging do."""
    for secret in sorted(set(_secrets(response)), key=len, reverse=True):
        text = re.sub("".join(map(_written, secret)), "***", text)
    return text


def _written(one: str) -> str:
    """A pattern of a character, as it is and as it is written in URLs, forms, JSON and HTML."""
    if one.isalnum() and one.isascii():
        return one
    escapes = [one, quote(one, safe="", errors="replace"), *([ESCAPES[one]] if one in ESCAPES else [])]
    return f"(?:{'|'.join(f'(?i:{re.escape(escape)})' for escape in escapes)})"


def _secrets(response: aiohttp.ClientResponse) -> Iterator[str]:
    for name, value in (*response.request_info.headers.items(), *response.url.query.items()):
        if SECRET_NAME.search(name):
            scheme, _, token = value.partition(" ")
            parts = [value, token, *SEPARATORS.split(value)]  # of `Bearer <token>` and `session=<token>` each
            if scheme.lower() == "basic":
                parts += _of_basic(token)
            yield from (part for part in parts if len(part) > SECRET_LENGTH)


def _of_basic(token: str) -> Sequence[str]:
    """What is in the header of a user and a password, where some services have a key as the user."""
    try:
        both = base64.b64decode(token).decode("utf-8", "replace")
    except ValueError:
        return ()
    user, _, password = both.partition(":")
    return both, password or user
