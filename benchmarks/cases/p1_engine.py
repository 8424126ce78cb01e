"""P1: what the engine costs per row, alone: an instantly returning function, deadlines on, no Spark.

`gather` is the idiom that it replaces, `asyncio.gather` over each batch of 10,000 rows. The function that suspends
once gives way to the event loop once, as every real call does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from .._engine import engine_seconds
from .._harness import Case, Kind, Sample, Settings, System, Target
from .._work import batches, instant, suspends_once

__all__ = ("P1",)

ROWS = 1_000_000
Function = Callable[[int], Awaitable[int]]


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    full, fifth = settings.rows(ROWS), settings.rows(ROWS // 5)
    yield [*three_ways(instant, full, ""), *three_ways(suspends_once, fifth, " (suspends once)")]


def three_ways(function: Function, rows: int, suffix: str) -> list[System]:
    def system(name: str, seconds: Callable[[], float], kind: Kind) -> System:
        return System(name + suffix, partial(per_row, seconds, rows), kind)

    return [
        system("ordered", partial(engine_seconds, function, rows, "ordered"), "ours"),
        system("unordered", partial(engine_seconds, function, rows, "unordered"), "ours"),
        system("gather", partial(gather_seconds, function, rows), "reference"),
    ]


def per_row(seconds: Callable[[], float], rows: int) -> Sample:
    return Sample({"us/row": seconds() / rows * 1e6})


def gather_seconds(function: Function, rows: int) -> float:
    """Seconds with a gather for each batch."""

    async def run() -> float:
        start = time.perf_counter()
        for batch in batches(range(rows)):
            await asyncio.gather(*map(function, batch))
        return time.perf_counter() - start

    return asyncio.run(run())


P1 = Case(
    "P1",
    "the engine alone, an instant function, a deadline for each row",
    systems,
    targets=(
        Target("us/row", "ordered", 1.2),
        Target("us/row", "unordered", 1.2),
        Target("us/row", "ordered", 0.2, against="gather"),
        Target("us/row", "unordered", 0.2, against="gather"),
        Target("us/row", "ordered (suspends once)", against="gather (suspends once)"),
        Target("us/row", "unordered (suspends once)", against="gather (suspends once)"),
    ),
    plots=("us/row",),
)
