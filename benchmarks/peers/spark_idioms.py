"""What a Spark user would write instead: gather per Arrow batch, a thread pool in mapInPandas, or the concurrency level
of Spark's own Arrow UDFs. Each call returns when it started; counted is the time from the first of them to the end of
the action, in one task. A hundred rows go before, so that neither Spark's code generation nor a worker's start counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from benchmarks._spark import spark
from benchmarks.peers._workload import Measurement, Workload, serve

WARM_UP = 100  # rows
LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"


def gather(df: DataFrame, capacity: int) -> DataFrame:
    """`asyncio.gather` over each Arrow batch, under a semaphore."""

    @sf.arrow_udf("double")  # type: ignore[attr-defined]
    def call(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def one(latency: float, limit: asyncio.Semaphore) -> float:
            async with limit:
                started = time.time()
                if latency:
                    await asyncio.sleep(latency)
                return started

        async def every(latencies: list[float]) -> list[float]:
            limit = asyncio.Semaphore(capacity)
            return await asyncio.gather(*(one(latency, limit) for latency in latencies))

        for batch in batches:
            yield pa.array(asyncio.run(every(batch.to_pylist())))

    return df.select(call("latency").alias("started"))


def threads(df: DataFrame, capacity: int) -> DataFrame:
    """`ThreadPoolExecutor.map` over each batch of `mapInPandas`."""

    def one(latency: float) -> float:
        started = time.time()
        if latency:
            time.sleep(latency)
        return started

    def batches(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with ThreadPoolExecutor(capacity) as pool:
            for frame in frames:
                yield pd.DataFrame({"started": list(pool.map(one, frame["latency"].tolist()))})

    return df.mapInPandas(batches, "started double")


def concurrency(df: DataFrame, capacity: int) -> DataFrame:
    """A plain function, which Spark calls in a pool of threads that it makes for each Arrow batch."""
    df.sparkSession.conf.set(LEVEL, str(capacity))

    @sf.udf("double", useArrow=True)
    def call(latency: float) -> float:
        started = time.time()
        if latency:
            time.sleep(latency)
        return started

    return df.select(call("latency").alias("started"))


IDIOMS: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "gather": gather,
    "threads": threads,
    "concurrency": concurrency,
}


def measure(workload: Workload) -> Measurement:
    session = spark(1)
    try:
        for latencies in (workload.latencies[:WARM_UP], workload.latencies):
            df = session.createDataFrame(pd.DataFrame({"latency": list(latencies)})).coalesce(1).cache()
            df.count()
            results = IDIOMS[sys.argv[2]](df, workload.capacity)
            row = results.agg(sf.min("started"), sf.count("started")).first()
            last = time.time()
    finally:
        session.stop()
    assert row is not None
    return Measurement(last - row[0], row[1], pyspark.__version__, "ordered only; no timeout")


if __name__ == "__main__":
    serve(measure)
