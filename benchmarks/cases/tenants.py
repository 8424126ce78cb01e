"""P31: 50 tenants, each with 20 calls a second and four in flight; one of them has 60% of the rows.

The clock is virtual, so a figure is the same on every machine; the eight tasks share a real coordinator. The ideal is
what the largest tenant takes at the lower of its bounds: the rate for calls of 0.1 s, the calls in flight for those of
0.4 s. Its time is that from its first call to its last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from asyncudf import KeyCapacity, RateLimit
from tests.kit.coordinators import Server, start_server
from tests.kit.engines import run_tasks
from tests.kit.limited import most_within, now

from .._harness import Case, Sample, Settings, System, Target

__all__ = ("P31",)

TENANTS, BIG, ROWS = 50, 0.6, 800
RATE, AT_ONCE = 20, 4
JOBS = {
    f"{tasks} task{'s' if tasks > 1 else ''}, {mode}, {seconds} s": (tasks, mode, seconds)
    for tasks in (1, 8)
    for mode in ("ordered", "unordered")
    for seconds in (0.1, 0.4)
}
TIME, IN_FLIGHT, A_SECOND = "x the ideal", "calls in flight", "calls within a second"


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with contextlib.closing(start_server()) as server:
        yield [
            System(name, partial(measure, server, settings.rows(ROWS), tasks, mode, seconds))
            for name, (tasks, mode, seconds) in JOBS.items()
        ]


def measure(server: Server, count: int, tasks: int, mode: str, seconds: float) -> Sample:
    rng, durations = random.Random(0), random.Random(1)
    rows = [0 if rng.random() < BIG else rng.randrange(1, TENANTS) for _ in range(max(1, count // tasks))]
    begun, in_flight, most = defaultdict[int, list[float]](list), defaultdict[int, int](int), 0

    async def call(tenant: int) -> int:
        nonlocal most
        begun[tenant].append(now())
        in_flight[tenant] += 1
        most = max(most, in_flight[tenant])
        await asyncio.sleep(seconds * durations.uniform(0.8, 1.2))
        in_flight[tenant] -= 1
        return tenant

    rate, at_once = RateLimit(RATE, burst=1, by="tenant"), KeyCapacity(AT_ONCE, by="tenant")
    ended = run_tasks(server, [call] * tasks, rows, output_mode=mode, rate_limit=rate, job_capacity=at_once)
    assert [sorted(results) for results in ended] == [sorted(rows)] * tasks  # type: ignore[type-var,arg-type]
    largest = max(begun.values(), key=len)
    ideal = len(largest) * max(seconds / AT_ONCE, 1 / RATE)
    return Sample(
        {
            TIME: (largest[-1] - largest[0]) / ideal,
            IN_FLIGHT: most,
            A_SECOND: max(most_within(1.0, times) for times in begun.values()),
        }
    )


P31 = Case(
    "P31",
    "50 tenants with a rate and calls in flight of each, beside the ideal",
    systems,
    (
        *(Target(TIME, name, most=1.1) for name in JOBS),
        *(Target(IN_FLIGHT, name, most=AT_ONCE) for name in JOBS),
        *(Target(A_SECOND, name, most=1.02 * RATE + 1) for name in JOBS),
    ),
    minutes=1.0,
    how="on the virtual clock",
)
