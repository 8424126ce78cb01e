"""What a row costs, counted and not timed: function calls beside those of a plain program, callbacks and timers.

The plain program does the same calls in the same test run: for calls that suspend 100 tasks that each take the next
row, for calls that return at once a loop. It promises no order and no deadline, and counts nothing. A ratio of the two
counts is the same on every machine and, within 3%, on Python 3.11 to 3.13.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asyncudf import CircuitBreaker, RateLimit, ResultStore
from asyncudf._observe.counters import TaskCounters
from asyncudf.testing import MemoryStore, VirtualClockLoop
from benchmarks._engine import engine
from benchmarks._work import CAPACITY, instant, pulled, suspends_once
from tests.kit.limited import ThrottledError

ROWS = 2_000
NOTHING = 0.02  # per row: what happens per batch or per task, not per row
KINDS = {
    **dict.fromkeys(
        (asyncio.BaseEventLoop.call_soon.__code__, asyncio.BaseEventLoop.call_soon_threadsafe.__code__), "callbacks"
    ),
    asyncio.BaseEventLoop.call_at.__code__: "timers",
}


@dataclass(frozen=True)
class Cost:
    """Per row: calls of Python and of C functions, and how often the event loop got a callback or a timer."""

    calls: float
    callbacks: float
    timers: float


def counted(program: Callable[[], Callable[[], Awaitable[object]]]) -> Cost:
    """The cost of what `program` returns; the loop already runs when it is called."""
    counts: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counts["calls"] += 1
        if event == "call" and frame.f_code in KINDS:
            counts[KINDS[frame.f_code]] += 1

    async def main() -> None:
        run = program()
        sys.setprofile(count)
        try:
            await run()
        finally:
            sys.setprofile(None)

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    return Cost(*(counts[kind] / ROWS for kind in ("calls", "callbacks", "timers")))


def cost(function: Callable[[int], Any], mode: str = "ordered", **options: Any) -> Cost:
    """Of a row through the engine."""

    def program() -> Callable[[], Awaitable[object]]:
        counters = TaskCounters(asyncio.get_running_loop().time)
        return engine(function, range(ROWS), mode, counters=counters, **options).run

    return counted(program)


@functools.cache
def plain() -> Cost:
    """Of a row in the plain program, if the call suspends."""
    return counted(lambda: lambda: pulled(suspends_once, range(ROWS), CAPACITY))


@functools.cache
def plain_loop() -> Cost:
    """Of a row in the plain program, if the call returns at once."""

    async def loop() -> None:
        results = []
        for x in range(ROWS):
            results.append(await instant(x))  # noqa: PERF401 - a plain program need not be clever

    return counted(lambda: loop)


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_a_call_that_returns_at_once_costs_fifteen_function_calls_more_and_no_callback(mode: str) -> None:
    """At most 9 times the plain loop, which makes two function calls per row, and no callback. Today 8.3 and 7.3."""
    spent = cost(instant, mode)
    assert spent.calls <= 9 * plain_loop().calls
    assert spent.callbacks <= NOTHING
    assert spent.timers <= NOTHING


@pytest.mark.parametrize(("mode", "most"), [("ordered", 2.2), ("unordered", 2.1)])
def test_a_call_that_suspends_costs_as_many_callbacks_as_in_the_plain_program_and_no_timer(
    mode: str, most: float
) -> None:
    """At most 2.2 times the plain program's function calls (19 per row), 2.1 without order. Today 2.1 and 2.0."""
    spent = cost(suspends_once, mode)
    assert spent.calls <= most * plain().calls
    assert spent.callbacks <= 1.1 * plain().callbacks
    assert spent.timers <= NOTHING


# At most so many times the function calls of the plain program: about a sixth more than today.
LIMITS: dict[str, tuple[dict[str, Any], float]] = {
    "attempt_timeout": ({"attempt_timeout": 1.0}, 3.0),
    "rate limit": ({"rate_limit": RateLimit(10**9)}, 4.5),
    "breaker": ({"breaker": CircuitBreaker()}, 4.9),
    "job_capacity": ({"job_capacity": 100}, 4.0),
    "adaptive capacity": ({"capacity": "auto"}, 5.5),
    "max_calls": ({"max_calls": 10**6}, 4.0),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_holds_no_call_back_adds_no_task_and_no_timer_per_row(limit: str) -> None:
    options, most = LIMITS[limit]
    spent = cost(suspends_once, **options)
    assert spent.calls <= most * plain().calls
    assert spent.callbacks <= 1.5 * plain().callbacks
    assert spent.timers <= NOTHING


@pytest.mark.parametrize("options", [{}, {"rate_limit": RateLimit(10**9)}], ids=["no limit", "a limit"])
def test_rows_after_a_pause_cost_as_much_as_rows_before_any(options: dict[str, Any]) -> None:
    asked = 0

    async def throttled_once(x: int) -> int:
        nonlocal asked
        await asyncio.sleep(0)
        asked += 1
        if asked == 1:
            raise ThrottledError(0.1)
        return x

    # Unordered: in order the other rows would wait for the one that was throttled, which costs more.
    spent = cost(throttled_once, "unordered", capacity=1, **options)
    assert spent.calls <= 1.03 * cost(suspends_once, "unordered", capacity=1, **options).calls


def test_a_store_with_leases_adds_no_task_per_row(tmp_path: Path) -> None:
    """A miss is looked up, leased, looked up once more, and written: at most 8.9 times the plain program. Today 8."""
    missed = cost(suspends_once, store=ResultStore.disk(tmp_path), version="1")
    assert missed.calls <= 8.9 * plain().calls
    assert missed.callbacks <= 1.5 * plain().callbacks


def test_a_store_adds_no_task_per_row_and_a_stored_result_no_callback() -> None:
    """A miss with its write: at most 5.7 times the plain program, a hit 4.1 times the plain loop. Today 5.6 and 3.7.

    A hash that is copied, fed and read counts three calls of C; to make one counts one, and takes longer.
    """
    store: ResultStore = MemoryStore()
    missed = cost(suspends_once, store=store, version="1")
    assert missed.calls <= 5.7 * plain().calls
    assert missed.callbacks <= 1.2 * plain().callbacks
    found = cost(suspends_once, store=store, version="1")
    assert found.calls <= 4.1 * plain_loop().calls
    assert found.callbacks <= NOTHING


class AnsweredError(Exception):
    status = 500


@pytest.mark.parametrize(("error", "most"), [(ConnectionError, 7.3), (AnsweredError, 12.0)])
def test_the_error_of_an_attempt_is_looked_into_once(error: Callable[[int], Exception], most: float) -> None:
    """Today 6.4 times the plain program, and 10.5. It was 28: each error was searched several times for each fact."""

    async def fails(x: int) -> int:
        raise error(x)

    assert cost(fails, on_error="null").calls <= most * plain().calls
