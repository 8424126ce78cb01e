"""An answer that is an error says what to do next, and why; its connection is free again whatever happens."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import html
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import aiohttp
import pytest
from aiohttp import web

from asyncudf import AsyncStream, AsyncUDFError, RetryStrategy, http
from asyncudf.http import (
    HTTPStatusError,
    PermanentError,
    RetryableError,
    ThrottledError,
    is_retryable,
    raise_for_status,
    session,
)
from asyncudf.testing import run_rows, run_stream
from tests.kit.errors import facts_of, task_fails
from tests.kit.http_services import Handler, serving

pytestmark = pytest.mark.services


def error_of(handler: Handler, path: str = "/", **request: Any) -> HTTPStatusError:
    async def ask() -> None:
        async with session(url)() as client, client.get(path, **request) as response:
            await raise_for_status(response)

    with serving(handler) as url, pytest.raises(HTTPStatusError) as caught:
        asyncio.run(ask())
    return caught.value


async def as_asked(request: web.Request) -> web.Response:
    """Answers with the status of the path, and the query as headers."""
    return web.Response(status=int(request.path[1:]), headers=request.query, text="so it is")


ANSWERS = [
    (429, {}, ThrottledError, None),
    (429, {"Retry-After": "7"}, ThrottledError, 7.0),
    (429, {"Retry-After": "soon"}, ThrottledError, None),
    (503, {"Retry-After": "1.5"}, ThrottledError, 1.5),
    (503, {"Retry-After": "Thu, 01 Jan 2015 00:00:00 GMT"}, ThrottledError, 0.0),
    (403, {"Retry-After": "60"}, ThrottledError, 60.0),  # GitHub's second limit
    *[(status, {}, RetryableError, None) for status in (408, 425, 500, 502, 503, 504, 507, 520, 529)],
    *[(status, {}, PermanentError, None) for status in (400, 401, 403, 404, 409, 410, 413, 422, 451, 501, 505)],
]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with serving(as_asked) as url:
        yield url


@pytest.mark.parametrize(("status", "headers", "kind", "wait"), ANSWERS)
async def test_answers_are_told_apart_as_those_of_other_clients(
    service: str, status: int, headers: dict[str, str], kind: type[HTTPStatusError], wait: float | None
) -> None:
    """aiohttp's own exception and ours tell the same of the row and of the service."""
    async with session(service)() as client, client.get(f"/{status}", params=headers) as response:
        with pytest.raises(HTTPStatusError) as by_us:
            await raise_for_status(response)
        with pytest.raises(aiohttp.ClientResponseError) as by_aiohttp:
            response.raise_for_status()
    ours, theirs = by_us.value, by_aiohttp.value
    assert (type(ours), ours.status, ours.retry_after, ours.body) == (kind, status, wait, "so it is")
    assert isinstance(ours, AsyncUDFError)
    assert (facts_of(ours), is_retryable(ours)) == (facts_of(theirs), is_retryable(theirs))
    assert (facts_of(ours).outcome == "throttled") == (kind is ThrottledError)
    assert is_retryable(ours) == (kind is not PermanentError)


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        ({"error": {"type": "insufficient_quota", "code": None}}, PermanentError, "insufficient_quota"),
        ({"type": "error", "error": {"type": "billing_error"}}, PermanentError, "billing_error"),
        ({"error": {"code": "rate_limit_exceeded", "type": "requests"}}, ThrottledError, "rate_limit_exceeded"),
        ({"error": {"code": 7}}, ThrottledError, ""),
        ("no", ThrottledError, ""),
        ([], ThrottledError, ""),
    ],
)
def test_an_answer_in_json_has_a_code(body: Any, kind: type[HTTPStatusError], code: str) -> None:
    """That of a quota that is used up says that no call will be accepted; its body may be longer than what is shown."""

    async def answer(request: web.Request) -> web.Response:
        message = {"message": "m" * 5000} if isinstance(body, dict) else {}
        return web.json_response({**message, **body} if message else body, status=429, headers={"Retry-After": "7"})

    error = error_of(answer)
    assert (type(error), error.code, is_retryable(error)) == (kind, code, kind is ThrottledError)
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert other.code == code


@pytest.mark.parametrize(
    ("status", "delay", "wait"),
    [
        (429, "34.5s", 34.5),
        (503, "2s", 2.0),
        (400, "2s", None),
        (429, "soon", None),
        (429, None, None),
        (429, "", None),
    ],
)
def test_the_wait_may_be_in_the_body(status: int, delay: Any, wait: float | None) -> None:
    """Google's services have it there, and no header for it."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": status, "details": [{"retryDelay": delay}]}}, status=status)

    assert error_of(answer).retry_after == wait


@pytest.mark.parametrize("status", [200, 204, 301, 304])
async def test_an_answer_that_is_none_of_them_is_left_alone(service: str, status: int) -> None:
    async with session(service)() as client, client.get(f"/{status}", allow_redirects=False) as response:
        await raise_for_status(response)
        assert await response.text() == ("so it is" if status in (200, 301) else "")


def test_the_message_says_what_was_asked_and_answered_without_secrets() -> None:
    """Services show in their errors what they were sent: the key of the query and the token among it."""

    async def echo(request: web.Request) -> web.Response:
        text = f"no such user\n\n  {request.headers['Authorization']} {request.headers['Cookie']} {request.url}"
        return web.Response(status=404, text=text, reason="Not here")

    headers = {"Authorization": "Bearer abc.DEF-123", "Cookie": "sid=0123456789"}
    error = error_of(echo, "/users/7", params={"api_key": "SECRET-KEY"}, headers=headers)
    assert str(error).startswith("404 Not here, GET http://127.0.0.1:")
    assert "/users/7?***: no such user " in str(error)
    for secret in ("SECRET-KEY", "abc.DEF-123", "0123456789"):
        assert secret not in str(error) + repr(error) + str(vars(error))


@pytest.mark.parametrize("status", [302, 307])
def test_nor_what_was_sent_before_a_redirect(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/start":
            return web.Response(status=status, headers={"Location": "/error"})
        return web.Response(status=500, text="debug: the key was SECRET-KEY")

    assert error_of(answer, "/start", params={"api_key": "SECRET-KEY"}).body == "debug: the key was ***"


async def basic(request: web.Request) -> web.Response:
    told = base64.b64decode(request.headers["Authorization"].split()[1]).decode()
    return web.Response(status=401, text=f"no user {told.split(':')[0]!r} with {told.split(':')[-1]}; {told}")


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("s3cr3t+tok/en==", quote("s3cr3t+tok/en==")),
        ("s3cr3t+tok/en==", quote("s3cr3t+tok/en==", safe="").lower()),
        ("s3cr3t tok'n", quote_plus("s3cr3t tok'n")),
        ('s3cr3t/t"k', json.dumps('s3cr3t/t"k')),
        ("s3cr3t<&>", html.escape("s3cr3t<&>")),
    ],
)
def test_nor_as_a_url_a_form_json_or_html_writes_them(secret: str, written: str) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=404, text=f"key {written} is unknown")

    error = error_of(echo, headers={"X-Api-Key": secret})
    assert error.body.replace('"', "") == "key *** is unknown"


@pytest.mark.parametrize(
    ("both", "body"),
    [("ada:passw0rd-long", "no user 'ada' with ***; ***"), ("sk_live_0123:", "no user '***' with ; ***")],
    ids=["a password", "a key"],
)
def test_nor_as_basic_has_them(both: str, body: str) -> None:
    headers = {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
    assert error_of(basic, headers=headers).body == body


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=500, headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half of")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize(
    ("sent", "charset", "body"),
    [
        ("schlüssel".encode("latin-1"), "latin-1", "schlüssel"),
        ("schlüssel".encode("utf-16"), "utf-16", "schlüssel"),
        ("é".encode() * 1_000_000, None, f"{'é' * 297}..."),
        (b"\x89PNG\0\xff\xfe\r\n", None, ""),
        (b"caf\xe9 \x1b[31m", "hex", "caf\ufffd [31m"),
    ],
    ids=["latin-1", "utf-16", "long", "binary", "odd charset"],
)
def test_whatever_the_body_is_one_line_of_it_is_shown(sent: bytes, charset: str | None, body: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        headers = {"Content-Type": f"text/plain; charset={charset}"} if charset else {}
        return web.Response(status=500, body=sent, headers=headers)

    error = error_of(handler)
    assert (type(error), error.body) == (RetryableError, body)


def test_half_of_a_body_is_shown_too() -> None:
    assert error_of(half).body == "half of"


async def test_a_body_that_was_read_already_is_shown_too(service: str) -> None:
    async with session(service)() as client, client.get("/500") as response:
        assert await response.text() == "so it is"
        with pytest.raises(RetryableError, match=r": so it is$"):
            await raise_for_status(response)


class Stalls:
    """Sends the begin of an answer, and no more of it."""

    def __init__(self) -> None:
        self.began, self.hung_up = threading.Event(), threading.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=503)
        await response.prepare(request)
        await response.write(b"busy, becau")
        self.began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.hung_up.set()
        return response


def test_a_server_that_cannot_say_why_does_not_hold_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncudf.http._errors.BODY_SECONDS", 0.05)
    stalls = Stalls()
    assert error_of(stalls.answer).body == "busy, becau"
    assert stalls.hung_up.wait(60)


async def test_a_call_that_is_cancelled_while_it_reads_hangs_up() -> None:
    """The answer was made without `async with`, so nobody else would."""
    stalls = Stalls()
    with serving(stalls.answer) as url:
        async with session(url)() as client:
            response = await client.get("/")
            task = asyncio.create_task(raise_for_status(response))
            await asyncio.to_thread(stalls.began.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(stalls.hung_up.wait, 60)


@pytest.mark.parametrize(("size", "connections"), [(0, 1), (1000, 1), (10_000_000, 5)])
def test_an_error_leaves_its_connection_to_the_next_call(size: int, connections: int) -> None:
    """A throttled service must not be asked for a new connection by each call; long bodies are not read for it."""
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(status=429, body=b"x" * size)

    async def call(x: int, session: aiohttp.ClientSession) -> int:
        await raise_for_status(await session.get("/"))
        return x

    with serving(handler) as url:
        once = RetryStrategy.fixed_delay(1, 0.0, max_retry_after=0)
        options = {"on_error": "null", "retry": once, "resources": {"session": session(url)}}
        got = run_rows(call, range(5), clock="real", capacity=1, **options)
    assert (got, len(peers)) == ([None] * 5, connections)


async def test_it_can_be_given_to_the_session(service: str) -> None:
    async with session(service, raise_for_status=raise_for_status)() as client:
        with pytest.raises(PermanentError, match="404 Not Found"):
            await client.get("/404")


async def test_a_request_that_was_not_awaited_is_told(service: str) -> None:
    async with session(service)() as client:
        request = client.get("/404")
        with pytest.raises(TypeError, match=r"async with session\.get.*not <aiohttp"):
            await raise_for_status(request)  # type: ignore[arg-type]
        request.close()


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("on_error", ["raise", "null"])
def test_without_await_the_task_fails_whatever_the_status(service: str, status: int, on_error: Any) -> None:
    """A 404 would be a result else: Python only warns of a coroutine that nobody awaits."""

    async def call(path: str, session: aiohttp.ClientSession) -> str:
        async with session.get(path) as response:
            raise_for_status(response)  # type: ignore[unused-coroutine]
            return await response.text()

    with task_fails(r"call called http\.raise_for_status without await"):
        run_rows(call, [f"/{status}"], clock="real", on_error=on_error, resources={"session": session(service)})


def test_nor_is_it_missed_in_a_task_of_the_call(service: str) -> None:
    async def ask(path: str, session: aiohttp.ClientSession) -> int:
        async with session.get(path) as response:
            check = raise_for_status(response)  # noqa: F841
            return response.status

    async def call(path: str, session: aiohttp.ClientSession) -> list[int]:
        return await asyncio.gather(ask(path, session), ask(path, session))

    with task_fails("without await"):
        run_rows(call, ["/404"], clock="real", on_error="null", resources={"session": session(service)})


@pytest.mark.filterwarnings("ignore:called http.raise_for_status without await")
@pytest.mark.parametrize("options", [{}, {"timeout": 0.2}, {"attempt_timeout": 0.2}, {"job_capacity": 5}], ids=str)
@pytest.mark.parametrize("seconds", [0, 0.4])
def test_a_call_that_fails_before_it_gets_to_its_check_has_forgotten_nothing(
    service: str, options: Any, seconds: float
) -> None:
    async def call(path: str, session: aiohttp.ClientSession) -> str:
        async with session.get(path) as response:
            check = raise_for_status(response)
            if seconds:
                await asyncio.sleep(seconds)
            raise ConnectionError("the body broke off")
            await check  # type: ignore[unreachable]

    options = {**options, "resources": {"session": session(service)}}
    assert run_rows(call, ["/200"] * 3, clock="real", on_error="null", **options) == [None] * 3
    gc.collect()


@pytest.mark.filterwarnings("ignore:called http.raise_for_status without await")
def test_what_the_garbage_collector_finds_in_another_function_is_not_laid_to_its_charge() -> None:
    async def first(x: int) -> int:
        checks: list[Any] = [raise_for_status(Answered())]  # type: ignore[arg-type]
        checks.append(checks)
        raise ConnectionError

    async def second(first: int | None) -> int:
        gc.collect()
        return 1

    def both(stream: AsyncStream) -> AsyncStream:
        return stream.ordered_wait(first, "x", on_error="null").ordered_wait(second)

    assert run_stream(both, [{"x": 1}, {"x": 2}], "x int") == [{"x": x, "first": None, "second": 1} for x in (1, 2)]
    gc.collect()


class Answered:
    status, content = 200, None


def test_in_a_thread_it_is_missed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that looks for it refuses to be used by other threads than its own."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")

    def call(x: int) -> int:
        raise_for_status(Answered())  # type: ignore[unused-coroutine, arg-type]
        return x

    with task_fails("without await"):
        run_rows(call, [1], clock="real", on_error="null")


async def test_outside_of_a_function_python_warns(service: str) -> None:
    async with session(service)() as client, client.get("/404") as response:
        with pytest.warns(RuntimeWarning, match="without await"):
            raise_for_status(response)  # type: ignore[unused-coroutine]


def test_errors_can_be_copied_and_pickled() -> None:
    error = http.RetryableError(503, "busy", "try later", 3.0, "GET https://me:pw@example.com/?key=1")
    error.add_note("noted")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
    assert str(error) == "503 busy, asks to wait 3 s, GET https://***@example.com/?***: try later"


def test_what_a_service_answers_is_not_shown_where_inputs_are_redacted() -> None:
    async def call(user: str) -> str:
        raise PermanentError(404, "Not Found", f"no user {user}", request=f"GET https://example.com/{user}")

    (got,) = run_rows(call, ["ada"], on_error="capture", redact=True)
    assert got["error"]["message"] == "404 Not Found"
    with pytest.raises(AsyncUDFError) as caught:
        run_rows(call, ["ada"], redact=True)
    assert "ada" not in str(caught.value)
