"""The work that systems are given: latencies, batches, and the plain asyncio program that others are held against."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import uvloop

__all__ = (
    "BARE",
    "CAPACITY",
    "LOOPS",
    "SAME_LOOP",
    "Loop",
    "bare",
    "batches",
    "instant",
    "lognormal",
    "mix",
    "pulled",
    "rates",
    "run",
    "settle_collector",
    "suspends_once",
)

Row = TypeVar("Row")
Result = TypeVar("Result")
Loop = Callable[[], asyncio.AbstractEventLoop]

CAPACITY = 100
MEAN, SIGMA = 0.019, 0.8  # seconds; lognormal
BATCH = 10_000  # rows in Spark's Arrow batches
# The plain program is measured on both loops; ours runs on uvloop where it is installed, and is judged by that one.
BARE: dict[str, Loop] = {"bare asyncio": asyncio.new_event_loop, "bare asyncio on uvloop": uvloop.new_event_loop}
SAME_LOOP = "bare asyncio on uvloop"
LOOPS = "ours on uvloop, gather on asyncio's loop"  # of a case with a gather, which `asyncio.run` runs


async def instant(x: int) -> int:
    return x


async def suspends_once(x: int) -> int:
    """Gives way to the event loop once, as every real call does."""
    await asyncio.sleep(0)
    return x


def lognormal(count: int, seed: int = 1) -> list[float]:
    """Latencies in seconds whose mean is MEAN."""
    rng = random.Random(seed)
    raw = [rng.lognormvariate(0.0, SIGMA) for _ in range(count)]
    scale = MEAN * count / sum(raw)
    return [value * scale for value in raw]


def mix(count: int, usual: float, share: float, slow: float, seed: int = 1) -> list[float]:
    """Latencies in seconds, a share of them slow."""
    rng = random.Random(seed)
    return [slow if rng.random() < share else usual for _ in range(count)]


def rates(latencies: Sequence[float], seconds: float, capacity: int = CAPACITY) -> dict[str, float]:
    """Calls per second, and the share of the ideal: `capacity` callers that are never idle."""
    return {
        "calls/s": len(latencies) / seconds,
        "% of the ideal": 100 * sum(latencies) / capacity / seconds,
    }


def batches(values: Sequence[Row], size: int = BATCH) -> Iterator[Sequence[Row]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


async def bare(call: Callable[[Row], Awaitable[float]], rows: Iterable[Row], pullers: int) -> float:
    """Seconds from the start of the first call to the last result, in the plain program.

    `call` returns the time at which it started, as the functions that run in Spark do.
    """
    starts = await pulled(call, rows, pullers)
    return time.time() - min(starts)


async def pulled(call: Callable[[Row], Awaitable[Result]], rows: Iterable[Row], pullers: int) -> list[Result]:
    """What a plain program does: tasks that take the next row each. No order, no deadline."""
    waiting = iter(rows)
    results: list[Result] = []

    async def pull() -> None:
        for row in waiting:
            results.append(await call(row))  # noqa: PERF401 - all pullers share the list

    await asyncio.gather(*(pull() for _ in range(pullers)))
    return results


def settle_collector() -> None:
    """Before each measurement in this process, whoever is measured: the garbage collector leaves alone what is there.

    The benchmark's own hundred thousand objects are no part of what is measured, and a plain program has none of them.
    """
    gc.collect()
    gc.freeze()


def run(main: Coroutine[Any, Any, Result], loop: Loop) -> Result:
    """What `asyncio.run` does, on a loop of the given kind."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)
