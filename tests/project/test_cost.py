"""What a row costs, counted and not timed: the same on every machine, so that nobody makes it slower unseen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import CircuitBreaker, RateLimit, ResultStore
from asyncudf._metrics.counters import TaskCounters
from asyncudf.testing import MemoryStore, VirtualClockLoop
from benchmarks._engine import engine
from benchmarks._work import instant, suspends_once
from tests.kit.limited import ThrottledError

ROWS = 2_000


class CountingLoop(VirtualClockLoop):
    """Counts what the event loop is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks = self.timers = 0

    def call_soon(self, *args: Any, **kwargs: Any) -> Any:
        self.callbacks += 1
        return super().call_soon(*args, **kwargs)

    def call_at(self, *args: Any, **kwargs: Any) -> Any:
        self.timers += 1
        return super().call_at(*args, **kwargs)


def cost(function: Callable[[int], Any], mode: str, **options: Any) -> dict[str, float]:
    """Calls of Python and of C functions, callbacks and timers per row."""
    loop, calls = CountingLoop(), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    async def main() -> None:
        operator = engine(function, range(ROWS), mode, counters=TaskCounters(loop.time), **options)
        sys.setprofile(count)
        try:
            await operator.run()
        finally:
            sys.setprofile(None)

    before = loop.callbacks, loop.timers
    loop.run_until_complete(main())
    loop.close()
    return {
        "calls": calls / ROWS,
        "callbacks": (loop.callbacks - before[0]) / ROWS,
        "timers": (loop.timers - before[1]) / ROWS,
    }


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_a_call_that_returns_at_once_costs_a_few_calls_and_no_callback(mode: str) -> None:
    spent = cost(instant, mode)
    assert spent["calls"] <= 8
    assert spent["callbacks"] <= 0.02
    assert spent["timers"] <= 0.01


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_a_call_that_suspends_costs_one_callback_and_no_timer(mode: str) -> None:
    spent = cost(suspends_once, mode)
    assert spent["calls"] <= (47 if mode == "ordered" else 43)  # 17 of them are the event loop's and the function's own
    assert spent["callbacks"] <= 1.2
    assert spent["timers"] <= 0.01


LIMITS: dict[str, tuple[dict[str, Any], int]] = {
    "attempt_timeout": ({"attempt_timeout": 1.0}, 53),
    "rate limit": ({"rate_limit": RateLimit(10**9)}, 77),
    "breaker": ({"breaker": CircuitBreaker()}, 83),
    "job_capacity": ({"job_capacity": 100}, 68),
    "adaptive capacity": ({"capacity": "auto"}, 95),
    "max_calls": ({"max_calls": 10**6}, 69),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_lets_calls_in_does_not_take_them_off_the_short_path(limit: str) -> None:
    options, most = LIMITS[limit]
    spent = cost(suspends_once, "ordered", **options)
    assert spent["calls"] <= most
    assert spent["callbacks"] <= 1.5


@pytest.mark.parametrize("options", [{}, {"rate_limit": RateLimit(10**9)}], ids=["no limit", "a limit"])
def test_nor_does_a_pause_that_is_over(options: dict[str, Any]) -> None:
    asked = 0

    async def throttled_once(x: int) -> int:
        nonlocal asked
        await asyncio.sleep(0)
        asked += 1
        if asked == 1:
            raise ThrottledError(0.1)
        return x

    spent = cost(throttled_once, "ordered", capacity=1, **options)
    before = cost(suspends_once, "ordered", capacity=1, **options)
    assert spent["calls"] <= before["calls"] + 1


def test_nor_does_a_store() -> None:
    store: ResultStore = MemoryStore()
    missed = cost(suspends_once, "ordered", store=store, version="1")
    assert missed["calls"] <= 108
    assert missed["callbacks"] <= 1.3
    found = cost(suspends_once, "ordered", store=store, version="1")
    assert found["calls"] <= 9.5
    assert found["callbacks"] <= 0.05
