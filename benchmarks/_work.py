"""The work that systems are given, and the plain asyncio program that others are held against."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import uvloop

__all__ = (
    "BATCH",
    "CAPACITY",
    "bare",
    "batches",
    "instant",
    "lognormal",
    "mix",
    "pulled",
    "run",
    "seconds_at_best",
    "settle_collector",
    "suspends_once",
)

Row = TypeVar("Row")
Result = TypeVar("Result")
Loop = Callable[[], asyncio.AbstractEventLoop]

CAPACITY = 100
MEAN, SIGMA = 0.019, 0.8  # seconds; lognormal
BATCH = 10_000  # rows in Spark's Arrow batches


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


def seconds_at_best(latencies: Iterable[float], capacity: int) -> float:
    """How long so many callers take, who are never idle and take the rows in turn."""
    free = [0.0] * capacity
    for latency in latencies:
        heapq.heapreplace(free, free[0] + latency)
    return max(free)


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


def run(main: Coroutine[Any, Any, Result], loop: Loop = uvloop.new_event_loop) -> Result:
    """What `asyncio.run` does, on uvloop unless said otherwise."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)
