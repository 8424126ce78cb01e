"""Tokens of a session are renewed by one call at a time, before they end and once after a 401; requests are signed."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from asyncudf import AsyncUDFError, FatalError, OptionError, RetryStrategy, http
from asyncudf.http._tokens import RenewedToken
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

RETRY = RetryStrategy.fixed_delay(3, 0.01, retry_on=http.is_retryable)


class Tokens:
    """Gives the tokens 1, 2, 3, ...; `seconds` is how long each is good."""

    def __init__(self, seconds: Any = None) -> None:
        self.given, self.seconds = 0, seconds

    async def __call__(self) -> Any:
        await asyncio.sleep(0.01)
        self.given += 1
        return str(self.given) if self.seconds is None else (str(self.given), self.seconds)


async def get(n: int, session: aiohttp.ClientSession) -> str:
    async with session.get(f"/{n}") as response:
        await http.raise_for_status(response)
        return await response.text()


def ask(accepts: Callable[[str], bool], token: Any, rows: int = 20, **options: Any) -> tuple[list[Any], Counter[str]]:
    """What rows get of a service that accepts some tokens, and how often it got each."""
    got: Counter[str] = Counter()

    async def handler(request: web.Request) -> web.Response:
        value = request.headers["Authorization"].removeprefix("Bearer ")
        got[value] += 1
        await asyncio.sleep(0.01)
        return web.Response(text=value) if accepts(value) else web.Response(status=401)

    with serving(handler) as url:
        resources = {"session": http.session(url, token=token)}
        return run_rows(get, range(rows), clock="real", resources=resources, **options), got


@pytest.mark.services
class TestAfterA401:
    def test_all_calls_go_on_with_one_new_token(self) -> None:
        tokens = Tokens()
        values, got = ask(lambda value: value == "2", tokens, retry=RETRY)
        assert values == ["2"] * 20
        assert tokens.given == 2
        assert got["1"] <= 20, "a refused request is an attempt, and made again once"

    @pytest.mark.parametrize("on_error", ["raise", "null", "capture"])
    def test_a_token_that_is_refused_again_fails_the_task(self, on_error: str) -> None:
        tokens = Tokens()
        with pytest.raises(FatalError, match=r"401 .* accepts no token of http\.session, which is no row's fault"):
            ask(lambda value: False, tokens, rows=5, retry=RETRY, on_error=on_error)
        assert tokens.given == 2

    def test_a_token_that_was_good_for_long_is_renewed_again_and_again(self) -> None:
        asked = itertools.count()
        tokens = Tokens()
        ends = {"1": 10, "2": 20, "3": 30}
        values, _ = ask(lambda value: next(asked) < ends.get(value, 99), tokens, rows=30, retry=RETRY, capacity=1)
        assert values[0] == "1"
        assert set(values) >= {"1", "2", "3"}

    def test_without_a_retry_the_row_has_failed(self) -> None:
        with pytest.raises(AsyncUDFError, match="RetryableError: 401"):
            ask(lambda value: value == "2", Tokens(), capacity=1)


@pytest.mark.services
class TestBeforeItEnds:
    @pytest.mark.parametrize("life", [0.2, timedelta(seconds=0.2)])
    def test_a_token_is_renewed_while_it_is_good(self, life: Any) -> None:
        tokens = Tokens(life)
        values, got = ask(lambda value: True, tokens, rows=60, capacity=2)
        assert 1 < tokens.given <= len(got) + 1
        assert [*map(int, values)] == sorted(map(int, values))

    def test_one_that_lasts_is_asked_for_once(self) -> None:
        tokens = Tokens(datetime.now(UTC) + timedelta(hours=1))
        ask(lambda value: True, tokens)
        assert tokens.given == 1

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("", "token must return a text that is not empty"),
            (("t", 0), "token must return the seconds from now for which the token is good, more than 0"),
            (("t", -5), "more than 0"),
            (("t", float("nan")), "more than 0"),
            (("t", datetime(2030, 1, 1)), "a datetime with a time zone"),
            (("t", "1 h"), "not str"),
            ((3, 60), "token must return a text that is not empty"),
        ],
    )
    def test_what_is_no_token_is_named_and_not_shown(self, given: Any, said: str) -> None:
        with pytest.raises((OptionError, AsyncUDFError), match=said):
            ask(lambda value: True, lambda: given)


class TestRenewal:
    """By the clock, without a service."""

    async def test_a_renewal_that_fails_is_tried_again_while_the_old_one_is_good(self) -> None:
        now, asked = [0.0], []

        def function() -> Any:
            asked.append(now[0])
            if len(asked) in (2, 3):
                raise OSError("no network")
            return str(len(asked)), 1000.0

        token, seen = RenewedToken(function, lambda: now[0]), []
        for now[0] in (0.0, 939.0, 940.0, 969.0, 970.0, 984.0, 985.0):
            seen.append(await token.current())
        assert seen == ["1", "1", "1", "1", "1", "1", "4"]
        assert asked == [0.0, 940.0, 970.0, 985.0]

    async def test_once_it_has_ended_the_error_is_the_rows(self) -> None:
        now = [0.0]

        def function() -> Any:
            if now[0]:
                raise OSError("no network")
            return "1", 10.0

        token = RenewedToken(function, lambda: now[0])
        await token.current()
        now[0] = 11.0
        with pytest.raises(AsyncUDFError, match=r"token of http.session could not be renewed: OSError"):
            await token.current()

    async def test_a_call_that_is_cancelled_while_it_renews_leaves_it_to_the_next(self) -> None:
        token = RenewedToken(Tokens())
        one, two = asyncio.create_task(token.current()), asyncio.create_task(token.current())
        await asyncio.sleep(0)
        one.cancel()
        assert [await two, await token.current()] == ["1", "1"]


@pytest.mark.services
class TestSign:
    def test_each_request_is_signed_as_it_is_sent(self) -> None:
        async def handler(request: web.Request) -> web.Response:
            body = await request.read()
            expected = hashlib.sha256(f"{request.method} {request.url.path_qs}".encode() + body).hexdigest()
            return web.Response(text=str(request.headers["X-Signature"] == expected))

        async def sign(request: http.Request) -> dict[str, str]:
            path = "/" + request.url.split("/", 3)[3]
            assert request.body is not None
            return {"X-Signature": hashlib.sha256(f"{request.method} {path}".encode() + request.body).hexdigest()}

        async def send(n: int, session: aiohttp.ClientSession) -> list[str]:
            answers = []
            for options in ({"json": {"n": n}}, {"data": b"bytes"}, {"data": {"form": "x"}}, {}):
                async with session.post("/to", params={"n": str(n)}, **options) as response:  # type: ignore[arg-type]
                    answers.append(await response.text())
            return answers

        with serving(handler) as url:
            got = run_rows(send, [1, 2], clock="real", resources={"session": http.session(url, sign=sign)})
        assert got == [["True"] * 4] * 2

    def test_a_signature_goes_to_its_service_alone(self) -> None:
        async def handler(request: web.Request) -> web.Response:
            return web.Response(text=str("X-Signature" in request.headers))

        async def both(address: str, session: aiohttp.ClientSession) -> str:
            async with session.get(address) as response:
                return await response.text()

        with serving(handler) as own, serving(handler) as other:
            factory = http.session(own, sign=lambda request: {"X-Signature": "s"}, token=lambda: "t")
            got = run_rows(both, [f"{own}/", f"{other}/"], clock="real", resources={"session": factory})
        assert got == ["True", "False"]

    def test_it_needs_a_service(self) -> None:
        with pytest.raises(OptionError, match="token, token_env, sign and a function for headers need base_url"):
            http.session(sign=lambda request: {})
