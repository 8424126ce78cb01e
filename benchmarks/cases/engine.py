"""P9 and P23: the operator alone, without Spark.

P9 counts what a row costs: calls of functions, bytecodes, and instructions of the processor, if `perf` can count them
here. A count is nearly the same in every round and on every machine with the same Python. The call gives way to the
event loop once, as every real call does; `instant` returns at once, and so do the functions of columns, which begin and
end with an Arrow array. `bare` is a program of a hundred tasks that take the next row each. Lines `with ...` have one
option more than `ordered`. Where one row in ten fails it does at its first call: the call is made again, or the row is
null. The limits let every call in; the store is a dict in memory or LMDB on disk, which is empty or has all results.

P23 is the time of the test kit's `run_rows` beside `asyncio.gather`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from asyncudf.testing import run_rows

from .._harness import Case, Sample, Settings, System, Target
from .._work import batches, instant, run, settle_collector
from ..counts import PERF, PROGRAMS, ROWS, counted, counter, instructions

__all__ = ("P9", "P23")

KIT_ROWS = 100_000
CALLS, BYTECODES, INSTRUCTIONS = "function calls/row", "bytecodes/row", "instructions/row"


@contextlib.contextmanager
def rows(settings: Settings) -> Iterator[list[System]]:
    yield [System(name, partial(account, name)) for name in PROGRAMS]


def account(name: str) -> Sample:
    found = counted(name)
    values = {CALLS: found.calls.total() / ROWS, BYTECODES: found.bytecodes.total() / ROWS}
    if counter() == PERF:  # valgrind would take minutes
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
    how="calls and bytecodes on the virtual clock, instructions on uvloop",
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
