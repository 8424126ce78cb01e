"""What goes wrong between two machines is tried again; a refusal, or a mistake of the function's own, is not."""

from __future__ import annotations

import asyncio
import errno
import json
import pickle
import socket
import ssl
import urllib.error
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from asyncudf import AsyncTimeoutError, ResultError, RetryStrategy
from asyncudf.http import PermanentError, RetryableError, ThrottledError, is_retryable
from tests.kit.errors import facts_of
from tests.kit.http_services import sending

KEY = ConnectionKey("example.com", 443, True, True, None, None, None)
RESET = ConnectionResetError(errno.ECONNRESET, "reset by peer")


def of_aiohttp(status: int, **headers: str) -> aiohttp.ClientResponseError:
    url = URL("http://example.com")
    request = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(request, (), status=status, headers=CIMultiDict(headers))


def of_class(name: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """As other clients have it; none of them is imported."""
    error = type(name, (base,), {})("no")
    error.__dict__.update(attributes)
    return error


def wrapped(cause: BaseException) -> Exception:
    error = RuntimeError("the call failed")
    error.__cause__ = cause
    return error


def while_handling(cause: BaseException) -> Exception:
    error = KeyError("title")
    error.__context__ = cause
    return error


def settled() -> BaseException:
    error = PermanentError(409, "already billed")
    error.__cause__ = RetryableError(503)
    return error


RETRYABLE = {
    "ours, throttled": ThrottledError(429),
    "ours, retryable": RetryableError(502),
    "aiohttp's 429": of_aiohttp(429),
    "aiohttp's 503": of_aiohttp(503),
    "aiohttp's 403 that asks to wait": of_aiohttp(403, **{"Retry-After": "60"}),
    "httpx and requests": of_class("HTTPStatusError", response=SimpleNamespace(status_code=504, headers={})),
    "requests' 403 that asks to wait": of_class(
        "HTTPError", OSError, response=SimpleNamespace(status_code=403, headers={"retry-after": "2"})
    ),
    "urllib": urllib.error.HTTPError("http://example.com", 503, "busy", None, None),  # type: ignore[arg-type]
    "no status, but a wait": of_class("BusyError", retry_after=3),
    "no connection": aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
    "no such host now": aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_AGAIN, "try again")),
    "broken connection": aiohttp.ClientOSError(errno.EPIPE, "broken pipe"),
    "hung up": aiohttp.ServerDisconnectedError(),
    "half a body": aiohttp.ClientPayloadError("Response payload is not completed"),
    "no connection in time": aiohttp.ConnectionTimeoutError("https://example.com"),
    "nothing read in time": aiohttp.SocketTimeoutError("Timeout on reading data from socket"),
    "asyncio's timeout": TimeoutError(),
    "attempt_timeout": AsyncTimeoutError("no result within 3 s"),
    "of the system": RESET,
    "wrapped twice": wrapped(wrapped(of_aiohttp(503))),
    "wrapped with its wait": wrapped(of_aiohttp(403, **{"Retry-After": "60"})),
    "a group": ExceptionGroup("two calls", [of_aiohttp(503), TimeoutError()]),
}
LASTING = {
    "ours": PermanentError(404),
    "aiohttp's 404": of_aiohttp(404),
    "aiohttp's 401": of_aiohttp(401),
    "not JSON": of_aiohttp(200),
    "too many redirects": of_aiohttp(302),
    "httpx and requests": of_class("HTTPError", OSError, response=SimpleNamespace(status_code=400)),
    "wrapped": wrapped(of_aiohttp(404)),
    "said for good of one that may pass": settled(),
    "wrong certificate": aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("self-signed")),
    "another certificate": aiohttp.ServerFingerprintMismatch(b"1", b"2", "example.com", 443),
    "no address": aiohttp.InvalidURL("example"),
    "no result that fits": ResultError("not a number"),
    "a bug": KeyError("title"),
    "a bug while a failure was handled": while_handling(RESET),
    "no JSON": json.JSONDecodeError("Expecting value", "<html>", 0),
    "no file": FileNotFoundError("model.bin"),
    "no session any more": RuntimeError("Session is closed"),
    "a group with a bug": ExceptionGroup("two calls", [of_aiohttp(503), KeyError("title")]),
    "a cancellation": asyncio.CancelledError(),
    "an exit": SystemExit(503),
    "an interrupt": KeyboardInterrupt(),
}


@pytest.mark.parametrize("case", RETRYABLE)
def test_what_may_go_well_the_next_time(case: str) -> None:
    assert is_retryable(RETRYABLE[case]) is True


@pytest.mark.parametrize("case", LASTING)
def test_what_will_not(case: str) -> None:
    assert is_retryable(LASTING[case]) is False


RETRY = RetryStrategy.fixed_delay(4, 1.0, retry_on=is_retryable)


def test_a_strategy_with_it_travels() -> None:
    assert pickle.loads(pickle.dumps(RETRY)).singles_out(TimeoutError())
    assert not pickle.loads(pickle.dumps(RETRY)).singles_out(KeyError())


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"it is down\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
    ],
    ids=["too short", "no chunks", "no answer", "broken off"],
)
async def test_a_message_that_is_not_whole_is_no_answer(sent: bytes) -> None:
    """aiohttp calls it a 400, which would be the request's fault, now and the next time."""
    async with sending(sent) as url, aiohttp.ClientSession() as session:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - it differs
            async with session.get(url) as response:
                await response.read()
    assert (facts_of(caught.value).status, facts_of(caught.value).outcome) == (None, "down")
    assert is_retryable(caught.value)
