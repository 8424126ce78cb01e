"""A service that refuses all calls ends the job when it has done so for as long as a row may take."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from asyncudf import AsyncUDFError, CircuitBreaker, RetryStrategy
from asyncudf.testing import run_rows
from tests.kit.engines import Engine
from tests.kit.errors import task_fails
from tests.kit.limited import Service, ThrottledError, now

POLICIES = pytest.mark.parametrize("on_error", ["null", "capture", "dead_letter"])


def refusing(wait: float | None, *, seconds: float = 0.1, until: float = 1e9) -> Service:
    return Service(seconds, down=(0, until), error=ThrottledError(wait))


class TestTheEnd:
    @POLICIES
    @pytest.mark.parametrize(
        "more",
        [{}, {"retry": RetryStrategy.fixed_delay(3, 1.0)}, {"job_capacity": 20}, {"breaker": CircuitBreaker()}],
        ids=["plain", "retry", "gates", "breaker"],
    )
    def test_comes_with_one_error(self, on_error: Any, more: Any) -> None:
        """2,000 rows took 83 hours: each of them waited until its own deadline."""
        service = refusing(2)
        with task_fails() as caught:
            run_rows(service, range(2000), capacity=50, on_error=on_error, **more)
        said = str(caught.value)
        assert "the service of Service has refused all calls for 180 s, as long as a row may take" in said
        assert "ThrottledError: too many requests (status 429, asks to wait 2 s)" in said
        assert 180 <= service.times[-1] <= 185
        assert len(service.calls) < 500

    @pytest.mark.parametrize("wait", [None, 0.5, 60, 170])
    @pytest.mark.parametrize("timeout", [20, 180, 7200, None])
    @pytest.mark.parametrize("rows", [1, 300])
    def test_comes_in_time_for_every_wait(self, wait: float, timeout: float | None, rows: int) -> None:
        """One row may come to its own deadline before; then it ends the job."""
        service = refusing(wait)
        with pytest.raises(AsyncUDFError, match="ThrottledError"):
            run_rows(service, range(rows), capacity=50, timeout=timeout)
        assert service.times[-1] <= max(120, min(timeout or 600, 600)) + 2 * (wait or 1) + 1

    @pytest.mark.parametrize("rows", [1, 300])
    def test_comes_without_a_deadline_too(self, rows: int) -> None:
        """It never came."""
        service = refusing(1)
        with task_fails("has refused all calls for 600 s, as long as it may; .*status 429"):
            run_rows(service, range(rows), timeout=None)
        assert 600 <= service.times[-1] <= 605

    def test_does_not_come_for_one_row_that_has_a_deadline_before(self) -> None:
        """The last row of a table was refused for ever, and the results of all others were lost."""
        service = Service(0.1, bad=[7], error=ThrottledError(0.5))
        results = run_rows(service, range(8), timeout=30, on_error="capture")
        assert [one["value"] for one in results] == [0.0] * 7 + [None]
        assert results[7]["error"]["type"] == "ThrottledError"
        two = Service(0.1, bad=[6, 7], error=ThrottledError(0.5))
        with task_fails("has refused all calls for 120 s"):
            run_rows(two, range(8), timeout=30, on_error="capture")

    def test_is_not_delayed_by_outages_and_errors_of_the_function(self) -> None:
        """Neither of them shows that the service accepts calls."""
        errors = [ThrottledError(1), ConnectionError("down"), KeyError("x")]
        calls: list[float] = []

        async def ask(x: int) -> int:
            calls.append(now())
            await asyncio.sleep(0.1)
            raise errors[len(calls) % 3]

        with task_fails("has refused all calls"):
            run_rows(ask, range(10_000), capacity=5, on_error="null")
        assert calls[-1] <= 200


class TestTheJobGoesOn:
    @pytest.mark.parametrize("timeout", [2, 30])
    @pytest.mark.parametrize("capacity", [5, 100])
    def test_while_the_quota_of_a_minute_is_used_up(self, timeout: float, capacity: int) -> None:
        """However short a timeout is: it is given back what all calls pause."""
        made: Counter[float] = Counter()

        async def ask(x: int) -> int:
            made[minute := now() // 60] += 1
            is_refused = made[minute] > 1000
            await asyncio.sleep(0.05)
            if is_refused:
                raise ThrottledError
            return x

        assert run_rows(ask, range(2500), capacity=capacity, timeout=timeout) == [*range(2500)]

    def test_when_nobody_has_called_for_long(self) -> None:
        """A refusal of an hour ago says nothing of today."""
        service = Service(0.0, bad=["old"], error=ThrottledError(300))
        refused = iter([ThrottledError(1)])

        async def ask(x: str) -> float:
            if x == "new" and (error := next(refused, None)) is not None:
                raise error
            return await service(x)

        engine = Engine(ask, on_error="null")
        engine.feed(["old"])
        engine.loop.call_at(3600, engine.feed, ["new"])
        engine.loop.call_at(3700, engine.end)
        engine.run()
        assert engine.output == [None, 3601]

    @pytest.mark.parametrize("seconds", [150, 700])
    @pytest.mark.parametrize("capacity", [2, 50])
    def test_while_a_call_is_answered_late(self, seconds: float, capacity: int) -> None:
        """The service takes one call at a time: the others are refused for longer than a row may take."""
        running = 0

        async def ask(x: int) -> int:
            nonlocal running
            if running:
                raise ThrottledError(5)
            running += 1
            await asyncio.sleep(seconds)
            running -= 1
            return x

        assert sorted(run_rows(ask, range(4), capacity=capacity, timeout=None, output_mode="unordered")) == [0, 1, 2, 3]

    @pytest.mark.parametrize("more", [{}, {"job_capacity": 100}], ids=["open", "gates"])
    def test_while_other_answers_come(self, more: Any) -> None:
        """A 404 is one, and a result that is not good enough."""

        class NotFoundError(Exception):
            status = 404

        async def ask(x: int) -> int:
            await asyncio.sleep(10)
            if x == 0 and now() < 1000:
                raise ThrottledError(20)
            if x:
                raise NotFoundError
            return x

        got = run_rows(ask, range(200), capacity=2, timeout=None, on_error="null", **more)
        assert got == [0, *[None] * 199]

        async def poll(x: int) -> int:
            await asyncio.sleep(1)
            if x == 0 and now() < 1000:
                raise ThrottledError(20)
            return -1 if now() < 1000 else x

        retry = RetryStrategy.fixed_delay(10_000, 5.0, retry_if_result=lambda result: result < 0)
        assert run_rows(poll, range(2), timeout=2000, retry=retry, **more) == [0, 1]

    @pytest.mark.parametrize("more", [{}, {"job_capacity": 100}], ids=["open", "gates"])
    def test_while_a_row_now_and_then_is_accepted(self, more: Any) -> None:
        """Of a quota of one call in 100 s."""
        last = -100.0

        async def ask(x: int) -> int:
            nonlocal last
            await asyncio.sleep(0.1)
            if now() - last < 100:
                raise ThrottledError(5)
            last = now()
            return x

        assert run_rows(ask, range(10), capacity=1, timeout=None, **more) == [*range(10)]


def test_a_row_without_a_deadline_is_refused_for_an_hour_at_most() -> None:
    """Other rows are accepted, so the job goes on; it never ended."""

    async def ask(x: int) -> int:
        await asyncio.sleep(10)
        if x == 0:
            raise ThrottledError(100)
        return x

    got = run_rows(ask, range(1000), capacity=2, timeout=None, on_error="capture", output_mode="unordered")
    assert sorted(row["value"] for row in got if row["error"] is None) == [*range(1, 1000)]
    (error,) = [row["error"] for row in got if row["error"] is not None]
    assert (error["type"], error["status"], error["attempts"]) == ("ThrottledError", 429, 33)
    assert 3500 < error["elapsed"] <= 3620


def test_a_call_of_hours_may_be_refused_once() -> None:
    """The hour begins with the first refusal."""
    calls = 0

    async def ask(x: int) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(3 * 3600)
        if calls == 1:
            raise ThrottledError(60)
        return x

    assert run_rows(ask, [1], timeout=None) == [1]
