"""P5: HTTP for real: aiohttp against a local server, beside a bare asyncio + aiohttp program.

P5 has a server that answers after 20 ms, and the peers. P5b has one that answers at once, so that the CPU of the client
is the limit, and P10 is the bound on it; the CPU time is that of the process in which the client runs (in Spark the
Python worker, not the JVM). Both have 100 requests in flight. Client and server need a free core each.

In ours, `gather` and the plain programs a request is made by an `async def` of a row, which awaits another. P5b has
five times the requests: they take ten seconds, of which what else a machine does weighs less than of two.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import aiohttp
import pyarrow as pa
import uvloop
from pyspark.sql import DataFrame, SparkSession

from asyncudf import AsyncUDF, async_pandas_udf, ordered_wait, unordered_wait

from .._harness import BEST_PEER, Case, Sample, Settings, System, Target
from .._http_server import http_server
from .._meter import Meter, metered
from .._peers import TIMEOUT, peer_systems
from .._spark import arrow_column, local_spark, seconds_of_calls
from .._work import BARE, CAPACITY, LOOPS, SAME_LOOP, Loop, bare, pulled, run, settle_collector

__all__ = ("P5", "P5B")

REQUESTS, MORE_REQUESTS = 30_000, 150_000
REPETITIONS, MORE_REPETITIONS = 3, 5  # more where CPU time is judged, of which the machine has its share
IN_A_WORKER = "bare in a worker"
Plan = Callable[[DataFrame, Any], DataFrame]


@contextlib.contextmanager
def systems(requests: int, latency: float, settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(requests)
    with local_spark() as session, http_server(latency) as url, tempfile.TemporaryDirectory() as folder:
        query = partial(through_spark, session, rows, url, Meter(folder, "http"))
        yield [
            *(System(name, partial(bare_client, rows, url, loop), "reference") for name, loop in BARE.items()),
            System("column", partial(query, lambda df, get: df.select(get("id").alias("call")))),
            System("ordered_wait", partial(query, partial(wait, ordered_wait))),
            System("unordered_wait", partial(query, partial(wait, unordered_wait))),
            System("gather", partial(gather, session, rows, url, Meter(folder, "gather")), "reference"),
            System(IN_A_WORKER, partial(in_a_worker, session, rows, url, Meter(folder, "bare")), "reference"),
            *(peer_systems(settings, [latency] * rows, "ordered", per_second, url=url) if latency else ()),
        ]


def wait(operator: Callable[..., DataFrame], df: DataFrame, get: Any) -> DataFrame:
    return operator(df, get, "id").withColumnRenamed("get", "call")


def bare_client(rows: int, url: str, loop: Loop) -> Sample:
    async def main() -> float:
        async with session_of() as session:
            return await bare(calling(session, url), range(rows), CAPACITY)

    settle_collector()
    with metered() as used:
        seconds = run(main(), loop)
    return sample(rows, seconds, used)


def through_spark(session: SparkSession, rows: int, url: str, meter: Meter, plan: Plan) -> Sample:
    df = session.range(rows, numPartitions=1)
    seconds = seconds_of_calls(plan(df, client(url, meter)), rows)
    return sample(rows, seconds, meter.read())


def client(url: str, meter: Meter) -> AsyncUDF[..., Any]:
    @async_pandas_udf(capacity=CAPACITY, timeout=TIMEOUT, resources={"meter": meter.resource, "session": session_of})
    async def get(x: int, meter: Any, session: aiohttp.ClientSession) -> float:
        return await request(session, url)

    return get


def gather(session: SparkSession, rows: int, url: str, meter: Meter) -> Sample:
    """What a Spark user would write instead: a session and a gather for each Arrow batch."""

    def gathered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def all_of(count: int) -> list[float]:
            async with session_of() as client:  # its connector bounds the requests in flight
                return await asyncio.gather(*map(calling(client, url), range(count)))

        with meter.measure():
            for batch in batches:
                yield pa.array(asyncio.run(all_of(len(batch))))

    call = arrow_column(gathered, "double")
    df = session.range(rows, numPartitions=1).select(call("id").alias("call"))
    return sample(rows, seconds_of_calls(df, rows), meter.read())


def in_a_worker(session: SparkSession, rows: int, url: str, meter: Meter) -> Sample:
    """The plain program of each Arrow batch, in Spark's Python worker: what of ours is Spark's, and the machine's."""

    def called(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with meter.measure(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            connected = session_of()
            client = runner.run(connected.__aenter__())
            for batch in batches:
                starts = runner.run(pulled(calling(client, url), range(len(batch)), CAPACITY))
                yield pa.array(starts)
            runner.run(connected.__aexit__(None, None, None))

    call = arrow_column(called, "double")
    df = session.range(rows, numPartitions=1).select(call("id").alias("call"))
    return sample(rows, seconds_of_calls(df, rows), meter.read())


def calling(session: aiohttp.ClientSession, url: str) -> Callable[[int], Awaitable[float]]:
    """What ours is given, in the programs beside it: a function of a row."""

    async def get(x: int) -> float:
        return await request(session, url)

    return get


async def request(session: aiohttp.ClientSession, url: str) -> float:
    """One call: when it started."""
    start = time.time()
    async with session.get(url) as response:
        response.raise_for_status()
        await response.read()
    return start


@contextlib.asynccontextmanager
async def session_of(capacity: int = CAPACITY) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=capacity)) as session:
        yield session


def sample(rows: int, seconds: float, used: dict[str, float]) -> Sample:
    return Sample({"requests/s": rows / seconds, "CPU us/request": used["cpu"] / rows * 1e6})


def per_second(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    return {"requests/s": len(latencies) / seconds}


def targets(quantity: str, bound: float, target_id: str = "") -> tuple[Target, ...]:
    return tuple(
        Target(quantity, way, bound, SAME_LOOP, target_id) for way in ("column", "ordered_wait", "unordered_wait")
    )


def case(case_id: str, title: str, requests: int, latency: float, judged: tuple[Target, ...], repetitions: int) -> Case:
    plots = ("requests/s", "CPU us/request")
    return Case(case_id, title, partial(systems, requests, latency), judged, repetitions, plots=plots, loop=LOOPS)


P5 = case(
    "P5",
    "HTTP requests to a local server that answers after 20 ms, 100 in flight",
    REQUESTS,
    0.02,
    (*targets("requests/s", 0.95), Target("requests/s", "ordered_wait", against=BEST_PEER)),
    REPETITIONS,
)
P5B = case(
    "P5b",
    "HTTP requests to a local server that answers at once, 100 in flight",
    MORE_REQUESTS,
    0.0,
    targets("CPU us/request", 1.1, "P10"),
    MORE_REPETITIONS,
)
