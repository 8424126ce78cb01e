"""What a Spark user would write instead: gather per Arrow batch, a thread pool in mapInPandas, or the concurrency level
of Spark's own Arrow UDFs. Each call returns when it started; counted is the time from the first of them to the end of
the action, in one task. A hundred rows go before, so that neither Spark's code generation nor a worker's start counts.

Each waits for the slowest call of every batch. At their best asyncio and Spark's threads have the largest batches that
a cached table has, half a million rows, and asyncio has no task for each row; the thread pool has a sliding window of
calls, which goes on from one batch to the next.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyspark
import uvloop
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from benchmarks._calls import gathered
from benchmarks._spark import arrow_column, batches_of, sized, spark
from benchmarks._work import BATCH, run
from benchmarks.peers._requests import Service, blocking_answer
from benchmarks.peers._workload import Measurement, Workload, serve

WARM_UP = 100  # rows
CACHED_BATCH_BYTES = 4 << 20  # the most that Spark puts into a batch of a cached table, whatever its settings say
LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"


def gather(df: DataFrame, workload: Workload, batch_rows: int) -> DataFrame:
    """`asyncio.gather` over each Arrow batch, under a semaphore."""
    return df.select(gathered(workload.capacity, batch_rows, workload.url)("latency").alias("started"))


def pullers(df: DataFrame, workload: Workload, batch_rows: int) -> DataFrame:
    """As many tasks as may be in flight, which take the next row of the batch each, on uvloop."""
    capacity, url = workload.capacity, workload.url  # all that travels to the worker

    def batches(given: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def every(latencies: list[float]) -> list[float]:
            starts = [0.0] * len(latencies)
            waiting = enumerate(latencies)

            async def pull(service: Service) -> None:
                for place, latency in waiting:
                    starts[place] = time.time()
                    if latency:
                        await service.answer(latency)

            async with Service(url, capacity) as service:
                await asyncio.gather(*(pull(service) for _ in range(capacity)))
            return starts

        for batch in sized(given, batch_rows):
            yield pa.array(run(every(batch.to_pylist()), uvloop.new_event_loop))

    return df.select(arrow_column(batches, "double")("latency").alias("started"))


def threads(df: DataFrame, workload: Workload, batch_rows: int) -> DataFrame:
    """`ThreadPoolExecutor.map` over each batch of `mapInPandas`."""
    capacity = workload.capacity
    one = blocking_call(workload.url)

    def batches(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with ThreadPoolExecutor(capacity) as pool:
            for frame in sized(frames, batch_rows):
                yield pd.DataFrame({"started": list(pool.map(one, frame["latency"].tolist()))})

    return df.mapInPandas(batches, "started double")


def window(df: DataFrame, workload: Workload, batch_rows: int) -> DataFrame:
    """A pool of threads and a window of many more calls, of which the oldest is waited for."""
    capacity, length = workload.capacity, workload.room * workload.capacity
    one = blocking_call(workload.url)

    def batches(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        calls: deque[Future[float]] = deque()
        with ThreadPoolExecutor(capacity) as pool:
            for frame in sized(frames, batch_rows):
                done = []
                for latency in frame["latency"].tolist():
                    calls.append(pool.submit(one, latency))
                    if len(calls) > length:
                        done.append(calls.popleft().result())
                yield pd.DataFrame({"started": done}, dtype="float64")
            yield pd.DataFrame({"started": [call.result() for call in calls]}, dtype="float64")

    return df.mapInPandas(batches, "started double")


def concurrency(df: DataFrame, workload: Workload, batch_rows: int) -> DataFrame:
    """A plain function, which Spark calls in a pool of threads that it makes for each Arrow batch."""
    require_batches(df, batch_rows)  # the function sees none
    df.sparkSession.conf.set(LEVEL, str(workload.capacity))
    call = sf.udf(blocking_call(workload.url), "double", useArrow=True)
    return df.select(call("latency").alias("started"))


def require_batches(df: DataFrame, batch_rows: int) -> None:
    """Look at the batches that a column over the table gets: they must have so many rows."""

    def same(given: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from sized(given, batch_rows)

    df.select(arrow_column(same, "double")("latency").alias("latency")).agg(sf.count("latency")).first()


def blocking_call(url: str) -> Callable[[float], float]:
    """Made here, so that it travels by value."""

    def one(latency: float) -> float:
        started = time.time()
        if latency:
            blocking_answer(url, latency)
        return started

    return one


@dataclass(frozen=True)
class Idiom:
    """What is done with a table, given the workload and the size of batches. `whole`: the largest that a cache has."""

    call: Callable[[DataFrame, Workload, int], DataFrame]
    note: str
    whole: bool = False


IDIOMS = {
    "gather": Idiom(gather, "gather per batch of 10,000 rows"),
    "gather best": Idiom(pullers, "tasks that take the next row each, the largest cached batches, uvloop", whole=True),
    "threads": Idiom(threads, "ThreadPoolExecutor.map per batch of 10,000 rows"),
    "threads best": Idiom(window, "a sliding window of {length:,} calls on a thread pool, across batches"),
    "concurrency": Idiom(concurrency, "a plain function, batches of 10,000 rows"),
    "concurrency best": Idiom(concurrency, "a plain function, the largest cached batches", whole=True),
}


def measure(workload: Workload, best: bool) -> Measurement:
    idiom = IDIOMS[" ".join(sys.argv[2:])]
    batch_rows = max(BATCH, min(len(workload.latencies), CACHED_BATCH_BYTES // 8)) if idiom.whole else BATCH
    session = spark(1, batches_of(batch_rows))
    try:
        for latencies in (workload.latencies[:WARM_UP], workload.latencies):
            df = session.createDataFrame(pd.DataFrame({"latency": list(latencies)})).coalesce(1).cache()
            df.count()
            results = idiom.call(df, workload, batch_rows)
            row = results.agg(sf.min("started"), sf.count("started")).first()
            last = time.time()
    finally:
        session.stop()
    assert row is not None
    how = idiom.note.format(length=workload.room * workload.capacity)
    return Measurement(last - row[0], row[1], pyspark.__version__, f"ordered only; no timeout; {how}")


if __name__ == "__main__":
    serve(measure)
