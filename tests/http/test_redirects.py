"""A write that was redirected is written where it was redirected to, or its row has failed."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from asyncudf import RetryStrategy, http
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

pytestmark = pytest.mark.services

WRITES = ("POST", "PUT", "PATCH", "DELETE")
RETRY = RetryStrategy.fixed_delay(3, 0.01, retry_on=http.is_retryable)


class Service:
    """Answers with the status in the path, redirecting to what `to` says; it has what came to any other path."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.bodies: list[tuple[str, bytes]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(f"{request.method} {request.path}")
        if request.path.startswith("/loop/"):
            number = int(request.path.removeprefix("/loop/"))
            return web.Response(status=302, headers={"Location": f"/loop/{number + 1}?key=SECRET"})
        if request.path.strip("/").isdigit():
            headers = {"Location": request.query["to"]} if "to" in request.query else {}
            return web.Response(status=int(request.path.strip("/")), headers=headers)
        self.bodies.append((request.method, body))
        return web.json_response({})


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(service.answer) as address:
        yield address


def send(url: str, method: str, path: str, *, checks: bool = True, own: bool = False, **options: Any) -> Any:
    """The status that the function gets in the end, or the error of its row."""

    async def call(path: str, session: aiohttp.ClientSession) -> int:
        given = {name: value() if callable(value) else value for name, value in options.items()}
        async with session.request(method, path, **given) as response:
            if checks:
                await http.raise_for_status(response)
            return response.status

    resource: Any = http.session(url) if not own else lambda: aiohttp.ClientSession(url)
    resources = {"session": resource}
    [got] = run_rows(call, [path], clock="real", on_error="capture", retry=RETRY, resources=resources)
    return got["value"] if got["error"] is None else got["error"]


@pytest.mark.parametrize("checks", [True, False], ids=["checked", "not checked"])
@pytest.mark.parametrize("status", [301, 302])
def test_a_post_of_which_a_redirect_makes_a_get_has_failed(
    url: str, service: Service, status: int, checks: bool
) -> None:
    """The GET was answered with a 200, and the row counted as written."""
    error = send(url, "POST", f"/{status}?to=/end", json={"row": 1}, checks=checks)
    assert (error["type"], error["status"]) == ("PermanentError", status)
    assert f"redirected to {url}/end, where a GET would go, and nothing was written" in error["message"]
    assert "allow_redirects=True" in error["message"]
    assert service.requests == [f"POST /{status}"], "neither sent elsewhere nor tried again"


@pytest.mark.parametrize("method", ["post", "POST"])
def test_a_function_that_knows_of_redirects_gets_them(url: str, service: Service, method: str) -> None:
    assert send(url, method, "/302?to=/end", data=b"a", allow_redirects=True) == 200
    assert service.requests == ["POST /302", "GET /end"]
    assert send(url, method, "/302?to=/end", data=b"a", allow_redirects=False, checks=False) == 302
    assert send(url, method, "/302", data=b"a", allow_redirects=True)["status"] == 302, "still not an answer to a write"


def test_what_one_request_accepts_the_next_one_and_another_call_do_not(url: str) -> None:
    async def call(number: int, session: aiohttp.ClientSession) -> int:
        options: Any = {"allow_redirects": True} if number % 2 else {}
        if number % 3 == 0:
            async with session.post("/302?to=/end", allow_redirects=True):
                pass
        async with session.post("/302?to=/end", **options) as response:
            return response.status

    got = run_rows(call, range(20), clock="real", on_error="null", resources={"session": http.session(url)})
    assert got == [None, 200] * 10


@pytest.mark.parametrize(
    ("method", "status"),
    [*itertools.product(WRITES, [307, 308]), *itertools.product(WRITES[1:], [301, 302])],
)
def test_others_go_on_with_their_body(url: str, service: Service, method: str, status: int) -> None:
    assert send(url, method, f"/{status}?to=/end", data=b"row") == 200
    assert service.bodies == [(method, b"row")]


@pytest.mark.parametrize("method", WRITES)
def test_a_303_says_that_the_request_was_done(url: str, service: Service, method: str) -> None:
    assert send(url, method, "/303?to=/end", data=b"row") == 200
    assert service.requests == [f"{method} /303", "GET /end"]


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("to", ["", "?to=", "?to=mailto:a@example.com", "?to=http://[::", "?to=ftp://example.com/"])
@pytest.mark.parametrize("status", [301, 303, 308])
def test_one_that_is_redirected_to_nowhere_has_failed(url: str, method: str, status: int, to: str) -> None:
    error = send(url, method, f"/{status}{to}", data=b"row", checks=False)
    assert (error["type"], error["status"]) == ("PermanentError", status)
    assert "no address of HTTP" in error["message"]
    assert "allow_redirects=False" in error["message"]


def test_a_chain_ends_at_the_first_that_makes_a_get(url: str, service: Service) -> None:
    assert send(url, "POST", "/307?to=/302?to=/end", data=b"row")["status"] == 302
    assert service.requests == ["POST /307", "POST /302"]


async def parts() -> AsyncIterator[bytes]:
    yield b"ro"
    yield b"w"


def test_a_body_that_is_gone_is_not_sent_as_an_empty_one(url: str, service: Service) -> None:
    error = send(url, "PUT", "/307?to=/end", data=parts)
    assert "its body, of a generator or a stream, cannot be sent again" in error["message"]
    assert service.requests == ["PUT /307"]
    assert send(url, "PUT", "/303?to=/end", data=parts) == 200
    assert send(url, "PUT", "/end", data=parts) == 200
    assert service.bodies[-1] == ("PUT", b"row")


def test_nor_if_the_function_accepts_redirects(url: str, service: Service) -> None:
    """aiohttp's own error was tried again, and older ones sent an empty body."""
    error = send(url, "POST", "/307?to=/end", data=parts, allow_redirects=True)
    assert "its body, of a generator or a stream, cannot be sent again" in error["message"]
    assert service.requests == ["POST /307"]
    assert send(url, "POST", "/302?to=/end", data=parts, allow_redirects=True) == 200
    assert send(url, "POST", "/307?to=/end", data=parts, allow_redirects=False, checks=False) == 307


def test_a_file_is_sent_again_or_the_row_has_failed(url: str, service: Service) -> None:
    """Older aiohttps close it before they send it a second time, which is an error."""
    got = send(url, "PUT", "/307?to=/end", data=lambda: io.BytesIO(b"row"))
    assert (got == 200) is (service.bodies == [("PUT", b"row")])


@pytest.mark.parametrize("status", [300, 304, 305])
@pytest.mark.parametrize("method", WRITES)
def test_no_other_3xx_is_a_success_of_a_write(url: str, method: str, status: int) -> None:
    assert send(url, method, f"/{status}", checks=False) == status
    error = send(url, method, f"/{status}")
    assert (error["type"], error["status"]) == ("PermanentError", status)
    assert "do not call raise_for_status for this status" in error["message"]
    assert send(url, "GET", f"/{status}") == status, "of a read it is the function's affair"


def test_one_that_ends_in_a_3xx_behind_a_303_is_not_done_either(url: str) -> None:
    assert send(url, "POST", "/303?to=/303")["status"] == 303


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_reads_go_where_they_are_sent(url: str, method: str, status: int) -> None:
    assert send(url, method, f"/{status}?to=/{status}?to=end", allow_redirects=True) == 200


def test_a_loop_names_its_last_address_and_is_not_tried_again(url: str, service: Service) -> None:
    """aiohttp's error said `0, message=''` and the first address."""
    error = send(url, "GET", "/loop/1")
    assert (error["type"], error["status"]) == ("PermanentError", 302)
    assert "10 redirects have not ended, the last one to /loop/11?***" in error["message"]
    assert "max_redirects=" in error["message"]
    assert len(service.requests) == 10


def test_a_session_of_ones_own_is_looked_at_by_raise_for_status(url: str, service: Service) -> None:
    error = send(url, "POST", "/302?to=/end", data=b"row", own=True)
    assert (error["type"], error["status"]) == ("PermanentError", 302)
    assert send(url, "POST", "/307?to=/end", data=b"row", own=True) == 200
    assert send(url, "POST", "/302?to=/end", data=b"row", own=True, checks=False) == 200


def test_the_target_is_not_shown_where_inputs_are_not(url: str) -> None:
    async def call(row: str, session: aiohttp.ClientSession) -> None:
        async with session.post("/302", params={"to": f"/{row}"}):
            pass

    resources = {"session": http.session(url)}
    [got] = run_rows(call, ["a-secret"], clock="real", on_error="capture", redact=True, resources=resources)
    assert got["error"]["message"].startswith("302 Found (it was redirected, where")
    assert "a-secret" not in str(got)


def test_a_websocket_is_opened_as_before() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(await socket.receive_str())
        return socket

    async def call(row: str, session: aiohttp.ClientSession) -> str:
        async with session.ws_connect("/") as socket:
            await socket.send_str(row)
            return str(await socket.receive_str())

    with serving(echo) as url:
        assert run_rows(call, ["a"], clock="real", resources={"session": http.session(url)}) == ["a"]


async def test_an_aiohttp_of_which_nothing_is_known_follows_no_redirect_of_a_post(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then `allow_redirects` is not seen either: the safe way to be wrong."""
    async with http.session(url)() as client:
        assert client._request.__name__ == "request"
    monkeypatch.setattr("asyncudf.http._session.REQUEST", "_not_there")
    async with http.session(url)() as client:
        with pytest.raises(http.PermanentError):
            await client.post("/302?to=/end", allow_redirects=True)
        await asyncio.sleep(0)
