"""P9 and P23: the operator alone, without Spark.

P9 counts what a row costs: calls of functions, bytecodes, and instructions of the processor, if `perf` can count them
here. A count is nearly the same in every round and on every machine with the same Python. The call gives way to the
event loop once, as every real call does; `instant` returns at once. `bare` is a program of a hundred tasks that take
the next row each. Lines `with ...` have one option more than `ordered`. Where rows fail, one in ten does at its first
call: the call is made again, or the row is null. The limits let every call in; the store is a dict in memory, which is
empty or has all results.

P23 is the time of the test kit's `run_rows` beside `asyncio.gather`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from asyncudf import CircuitBreaker, RateLimit, RetryStrategy
from asyncudf.testing import MemoryStore, run_rows

from .._harness import Case, Sample, Settings, System, Target
from .._work import batches, instant, run, settle_collector, suspends_once
from ..counts import PERF, PROGRAMS, ROWS, counter, instructions, taken, through_engine

__all__ = ("P9", "P23")

KIT_ROWS = 100_000
CALLS, BYTECODES, INSTRUCTIONS = "function calls/row", "bytecodes/row", "instructions/row"


class Failing:
    """A service that fails at the first call of each tenth row."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    async def __call__(self, x: int) -> int:
        await asyncio.sleep(0)
        if x % 10 == 0 and x not in self.failed:
            self.failed.add(x)
            raise ConnectionError
        return x


RETRY = partial(RetryStrategy.fixed_delay, attempts=4, delay=0.0)
OPTIONS: dict[str, tuple[Callable[[], Callable[[int], Awaitable[int]]], Callable[[], dict[str, Any]]]] = {
    "retry": (lambda: suspends_once, lambda: {"retry": RETRY()}),
    "retry, one row in ten fails": (Failing, lambda: {"retry": RETRY()}),
    'on_error="null"': (lambda: suspends_once, lambda: {"on_error": "null"}),
    'on_error="null", one row in ten fails': (Failing, lambda: {"on_error": "null"}),
    "attempt_timeout": (lambda: suspends_once, lambda: {"attempt_timeout": 1.0}),
    "rate_limit": (lambda: suspends_once, lambda: {"rate_limit": RateLimit(10**9)}),
    "breaker": (lambda: suspends_once, lambda: {"breaker": CircuitBreaker()}),
    "job_capacity": (lambda: suspends_once, lambda: {"job_capacity": 1_000}),
    'capacity="auto"': (lambda: suspends_once, lambda: {"capacity": "auto"}),
    "store, missed": (lambda: suspends_once, lambda: {"store": MemoryStore(), "version": "1"}),
}


@contextlib.contextmanager
def rows(settings: Settings) -> Iterator[list[System]]:
    filled = {"store": MemoryStore(), "version": "1"}
    yield [
        *(System(name, partial(counted, program, name)) for name, program in PROGRAMS.items()),
        *(System(f"with {name}", partial(with_option, *made)) for name, made in OPTIONS.items()),
        System("with store, found", partial(with_option, lambda: suspends_once, lambda: filled)),
    ]


def with_option(
    function: Callable[[], Callable[[int], Awaitable[int]]], options: Callable[[], dict[str, Any]]
) -> Sample:
    async def program(rows: int) -> None:
        await through_engine(function(), "ordered", rows, **options())

    return counted(program)


def counted(program: Callable[[int], Awaitable[Any]], name: str = "") -> Sample:
    account = run(taken(program, ROWS), asyncio.new_event_loop)
    values = {CALLS: account.calls.total() / ROWS, BYTECODES: account.bytecodes.total() / ROWS}
    if name and counter() == PERF:  # valgrind would take minutes
        values[INSTRUCTIONS] = instructions(name)
    return Sample(values)


@contextlib.contextmanager
def test_kit(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(KIT_ROWS)

    async def untyped(x):  # type: ignore[no-untyped-def]
        return x

    yield [
        System("run_rows", partial(kit, instant, rows)),
        System("run_rows, a function without types", partial(kit, untyped, rows)),
        System("gather", partial(gather, rows)),
    ]


def kit(function: Callable[[int], Awaitable[int]], rows: int) -> Sample:
    settle_collector()
    start = time.perf_counter()
    assert len(run_rows(function, range(rows))) == rows
    return Sample({"us/row": (time.perf_counter() - start) / rows * 1e6})


def gather(rows: int) -> Sample:
    """Over batches of 10,000 rows, on asyncio's loop, which the kit's virtual clock is made of."""

    async def main() -> None:
        for batch in batches(range(rows)):
            await asyncio.gather(*map(instant, batch))

    settle_collector()
    start = time.perf_counter()
    run(main(), asyncio.new_event_loop)
    return Sample({"us/row": (time.perf_counter() - start) / rows * 1e6})


P9 = Case(
    "P9",
    "what the operator does for a row, counted",
    rows,
    (
        Target(INSTRUCTIONS, "ordered", most=3.0, against="bare"),
        Target(INSTRUCTIONS, "unordered", most=3.0, against="bare"),
        Target(BYTECODES, "ordered", most=3.0, against="bare"),
        Target(BYTECODES, "unordered", most=3.0, against="bare"),
        Target(CALLS, "ordered, instant", most=3.4, against="bare, instant", id="P1"),
    ),
    minutes=1.3,
    how="calls and bytecodes on asyncio's loop, instructions on uvloop",
)
P23 = Case(
    "P23",
    "the test kit, an instant function",
    test_kit,
    tuple(
        Target("us/row", name, most=0.3, against="gather")
        for name in ("run_rows", "run_rows, a function without types")
    ),
    minutes=0.2,
)
