"""Limits that the service tells in its answers: what a job makes of them, of any client, and of lies.

The troubles of users of other libraries are here by their numbers: pixeltable #741, #788 and #1176, curator #233 and
req_llm #522.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from asyncudf import RateLimit, RetryStrategy, http
from asyncudf.testing import run_rows
from tests.kit.engines import Engine
from tests.kit.http_services import serving
from tests.kit.limited import now

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
REQUESTS = "x-ratelimit-{}-requests"


def told(limit: object, left: object = None, reset: object = None) -> dict[str, str]:
    parts = {"limit": limit, "remaining": left, "reset": reset}
    return {REQUESTS.format(part): str(value) for part, value in parts.items() if value is not None}


class RefusedError(Exception):
    """What a client raises for a 429."""

    status = 429

    def __init__(self, **headers: str) -> None:
        super().__init__("too many requests")
        self.headers = headers


OPENAI = RateLimit.from_headers("openai", start=60, at_most=6_000, burst=1)


def begins(answers: Any, rows: int = 40, limit: RateLimit = OPENAI, **options: Any) -> list[float]:
    """When calls begin whose answers tell this: headers, or a function of the row that gives them."""

    async def call(row: int) -> float:
        began = now()
        await asyncio.sleep(0.1)
        http.tell_limits(answers(row) if callable(answers) else answers)
        return began

    return run_rows(call, range(rows), rate_limit=limit, **options)


def test_the_first_answer_tells_the_limit_and_later_ones_change_it() -> None:
    """curator #233: nobody has to find out the limits of an account, nor that they were raised."""
    times = begins(lambda row: told(600, 600) if row < 20 else told(1200, 1200))
    assert times[:3] == pytest.approx([0.0, 0.1, 0.2])  # from one a second to ten
    assert times[39] - times[30] == pytest.approx(9 * 0.05, abs=0.01)


def test_a_limit_of_the_users_own_bounds_what_is_told() -> None:
    times = begins(told(1e9, 1e9), limit=RateLimit.from_headers("openai", start=60, at_most=120, burst=1))
    assert times[-1] == pytest.approx(39 * 0.5, rel=0.03)


def test_tokens_and_requests_are_learned_from_one_answer() -> None:
    """With many tokens a call the requests are not the limit; both hold."""
    both = {**told(600, 600), "x-ratelimit-limit-tokens": "6000", "x-ratelimit-remaining-tokens": "6000"}
    tokens = RateLimit.from_headers("openai", "tokens", start=600, cost=lambda row: 50, burst=50)
    times = begins(both, limit=[OPENAI, tokens], rows=20)  # type: ignore[arg-type]
    assert times[-1] == pytest.approx(19 * 0.5, rel=0.1)


def test_headers_of_refusals_count() -> None:
    """req_llm #522, pixeltable #741: only the headers say how long to wait, and those of errors were thrown away."""
    calls = []

    async def call(row: int) -> float:
        calls.append(now())
        if len(calls) == 1:
            raise RefusedError(**told(600, 0, "100ms"))
        return now()

    times = run_rows(call, range(30), rate_limit=OPENAI)
    assert times[-1] < 8.0  # at one a second it took half a minute


def test_a_late_answer_does_not_undo_a_newer_one() -> None:
    """pixeltable #741: answers come out of order, and what an older one tells is no longer so."""

    async def call(row: int) -> float:
        began = now()
        await asyncio.sleep(5.0 if row == 0 else 0.1)
        http.tell_limits(told(6, 0, "60s") if row == 0 else told(600, 600))
        return began

    times = run_rows(call, range(200), rate_limit=OPENAI, capacity=20)
    assert times[-1] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(
    ("dialect", "names"),
    [("openai", "x-ratelimit-{}-requests"), ("anthropic", "anthropic-ratelimit-requests-{}")],
)
def test_what_is_used_up_comes_back_bit_by_bit(dialect: Any, names: str) -> None:
    """Where nothing is left calls go on at a tenth of the pace, and do not wait for the next minute."""
    nothing_left = {names.format("limit"): "600", names.format("remaining"): "0"}
    limit = RateLimit.from_headers(dialect, start=600, burst=1)
    assert begins(nothing_left, rows=4, limit=limit) == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_what_is_left_counts_though_the_limit_is_not_told() -> None:
    """pixeltable #788: some services leave headers out."""
    left = {REQUESTS.format("remaining"): "0", REQUESTS.format("reset"): "10s"}
    times = begins(lambda row: left if row == 4 else {}, limit=RateLimit.from_headers("openai", start=600, burst=1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) > 0.15
    assert times[-1] < 30.0


def test_a_reset_that_is_longer_than_the_limit_says_is_believed() -> None:
    """pixeltable #1176: waits were computed from the limit, far too short, and one refusal followed another.

    So computed, 200 calls would begin in the 20 seconds in which all are refused.
    """
    refused = []

    async def call(row: int) -> int:
        if now() < 20.0:
            refused.append(now())
            raise RefusedError(**told(600, 0, "20m0s"))
        http.tell_limits(told(600, 600))
        return row

    retry = RetryStrategy.exponential_backoff(3, initial=1.0, maximum=10.0, max_retry_after=60.0)
    assert run_rows(call, range(5), rate_limit=OPENAI, timeout=3600.0, retry=retry) == [0, 1, 2, 3, 4]
    assert len(refused) <= 10


LIES = [told("-1", "-1", "0"), told("NaN"), told("0"), told("inf", "-5", "-3s"), told("many", "x", "soon")]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_changes_nothing_is_counted_and_warned_of_once(
    lie: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "asyncudf")

    async def call(row: int) -> float:
        http.tell_limits(lie)
        return now()

    engine = Engine(call, rate_limit=OPENAI)
    engine.feed(range(30))
    engine.end()
    engine.run()
    assert engine.output == pytest.approx([float(row) for row in range(30)], abs=0.7)
    engine.look()
    (figures,) = engine.counted.values()
    assert figures["metrics"]["senseless_answers"] == 30
    warned = [one.message for one in caplog.records if "make no sense" in one.message]
    assert len(warned) == 1
    assert 'RateLimit.from_headers("openai"): x-ratelimit-limit-requests' in warned[0]


@pytest.mark.parametrize("error", [ValueError("the answer is closed"), asyncio.CancelledError()])
def test_headers_that_cannot_be_read_are_no_fault_of_the_task(error: BaseException) -> None:
    """It ended with the error of the headers, or of the function that reads them."""

    class UnreadableError(Exception):
        status, headers = 500, {"x-left": "5"}

    def ours(headers: Any) -> dict[str, Any]:
        raise error

    class Closed:
        def items(self) -> Any:
            raise error

    async def call(row: int) -> None:
        failed = UnreadableError()
        if row:
            failed.headers = Closed()  # type: ignore[assignment]
        raise failed

    limit = RateLimit.from_headers(ours, start=60)
    assert run_rows(call, [0, 1], on_error="null", rate_limit=limit) == [None, None]


def test_it_says_when_nothing_was_told(caplog: pytest.LogCaptureFixture) -> None:
    """A client whose headers nobody tells: else the job goes on at its start for ever."""
    caplog.set_level(logging.WARNING, "asyncudf")
    begins({"content-type": "text/plain"}, rows=30)
    (warned,) = caplog.records
    assert warned.message == (
        'call has learned nothing of RateLimit.from_headers("openai") in 20 answers: an http.session tells its headers '
        "by itself, for other clients call http.tell_limits(headers)"
    )


def test_a_function_of_ones_own_reads_what_no_dialect_knows() -> None:
    def ours(headers: Any) -> dict[str, Any]:
        return {"limit": headers["x-quota"], "per": 1.0}

    limit = RateLimit.from_headers(ours, start=1, per="second", burst=1)
    assert begins({"X-Quota": "20"}, limit=limit)[-1] == pytest.approx(0.1 + 38 * 0.05 / 0.95, rel=0.05)


def test_telling_does_nothing_where_no_limit_is_learned_or_no_call_is_made() -> None:
    http.tell_limits(told(5))
    assert begins(told(1), limit=RateLimit(1000))[-1] < 0.2

    async def call(row: int) -> float:
        contextvars.Context().run(http.tell_limits, told(1))  # as a task of the client's own
        return now()

    assert run_rows(call, [1], rate_limit=OPENAI) == [0.0]
    with pytest.raises(Exception, match="tell_limits takes the headers of an answer"):
        begins(7)


@pytest.mark.parametrize(("reset", "waited"), [("40m0s", 2400.0), ("600h", 3600.0)])
def test_when_nothing_is_left_of_a_window_calls_wait_an_hour_at_most(
    reset: str, waited: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset that is further away is perhaps a lie, so a call shows whether it is; the log says how long it takes."""

    def ours(headers: Any) -> dict[str, Any]:
        return {"limit": 600, "remaining": headers["left"], "reset": reset}

    caplog.set_level(logging.WARNING, "asyncudf")
    limit = RateLimit.from_headers(ours, start=60, burst=1)
    times = begins(lambda row: {"left": "600" if row else "0"}, rows=4, limit=limit, capacity=1)
    assert times[1] == pytest.approx(waited, rel=0.01)
    assert times[-1] < waited + 60.0
    warned, *later = caplog.records
    assert all("has waited for" in record.message for record in later)
    assert warned.message == (
        f"calls of call wait for {waited:.0f} s, as the service tells that nothing is left of "
        "RateLimit.from_headers(ours) until then"
    )


# Real clients, on real sockets.


async def answered(request: web.Request) -> web.Response:
    headers = told(6_000, 5_999, "10ms")
    if request.path.endswith("messages"):
        headers = {"anthropic-ratelimit-requests-limit": "6000", "anthropic-ratelimit-requests-remaining": "5999"}
        body: dict[str, Any] = {
            "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
            "content": [{"type": "text", "text": "good"}],
        }  # fmt: skip
    else:
        text = {"type": "output_text", "text": "good", "annotations": []}
        message = {"id": "1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        body = {"id": "1", "object": "response", "created_at": 0, "model": "m", "output": [message]}
    if request.path.startswith("/busy"):
        return web.json_response({"error": {"message": "no"}}, status=429, headers={**headers, "retry-after": "0"})
    return web.json_response(body, headers=headers)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with serving(answered) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("ANTHROPIC_API_KEY", "k")
        yield url


def on_the_page() -> dict[str, Any]:
    """What the blocks of the page about limits define: clients that tell headers."""
    names: dict[str, Any] = {"http": http}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if "event_hooks" in block:
            exec(block, names)
    return names


NAMES = on_the_page()


async def by_openai(url: str) -> None:
    async with NAMES["openai_client"]() as client:
        client.base_url = url
        answer = await client.responses.create(model="a-model", input="Hei")
        assert answer.output_text == "good"


async def by_anthropic(url: str) -> None:
    async with NAMES["anthropic_client"]() as client:
        client.base_url = url
        messages = [{"role": "user", "content": "Hei"}]
        answer = await client.messages.create(model="a-model", max_tokens=500, messages=messages)
        assert answer.content[0].text == "good"


async def by_httpx(url: str) -> None:
    async with NAMES["httpx_client"]() as client:
        (await client.get(url)).raise_for_status()


async def by_aiohttp(url: str) -> None:
    async with NAMES["aiohttp_session"]() as session, session.get(url) as response:
        response.raise_for_status()


CLIENTS = [by_openai, by_anthropic, by_httpx, by_aiohttp]


@pytest.mark.services
@pytest.mark.parametrize("path", ["/v1", "/busy"])
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_tell_by_one_line_and_their_errors_by_themselves(service: str, client: Any, path: str) -> None:
    """At the start of six a minute five calls took forty seconds."""
    dialect = "anthropic" if client is by_anthropic else "openai"
    is_first = True

    async def call(row: int) -> int:
        nonlocal is_first
        if path == "/v1" or is_first:
            is_first = False
            await client(f"{service}{path}")
        return row

    limit = RateLimit.from_headers(dialect, start=6, at_most=60_000)
    assert run_rows(call, range(5), clock="real", rate_limit=limit, timeout=60.0) == [0, 1, 2, 3, 4]


@pytest.mark.services
@pytest.mark.parametrize("path", ["/v1", "/busy"])
def test_a_session_tells_by_itself(service: str, path: str) -> None:
    is_first = True

    async def call(row: int, session: aiohttp.ClientSession) -> int:
        nonlocal is_first
        if path == "/v1" or is_first:
            is_first = False
            async with session.get(path) as response:
                await http.raise_for_status(response)
        return row

    limit = RateLimit.from_headers("openai", start=6, at_most=60_000)
    session = http.session(service)
    assert run_rows(call, range(5), clock="real", rate_limit=limit, resources=session) == [0, 1, 2, 3, 4]
