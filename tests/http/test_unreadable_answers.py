"""What aiohttp does not read is named with its option and not tried again; an answer that is broken is."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import re
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from asyncudf import CircuitBreaker, OptionError, RetryStrategy, http
from asyncudf._errors.call_outcome import CallOutcome, outcome_of
from asyncudf.testing import run_rows
from tests.kit.http_services import sending, serving

pytestmark = pytest.mark.services

RETRY = RetryStrategy.fixed_delay(3, 0.01, retry_on=http.is_retryable)
LONG = b"a" * 9000
TOO_LONG = {
    "a header": b"HTTP/1.1 200 OK\r\nX-Secret: " + LONG,
    "its name": b"HTTP/1.1 200 OK\r\n" + LONG + b": a",
    "status line": b"HTTP/1.1 200 " + LONG,
}

BOUNDS_HEADERS = "max_headers" in inspect.signature(aiohttp.ClientSession).parameters


def speaking(head: bytes) -> contextlib.AbstractAsyncContextManager[str]:
    """A service that answers each request with this head and an empty JSON object."""
    return sending(head + b"\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("what", TOO_LONG)
async def test_what_aiohttp_does_not_read_names_the_option(what: str) -> None:
    """It looked like a 400 of the service, was made again, and counted as an outage."""
    async with speaking(TOO_LONG[what]) as url, http.session(url)() as session:
        with pytest.raises(OptionError, match=r"more than 8190 bytes; allow more.*max_field_size=65536") as caught:
            await session.get("/")
        assert "aaaa" not in str(caught.value), "it may be a cookie"
        assert not http.is_retryable(caught.value)
        assert outcome_of(caught.value) is CallOutcome.NOTHING


@pytest.mark.parametrize("what", TOO_LONG)
async def test_with_the_option_it_is_read(what: str) -> None:
    async with speaking(TOO_LONG[what]) as url:
        async with http.session(url, max_line_size=65536, max_field_size=65536)() as session:
            assert (await session.get("/")).status == 200
        async with http.session(url)() as session:
            assert (await session.get("/", max_line_size=65536, max_field_size=65536)).status == 200


@pytest.mark.skipif(
    "max_headers" not in __import__("inspect").signature(aiohttp.ClientSession).parameters, reason="old"
)
async def test_too_many_headers_name_theirs() -> None:
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *(b"X-%d: 1" % number for number in range(300))])
    async with speaking(head) as url:
        async with http.session(url)() as session:
            with pytest.raises(OptionError, match=r"[Tt]oo many headers received; allow more.*max_headers="):
                await session.get("/")
        async with http.session(url, max_headers=1000)() as session:
            assert (await session.get("/")).status == 200


@pytest.mark.parametrize("what", TOO_LONG)
async def test_a_session_of_ones_own_knows_too_that_it_is_no_outage(what: str) -> None:
    async with speaking(TOO_LONG[what]) as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await session.get(url)
    assert not http.is_retryable(caught.value)
    assert outcome_of(caught.value) is CallOutcome.NOTHING


async def get_json(path: str, session: aiohttp.ClientSession) -> Any:
    async with session.get(path) as response:
        return await response.json()


def test_no_breaker_opens_for_what_aiohttp_does_not_read() -> None:
    requests = []

    async def handler(request: web.Request) -> web.Response:
        requests.append(request.path)
        return web.json_response({}, headers={"X-Long": "a" * 9000})

    with serving(handler) as url:
        got = run_rows(
            get_json, [f"/{n}" for n in range(60)], returnType="map<string,string>", clock="real", retry=RETRY,
            on_error="capture", resources={"session": http.session(url)}, breaker=CircuitBreaker(),
        )  # fmt: skip
    assert {row["error"]["type"] for row in got} == {"OptionError"}
    assert len(requests) == 60


BROKEN = {
    "half a JSON": (web.Response(body=b'{"title": "Du', content_type="application/json"), "it is no JSON"),
    "HTML": (web.Response(text="<html>Down for work", content_type="text/html"), "its content type is text/html"),
    "nothing": (web.Response(body=b" ", content_type="application/json"), "the body is empty"),
    "no UTF-8": (web.Response(body=b'{"a": "\xff"}', content_type="application/json"), "it cannot be decoded"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_answer_is_asked_for_again_and_shows_how_it_begins(what: str) -> None:
    """Half a JSON was the row's fault, and an empty body a NULL."""
    broken, why = BROKEN[what]
    requests = []

    async def handler(request: web.Request) -> web.Response:
        requests.append(request.path)
        if request.path == "/once" and len(requests) > 1:
            return web.json_response({"title": "Dune"})
        assert isinstance(broken.body, bytes)
        return web.Response(body=broken.body, headers={"Content-Type": broken.headers["Content-Type"]})

    options: Any = {"returnType": "map<string,string>", "clock": "real", "retry": RETRY, "on_error": "capture"}
    with serving(handler) as url:
        [once] = run_rows(get_json, ["/once"], resources=http.session(url), **options)
        assert (once["value"], len(requests)) == ({"title": "Dune"}, 2)
        [always] = run_rows(get_json, ["/always"], resources=http.session(url), **options)
    error = always["error"]
    assert (error["type"], error["status"], error["attempts"]) == ("RetryableError", 200, 3)
    assert why in error["message"]
    assert isinstance(broken.body, bytes)
    assert broken.body.decode(errors="replace").strip()[:10] in error["message"]


WHOLE = {
    "plain text": (b'{"a": 1}', "text/plain", 200, r"response\.json\(content_type=None\) reads it"),
    "a mark at its beginning": (b'\xef\xbb\xbf{"a": 1}', "application/json", 200, r"json\.loads\(await response\.read"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "application/json", 201, r"json\.loads\(await response\.read"),
    "no content": (b"", "text/plain", 204, "it has no body; look at response.status"),
}


@pytest.mark.parametrize("what", WHOLE)
def test_a_whole_one_that_is_read_in_the_wrong_way_is_not_asked_for_again(what: str) -> None:
    """The service had done its work, and did it once for each attempt."""
    body, kind, status, advice = WHOLE[what]
    requests = []

    async def handler(request: web.Request) -> web.Response:
        requests.append(request.path)
        return web.Response(body=body, headers={"Content-Type": kind}, status=status)

    options: Any = {"returnType": "map<string,string>", "clock": "real", "retry": RETRY, "on_error": "capture"}
    with serving(handler) as url:
        [got] = run_rows(get_json, ["/"], resources=http.session(url), breaker=CircuitBreaker(), **options)
    error = got["error"]
    assert (error["type"], error["status"], len(requests)) == ("PermanentError", status, 1)
    assert re.search(advice, error["message"])
    assert outcome_of(http.PermanentError(status)) is CallOutcome.ANSWERED


async def test_what_its_message_says_reads_them() -> None:
    async def handler(request: web.Request) -> web.Response:
        body, kind, status, _ = WHOLE[request.query["what"]]
        return web.Response(body=body, headers={"Content-Type": kind}, status=status)

    with serving(handler) as url:
        async with http.session(url)() as session:
            plain = await session.get("/", params={"what": "plain text"})
            assert await plain.json(content_type=None) == {"a": 1}
            for what in ("a mark at its beginning", "UTF-16"):
                assert json.loads(await (await session.get("/", params={"what": what})).read()) == {"a": 1}


@pytest.mark.skipif(importlib.util.find_spec("brotli") is not None, reason="aiohttp reads it then")
async def test_an_encoding_that_aiohttp_cannot_read_names_what_to_install() -> None:
    """It counted as an outage: with a breaker the job waited for ever."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"{}", headers={"Content-Encoding": "br"})

    with serving(handler) as url:
        async with http.session(url)() as session:
            with pytest.raises(OptionError, match="install `Brotli` where the tasks run, or leave this encoding out"):
                await session.get("/")
        async with aiohttp.ClientSession(url) as session:
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await session.get("/")
    assert not http.is_retryable(caught.value)
    assert outcome_of(caught.value) is CallOutcome.NOTHING


@pytest.mark.parametrize(("status", "kind"), [(404, http.PermanentError), (503, http.RetryableError)])
async def test_one_with_the_status_of_an_error_is_that_error(status: int, kind: type[Exception]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>", content_type="text/html")

    with serving(handler) as url:
        async with http.session(url)() as session:
            with pytest.raises(kind):
                await get_json("/", session)


async def test_what_was_empty_or_plain_on_purpose_stays() -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/plain":
            return web.Response(text='{"a": 1}')
        return web.Response(status=int(request.path.strip("/")), headers={"Content-Type": "application/json"})

    with serving(handler) as url:
        async with http.session(url)() as session:
            assert await get_json("/204", session) is None
            assert await get_json("/201", session) is None
            assert await (await session.get("/plain")).json(content_type=None) == {"a": 1}
            assert await (await session.get("/plain")).text("ascii") == '{"a": 1}'


async def test_secrets_of_the_request_are_not_shown() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=f"<html>{request.headers['Authorization']}", content_type="text/html")

    with serving(handler) as url:
        async with http.session(url, token=lambda: "one-secret-token")() as session:
            with pytest.raises(http.RetryableError) as caught:
                await get_json("/", session)
    assert "one-secret-token" not in str(caught.value)


async def test_a_session_of_ones_own_has_aiohttps_error_which_is_retryable() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=int(request.path.strip("/")), text="<html>", content_type="text/html")

    with serving(handler) as url:
        async with aiohttp.ClientSession(url) as session:
            with pytest.raises(aiohttp.ContentTypeError) as caught:
                await get_json("/200", session)
            assert http.is_retryable(caught.value)
            assert outcome_of(caught.value) is CallOutcome.DOWN
            with pytest.raises(aiohttp.ContentTypeError) as caught:
                await get_json("/404", session)
            assert not http.is_retryable(caught.value)
