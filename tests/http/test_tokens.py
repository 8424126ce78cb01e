"""Tokens of a session are renewed by one call at a time, before they end and once after a refusal; and signatures."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
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

    def test_a_redirect_that_is_followed_accepts_none(self) -> None:
        """Behind one for a missing slash, a service that refuses every token gave a column of NULLs."""

        async def handler(request: web.Request) -> web.Response:
            if not request.path.endswith("/"):
                return web.Response(status=307, headers={"Location": f"{request.path}/"})
            return web.Response(status=401)

        refused = r"401 .* accepts no token of http\.session, which is no row's fault"
        with serving(handler) as url, pytest.raises(FatalError, match=refused):
            run_rows(
                get, range(30), clock="real", resources=http.session(url, token=Tokens()), retry=RETRY, on_error="null"
            )

    @pytest.mark.parametrize("answer", ["a 404", "a redirect", "a redirect to another service"])
    @pytest.mark.parametrize("refusal", [401, 403])
    def test_answers_that_are_no_errors_of_the_token_accept_it(self, answer: str, refusal: int) -> None:
        """A look whether something is there, where it has gone, or at a file in another service: all are results."""
        used: Counter[str] = Counter()

        async def elsewhere(request: web.Request) -> web.Response:
            return web.Response(status=404)

        async def handler(request: web.Request) -> web.Response:
            token = request.headers["Authorization"]
            used[token] += 1
            status = refusal if used[token] > 10 else 404 if answer == "a 404" else 302
            return web.Response(status=status, headers={"Location": f"{other}/gone"})

        async def look(n: int, session: aiohttp.ClientSession) -> int:
            async with session.get(f"/{n}", allow_redirects=answer != "a redirect") as response:
                if response.status not in (404, 302):
                    await http.raise_for_status(response)
                return response.status

        with serving(handler) as url, serving(elsewhere) as other:
            tokens = Tokens(seconds=1000.0)
            resources = {"session": http.session(url, token=tokens)}
            found = run_rows(look, range(25), clock="real", resources=resources, retry=RETRY, capacity=1)
        assert (found, tokens.given) == ([302 if answer == "a redirect" else 404] * 25, 3)

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

    def test_also_without_a_retry_a_new_one_is_asked_for_before_the_task_fails(self) -> None:
        tokens = Tokens()
        with pytest.raises(FatalError, match=r"accepts no token of http\.session"):
            ask(lambda value: False, tokens, rows=5, capacity=1, on_error="null")
        assert tokens.given == 2

    async def test_the_error_does_not_hold_the_token(self) -> None:
        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=401)

        with serving(refuse) as url:
            async with http.session(url, token=lambda: "a-secret-token")() as session:
                with pytest.raises(http.RetryableError) as caught:
                    await http.raise_for_status(await session.get("/"))
        assert "a-secret-token" not in str(vars(caught.value))

    def test_without_a_retry_the_row_has_failed(self) -> None:
        with pytest.raises(AsyncUDFError, match="RetryableError: 401"):
            ask(lambda value: value == "2", Tokens(), capacity=1)


class Service:
    """Answers with the token, or refuses it: by `judge`, of the token and the number of the request, or for the row."""

    def __init__(self, judge: Callable[[str, int], int], own: Callable[[int], int] = lambda row: 0) -> None:
        self.judge, self.own = judge, own
        self.rows: Counter[int] = Counter()
        self.since: float | None = None  # the first refusal

    @property
    def requests(self) -> int:
        return self.rows.total()

    async def answer(self, request: web.Request) -> web.Response:
        row = int(request.path.strip("/"))
        self.rows[row] += 1
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if status := self.judge(token, self.requests):
            self.since = time.monotonic() if self.since is None else self.since
            return web.json_response({"message": "The security token is expired"}, status=status)
        status = self.own(row)
        return web.json_response({"message": "not yours"}, status=status) if status else web.Response(text=token)


def ask_service(service: Service, token: Any, rows: int = 200, **options: Any) -> Counter[str]:
    """How many rows have which result: "ok", or the status of the error."""
    given = {
        "on_error": "capture",
        "capacity": 10,
        "retry": RetryStrategy.fixed_delay(4, 0.02, retry_on=http.is_retryable),
    }
    with serving(service.answer) as url:
        resources = {"session": http.session(url, token=token)}
        got = run_rows(get, range(rows), clock="real", resources=resources, **{**given, **options})
    return Counter("ok" if row["error"] is None else str(row["error"]["status"]) for row in got)


def ended(after: int, status: int) -> Callable[[str, int], int]:
    """The token 1 ends with this request; services answer so with one status or another."""
    return lambda token, request: status if token == "1" and request > after else 0


@pytest.mark.services
@pytest.mark.parametrize("status", [400, 401, 403, 498])
class TestRefused:
    """By which status a service refuses a token that has ended: with a 403 half a table was NULL."""

    @pytest.mark.parametrize("capacity", [1, 10])
    def test_one_that_has_ended_costs_no_row(self, status: int, capacity: int) -> None:
        tokens, service = Tokens(), Service(ended(50, status))
        assert ask_service(service, tokens, capacity=capacity) == {"ok": 200}
        assert tokens.given == 2
        assert service.requests <= 200 + capacity, "each refused request is made again once"

    def test_a_new_one_that_is_accepted_late_costs_no_row(self, status: int) -> None:
        def judge(token: str, request: int) -> int:
            is_late = service.since is not None and time.monotonic() > service.since + 0.3
            return 0 if request <= 50 or (token == "2" and is_late) else status

        tokens, service = Tokens(), Service(judge)
        slow = RetryStrategy.exponential_backoff(6, initial=0.1, maximum=1.0, retry_on=http.is_retryable)
        assert ask_service(service, tokens, retry=slow) == {"ok": 200}
        assert tokens.given == 2, "asked for once"

    @pytest.mark.parametrize("on_error", ["raise", "null", "capture"])
    @pytest.mark.parametrize("retry", [RETRY, None], ids=["retry", "no retry"])
    def test_a_service_that_refuses_all_fails_the_task(self, status: int, on_error: str, retry: Any) -> None:
        tokens, service = Tokens(), Service(lambda token, request: status if request > 50 else 0)
        if on_error == "raise" and retry is None:
            return  # the first row fails the task
        with pytest.raises(FatalError, match=f"{status}.*accepts no token of http.session, which is no row's fault"):
            ask_service(service, tokens, on_error=on_error, retry=retry)
        assert tokens.given == 2

    def test_so_does_one_whose_token_is_the_refused_one_again(self, status: int) -> None:
        service = Service(lambda token, request: status if request > 50 else 0)
        with pytest.raises(FatalError, match="accepts no token"):
            ask_service(service, lambda: "1", on_error="null")

    def test_a_status_of_some_rows_is_theirs(self, status: int) -> None:
        tokens, service = Tokens(), Service(lambda token, request: 0, own=own_of(status))
        assert ask_service(service, tokens) == {"ok": 180, str(status): 20}
        assert tokens.given <= 12, "at most about one for each such row in flight at first"
        assert service.requests <= 260

    def test_also_while_the_token_ends(self, status: int) -> None:
        """Within its first minute an end may cost as many rows as were refused in turn before."""

        def token() -> str:
            given.append(service.requests)
            return str(int(service.requests <= 100))

        given: list[int] = []
        service = Service(lambda value, request: status if value == "1" and request > 100 else 0, own=own_of(status))
        assert ask_service(service, token)["ok"] >= 175
        assert len(given) <= 12


def own_of(status: int) -> Callable[[int], int]:
    return lambda row: status if row % 10 == 5 else 0


@pytest.mark.services
class TestRefusedOrNot:
    @pytest.mark.parametrize("status", [400, 403])
    def test_before_a_token_was_accepted_such_a_status_is_the_rows(self, status: int) -> None:
        tokens, service = Tokens(), Service(lambda token, request: 0, own=lambda row: status)
        assert ask_service(service, tokens, rows=50) == {str(status): 50}
        assert (tokens.given, service.requests) == (1, 50)

    def test_a_block_of_rows_that_are_refused_does_not_end_the_job(self) -> None:
        """All of a customer that has left: the answer does not speak of the token."""
        tokens, service = Tokens(), Service(lambda token, request: 0, own=lambda row: 403 * (50 <= row < 110))
        got = ask_service(service, tokens)
        assert got["ok"] == 140
        assert tokens.given <= 12

    def test_a_403_that_asks_for_fewer_calls_is_not_about_the_token(self) -> None:
        asked = itertools.count()

        async def handler(request: web.Request) -> web.Response:
            is_refused = next(asked) == 5
            headers = {"X-RateLimit-Remaining": "0", "Retry-After": "0"} if is_refused else {}
            return web.Response(status=403 if is_refused else 200, headers=headers)

        tokens = Tokens()
        with serving(handler) as url:
            resources = {"session": http.session(url, token=tokens)}
            run_rows(get, range(10), clock="real", resources=resources, capacity=1, retry=RETRY)
        assert tokens.given == 1

    def test_a_busy_service_has_not_accepted_anything(self) -> None:
        tokens, service = Tokens(), Service(lambda token, request: 503 if request < 9 else 403)
        assert ask_service(service, tokens, rows=5) == {"403": 5}
        assert tokens.given == 1

    def test_another_service_says_nothing_of_the_token(self) -> None:
        async def both(row: int, session: aiohttp.ClientSession) -> str:
            async with session.get(f"{other}/{row}" if row % 2 else f"/{row}") as response:
                return str(response.status)

        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=403, text=str("Authorization" in request.headers))

        tokens = Tokens()
        with serving(Service(lambda token, request: 0).answer) as own, serving(refuse) as other:
            resources = {"session": http.session(own, token=tokens)}
            assert run_rows(both, range(20), clock="real", resources=resources) == ["200", "403"] * 10
        assert tokens.given == 1

    @pytest.mark.parametrize("failure", [OSError("no network"), ValueError(), None])
    def test_a_new_one_that_cannot_be_had_fails_the_task(self, failure: Exception | None) -> None:
        """Each row asked for it, and was NULL."""
        asked = []

        async def token() -> Any:
            asked.append(1)
            await asyncio.sleep(0.02)
            if len(asked) > 1:
                if failure is not None:
                    raise failure
                return ""
            return "1"

        with pytest.raises(FatalError, match=r"token of http\.session could not be renewed: .*no row's fault"):
            ask_service(Service(ended(50, 403)), token, on_error="null", rows=100)
        assert len(asked) < 20, "calls that wait for the same renewal share its failure"

    def test_one_that_takes_longer_than_an_attempt_costs_no_row(self) -> None:
        """Each attempt began a renewal of its own, which was cancelled with it, until no row had an attempt left."""
        asked = []

        async def token() -> str:
            asked.append(1)
            if len(asked) > 1:
                await asyncio.sleep(0.4)
            return str(len(asked))

        got = ask_service(Service(ended(50, 401)), token, rows=100, attempt_timeout=0.25)
        assert (got, len(asked)) == ({"ok": 100}, 2)

    def test_one_that_can_be_had_at_the_second_time_costs_no_row(self) -> None:
        asked = []

        async def token() -> str:
            asked.append(1)
            await asyncio.sleep(0.01)
            if len(asked) == 2:
                raise OSError("no network")
            return str(len(asked))

        assert ask_service(Service(ended(50, 403)), token) == {"ok": 200}


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

    async def test_a_status_of_rows_makes_for_one_renewal_a_minute(self) -> None:
        now, tokens = [0.0], itertools.count()
        token = RenewedToken(lambda: str(next(tokens)), lambda: now[0])

        async def answered(status: int, before: Any = None) -> Any:
            call: Any = SimpleNamespace(last_error=SimpleNamespace(refused=before))
            await token.current()
            return token.answered(token.number, SimpleNamespace(status=status, headers={}), call)

        assert await answered(200) is None
        renewals = []
        for minute in range(3):
            now[0], first = 100.0 * minute, int(await token.current())
            refused = await answered(403)
            assert refused is not None, "the token may have ended"
            while refused is not None:  # the row's next attempts, while others are accepted
                assert await answered(200) is None
                refused = await answered(403, refused)
            for _ in range(20):
                assert await answered(200) is None
                assert await answered(403) is None, "the row's"
            assert await answered(200) is None
            renewals.append(int(await token.current()) - first)
        assert renewals == [1, 1, 1]

    async def test_a_call_that_is_cancelled_while_it_renews_leaves_it_to_the_next(self) -> None:
        """Also the renewal that it began: what it had sent for a new token may count once."""
        begun = []

        async def function() -> str:
            begun.append(1)
            await asyncio.sleep(0.01)
            return str(len(begun))

        token = RenewedToken(function)
        one, two = asyncio.create_task(token.current()), asyncio.create_task(token.current())
        await asyncio.sleep(0)
        one.cancel()
        assert [await two, await token.current()] == ["1", "1"]
        assert len(begun) == 1

    async def test_one_that_takes_too_long_has_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("asyncudf.http._tokens.LONGEST", 0.01)
        now = [0.0]

        async def function() -> Any:
            if now[0]:
                await asyncio.Event().wait()
            return "1", 10.0

        token = RenewedToken(function, lambda: now[0])
        await token.current()
        now[0] = 11.0
        for _ in range(2):
            with pytest.raises(AsyncUDFError, match=r"token of http.session could not be renewed: TimeoutError"):
                await token.current()

    @pytest.mark.parametrize("ending", [SystemExit(), KeyboardInterrupt(), asyncio.CancelledError()])
    async def test_a_function_that_ends_the_process_ends_the_renewal(self, ending: BaseException) -> None:
        async def function() -> str:
            raise ending

        with pytest.raises(AsyncUDFError, match=f"could not be renewed: {type(ending).__name__}"):
            await RenewedToken(function).current()

    async def test_none_goes_on_after_the_session(self) -> None:
        ended = []

        async def function() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)
            return ""

        opening = asyncio.create_task(http.session("http://127.0.0.1:1", token=function)().__aenter__())
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert ended == [1]


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
