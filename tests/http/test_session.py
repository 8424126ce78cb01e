"""A session in a task has no limit but the function's, sends secrets to its service alone, and leaves nothing open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pandas as pd
import pytest
import trustme
import yarl
from aiohttp import web
from aiohttp.abc import AbstractResolver

from asyncudf import AsyncUDFError, RetryStrategy, http
from asyncudf.http._session import _requests
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

pytestmark = pytest.mark.services


async def headers_sent(request: web.Request) -> web.Response:
    """Answers with what it was asked with; with /to?<address> it sends on."""
    if request.path == "/to":
        raise web.HTTPFound(request.query["address"])
    return web.json_response({name: request.headers[name] for name in request.headers})


async def get(address: str, session: aiohttp.ClientSession) -> Any:
    async with session.get(address) as response:
        await http.raise_for_status(response)
        return await response.json()


def got(factory: http.SessionFactory, addresses: list[str], **options: Any) -> list[Any]:
    """What a service answers, by a session."""
    function = options.pop("function", get)
    return run_rows(function, addresses, clock="real", resources=factory, returnType="map<string,string>", **options)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with serving(headers_sent) as url:
        yield url


def sent(factory: http.SessionFactory, address: str = "/") -> dict[str, str]:
    """The headers that a service gets."""
    return got(factory, [address])[0]  # type: ignore[no-any-return]


def test_a_connection_that_is_silent_for_long_shows_signs_of_life() -> None:
    """What a NAT or a load balancer has forgotten after minutes was waited for, for ever."""
    found = []
    looked = threading.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.to_thread(looked.wait, 10)
        return response

    async def look(address: str, session: aiohttp.ClientSession) -> str:
        async with session.get(address) as response:
            assert response.connection is not None
            assert response.connection.transport is not None
            connected = response.connection.transport.get_extra_info("socket")
            looked.set()
            found.append(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            found.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
            return await response.text()

    with serving(handler) as url:
        run_rows(look, ["/"], clock="real", resources=http.session(url))
    assert found == [1, 30]


def peers_of(factory: Callable[[str], http.SessionFactory], rows: int, capacity: int) -> int:
    """How many connections are made for so many calls."""
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    with serving(handler) as url:
        got(factory(url), ["/"] * rows, capacity=capacity)
    return len(peers)


def test_connections_are_kept_for_the_next_calls_and_can_be_bounded() -> None:
    assert peers_of(http.session, 10, capacity=1) == 1
    assert peers_of(lambda url: http.session(url, connections=2), 50, capacity=20) <= 2
    assert peers_of(lambda url: http.session(url, keep_alive=0), 5, capacity=1) == 5


@contextlib.contextmanager
def dropping(answers: int) -> Iterator[tuple[str, list[str]]]:
    """A service that takes each connection's requests, and drops it with the one after so many answers."""
    received: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for number in itertools.count():
                received.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
                if number == answers:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Resolver(AbstractResolver):
    """Says that every host is where the service at `url` is, and counts how often it was asked."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = yarl.URL(url), 0

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
        self.asked += 1
        found = {"host": self.url.host, "port": self.url.port, "family": family, "proto": 0, "flags": 0}
        return [{"hostname": host, **found}]

    async def close(self) -> None:
        pass


async def times_asked(session: aiohttp.ClientSession, times: int) -> list[str]:
    """What came of so many requests, one after the other."""
    found = []
    for _ in range(times):
        try:
            async with session.get("/") as response:
                found.append(str(response.status))
        except aiohttp.ClientConnectionError as error:
            found.append(type(error).__name__)
    return found


def test_a_service_that_has_moved_is_found_by_the_next_request() -> None:
    """aiohttp went on with the address that it remembered, for a minute, and all rows of that minute failed."""

    async def moved() -> None:
        with contextlib.ExitStack() as before:
            resolver = Resolver(before.enter_context(serving(headers_sent)))
            async with http.session("http://service.test", on_executor=lambda: {"resolver": resolver})() as session:
                assert await times_asked(session, 2) == ["200", "200"]
                before.close()
                with serving(headers_sent) as url:
                    resolver.url = yarl.URL(url)
                    assert await times_asked(session, 3) == ["ServerDisconnectedError", "200", "200"]
        assert resolver.asked == 2

    asyncio.run(moved())


def test_where_a_service_is_that_is_down_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("asyncudf.http._addresses.monotonic", lambda: now)

    async def down() -> None:
        nonlocal now
        with serving(headers_sent) as url:
            resolver = Resolver(url)
        async with http.session("http://service.test", on_executor=lambda: {"resolver": resolver})() as session:
            for lookups in (2, 3):  # the first of all comes before anything is known
                assert set(await times_asked(session, 50)) == {"ClientConnectorError"}
                assert resolver.asked == lookups
                now += 1.0

    asyncio.run(down())


def test_each_request_is_an_attempt_of_the_function() -> None:
    """aiohttp makes one that is idempotent again by itself, on another connection, when its connection is dropped."""
    attempts = 0

    async def call(address: str, session: aiohttp.ClientSession) -> Any:
        nonlocal attempts
        attempts += 1
        return await get(address, session)

    retry = RetryStrategy.fixed_delay(40, 0.01, retry_on=http.is_retryable)  # some rows meet several such connections
    with dropping(3) as (url, received):
        rows = [f"/{row}" for row in range(40)]
        assert got(http.session(url), rows, function=call, capacity=4, retry=retry) == [{}] * 40
    assert len(received) == attempts > 40


async def test_an_aiohttp_that_cannot_be_told_so_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def opened() -> None:
        async with http.session("https://example.com")() as client:
            assert getattr(client, "_retry_connection") is False  # noqa: B009

    await opened()
    assert not caplog.records
    monkeypatch.setattr("asyncudf.http._session.REPEATS", "_not_there")
    with pytest.raises(AssertionError):
        await opened()
    assert "may repeat requests" in caplog.text


async def test_the_limits_are_those_that_were_given() -> None:
    async def limits(**options: Any) -> tuple[Any, ...]:
        async with http.session("https://example.com", **options)() as client:
            assert isinstance(client.connector, aiohttp.TCPConnector)
            time, to = client.timeout, client.connector
            return (time.total, time.connect, time.sock_connect, time.sock_read, to.limit, to.limit_per_host)

    assert await limits() == (None, None, 10.0, None, 0, 0)
    given = {"total_timeout": 60, "connect_timeout": None, "read_timeout": 5, "connections": 7, "limit_per_host": 3}
    assert await limits(**given) == (60, None, None, 5, 7, 3)


def test_cookies_of_one_row_do_not_go_with_another() -> None:
    async def handler(request: web.Request) -> web.Response:
        response = web.json_response(dict(request.cookies))
        response.set_cookie("user", "ada")
        return response

    with serving(handler) as url:
        local = url.replace("127.0.0.1", "localhost")  # aiohttp keeps no cookies of addresses in numbers
        assert got(http.session(local), ["/", "/"], capacity=1) == [{}, {}]
        given = http.session(local, on_executor=lambda: {"cookies": {"mine": "1"}})
        assert got(given, ["/", "/"], capacity=1) == [{"mine": "1"}, {"mine": "1"}]
        jar = http.session(local, on_executor=lambda: {"cookie_jar": aiohttp.CookieJar()})
        assert got(jar, ["/", "/"], capacity=1) == [{}, {"user": "ada"}]


def test_a_token_and_headers_are_sent(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def token() -> str:
        return "of a function"

    monkeypatch.setenv("API_TOKEN", "of the environment\n")
    assert sent(http.session(service, token_env="API_TOKEN"))["Authorization"] == "Bearer of the environment"
    assert sent(http.session(service, token=token))["Authorization"] == "Bearer of a function"
    both = sent(http.session(service, token=lambda: "a", headers=lambda: {"User-Agent": "b"}))
    assert (both["Authorization"], both["User-Agent"]) == ("Bearer a", "b")
    assert sent(http.session(service, headers={"Accept-Language": "nb"}))["Accept-Language"] == "nb"


def test_a_token_goes_before_what_a_file_says_of_the_host(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `trust_env=True`, for a proxy, aiohttp sent the password in ~/.netrc in place of the token."""
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login ada password lovelace")
    monkeypatch.setenv("NETRC", str(file))
    monkeypatch.setenv("API_TOKEN", "SECRET")
    for own in (
        {"token_env": "API_TOKEN"},
        {"token": lambda: "SECRET"},
        {"headers": lambda: {"authorization": "SECRET"}},
    ):
        assert sent(http.session(service, trust_env=True, **own))["Authorization"].endswith("SECRET")
        elsewhere = http.session("http://localhost:9", trust_env=True, **own)
        assert sent(elsewhere, f"{service}/")["Authorization"].startswith("Basic ")
    assert sent(http.session(service, trust_env=True))["Authorization"].startswith("Basic ")


@pytest.mark.parametrize("path", ["", "/to?address="], ids=["asked", "redirected"])
def test_secrets_go_to_their_own_service_alone(service: str, path: str) -> None:
    """A session of aiohttp sends its headers to whatever it asks, and an API key wherever it is redirected to."""
    factory = http.session(service, token=lambda: "SECRET", headers=lambda: {"X-Api-Key": "SECRET"})
    with serving(headers_sent) as other:
        assert "SECRET" not in str(sent(factory, f"{path}{other}/there" if path else f"{other}/there"))
    own = sent(factory, f"{path}{service}/here" if path else "/here")
    assert (own["Authorization"], own["X-Api-Key"]) == ("Bearer SECRET", "SECRET")


@pytest.mark.parametrize("path", ["", "/to?address="], ids=["asked", "redirected"])
def test_so_do_the_cookies_of_on_executor(service: str, path: str) -> None:
    """They are given there because they are secrets, and went to whatever was asked."""
    factory = http.session(service, on_executor=lambda: {"cookies": {"sid": "SECRET"}})
    with serving(headers_sent) as other:
        assert "SECRET" not in str(sent(factory, f"{path}{other}/there" if path else f"{other}/there"))
    assert sent(factory, f"{path}{service}/here" if path else "/here")["Cookie"] == "sid=SECRET"


@pytest.mark.parametrize(
    "given", [{"headers": lambda: {"X-Door": "OPEN-SESAME"}}, {"sign": lambda r: {"X-By": "OPEN-SESAME"}}]
)
def test_no_message_shows_what_these_functions_return(given: dict[str, Any]) -> None:
    """Whatever the header is called."""

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({**request.headers, "wanted": "application/json"}, status=400)

    async def call(x: int, session: aiohttp.ClientSession) -> None:
        async with session.get("/", headers={"X-Page": "seventeen", "Accept": "application/json"}) as response:
            await http.raise_for_status(response)

    with serving(echo) as url:
        [row] = run_rows(call, [1], clock="real", on_error="capture", resources={"session": http.session(url, **given)})
    assert "SESAME" not in str(row)
    assert "seventeen" in row["error"]["message"]
    assert "application/json" in row["error"]["message"]


@pytest.mark.parametrize("url", ["https://example.com/x", "https://example.com:443/x", "https://EXAMPLE.com/x"])
def test_a_default_port_may_be_written_or_not(url: str) -> None:
    """As in some redirects: the service then got no token, and answered 401."""

    class Noted:
        def __init__(self, method: str, url: yarl.URL, *, headers: dict[str, str]) -> None:
            self.headers = headers

    request: Any = _requests(Noted, "https://example.com/", {"X-Api-Key": "SECRET"})
    assert request("GET", yarl.URL(url), headers={}).headers == {"X-Api-Key": "SECRET"}
    assert request("GET", yarl.URL("http://example.com:443/x"), headers={}).headers == {}


@pytest.mark.parametrize("given", [{"token": lambda: "SECRET\nSECRET"}, {"headers": {"X-Page": "SECRET\r\nHost: b"}}])
def test_aiohttp_refuses_a_header_of_two_lines_and_does_not_show_it(service: str, given: dict[str, Any]) -> None:
    with pytest.raises(AsyncUDFError, match="header injection") as caught:
        sent(http.session(service, **given))
    assert "SECRET" not in str(caught.value)


def test_nothing_is_made_for_a_session_whose_token_fails(service: str) -> None:
    """A connector would stay open."""
    made = []
    with pytest.raises(AsyncUDFError, match="ZeroDivisionError"):
        sent(http.session(service, token=lambda: 1 / 0, on_executor=lambda: made.append(1) or {}))  # type: ignore[arg-type, return-value, func-returns-value]
    assert not made


async def test_a_request_with_a_secret_costs_no_more_function_calls_than_one_of_plain_aiohttp(service: str) -> None:
    """It was an eighth more: for each trace of a session aiohttp makes an object and calls a coroutine at each step."""

    async def calls_of(session: aiohttp.ClientSession) -> int:
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        async with session:
            await get(f"{service}/", session)  # makes the connection
            sys.setprofile(count)
            try:
                for _ in range(20):
                    await get(f"{service}/", session)
            finally:
                sys.setprofile(None)
        return calls

    async with http.session(service, token=lambda: "a")() as ours:
        assert await calls_of(ours) <= await calls_of(aiohttp.ClientSession())


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_missing_token_is_told_before_the_first_call(service: str, text: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("API_TOKEN", text)
    with pytest.raises(AsyncUDFError, match=r"resource 'session' .* could not be opened: .*API_TOKEN is not set"):
        sent(http.session(service, token_env="API_TOKEN"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": lambda: None}, "token must return a text that is not empty"),
        ({"token": lambda: ""}, "token must return a text that is not empty"),
        ({"headers": lambda: ["SECRET"]}, "'list' object is not a mapping"),
        ({"on_executor": lambda: None}, "'NoneType' object is not a mapping"),
        ({"on_executor": lambda: {"cookiejar": "SECRET"}}, "unexpected keyword argument 'cookiejar'"),
        ({"on_executor": lambda: {"timeout": 5}}, "timeout parameter cannot be of <class 'int'>"),
        ({"token": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"on_executor": lambda: {"trace_configs": 5}}, "TypeError"),
    ],
)
def test_what_a_function_returns_is_checked_and_not_shown(service: str, options: dict[str, Any], said: str) -> None:
    gc.collect()  # what other tests have left
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(AsyncUDFError, match=said) as caught:
            sent(http.session(service, **options))
        gc.collect()
    assert "SECRET" not in str(caught.value)
    assert not [str(one.message) for one in warned if one.category is ResourceWarning]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """One that nobody knows."""
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_context(authority: trustme.CA) -> ssl.SSLContext:
    """Of a server at 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_when_a_task_is_over_its_connections_are_closed(
    tls: bool, authority: trustme.CA, tls_context: ssl.SSLContext
) -> None:
    """`Unclosed connection` was the last line of many a job: a closed session needs some turns of its loop."""
    opened: set[Any] = set()

    async def handler(request: web.Request) -> web.Response:
        opened.add(request.transport)
        return web.json_response({})

    def trusting() -> dict[str, Any]:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return {"ssl": context}

    factory_options = {"on_executor": trusting} if tls else {}
    gc.collect()  # what other tests have left
    with serving(handler, tls_context if tls else None) as url, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert got(http.session(url, **factory_options), ["/"] * 20, capacity=20) == [{}] * 20
        gc.collect()
    assert opened
    assert not [str(one.message) for one in warned if one.category is ResourceWarning]


@pytest.mark.parametrize(
    ("method", "headers", "warnings"),
    [("POST", {}, 1), ("PATCH", {}, 1), ("GET", {}, 0), ("PUT", {}, 0), ("POST", {"idempotency-key": "1"}, 0)],
)
def test_a_request_that_may_do_its_work_twice_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, method: str, headers: dict[str, str], warnings: int
) -> None:
    """In a later attempt: the first may have been done, and only its answer lost."""
    received = 0

    async def busy(request: web.Request) -> web.Response:
        nonlocal received
        received += 1
        return web.Response(status=200 if received > 6 else 503)

    async def send(x: int, session: aiohttp.ClientSession) -> int:
        async with session.request(method, "/things", params={"secret": "s3cr3t"}, headers=headers) as response:
            await http.raise_for_status(response)
            return response.status

    retry = RetryStrategy.fixed_delay(10, 0.001, retry_on=http.is_retryable)
    with serving(busy) as url:
        assert run_rows(send, [1, 2], clock="real", retry=retry, resources=http.session(url)) == [200, 200]
    told = [record.message for record in caplog.records if "Idempotency-Key" in record.message]
    assert len(told) == warnings
    assert not warnings or (method in told[0] and "/things" in told[0] and "s3cr3t" not in told[0])


@pytest.mark.parametrize(("status", "warnings"), [(429, 0), (503, 1)])
def test_rows_that_a_bulk_request_refused_may_be_sent_again(
    caplog: pytest.LogCaptureFixture, status: int, warnings: int
) -> None:
    """The service says that it has done nothing with them; a row that failed may have been done."""
    called: set[int] = set()

    async def post(x: pd.Series, session: aiohttp.ClientSession) -> list[int | Exception]:
        async with session.post("/bulk") as response:
            await http.raise_for_status(response)
        answers = [http.error_for(status) if one % 3 == 0 and one not in called else one for one in x]
        called.update(x)
        return answers

    async def taken(request: web.Request) -> web.Response:
        return web.Response()

    retry = RetryStrategy.fixed_delay(10, 0.001, retry_on=http.is_retryable)
    with serving(taken) as url:
        options: dict[str, Any] = {"resources": http.session(url), "retry": retry, "returnType": "long"}
        assert run_rows(post, range(9), clock="real", batch_size=9, **options) == [*range(9)]
    told = [record.message for record in caplog.records if "Idempotency-Key" in record.message]
    assert len(told) == warnings
    assert not warnings or "RuntimeContext.idempotency_keys, one for each row" in told[0]
