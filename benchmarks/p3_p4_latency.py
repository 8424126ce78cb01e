"""P3 and P4: calls of lognormal latency, 100 in flight, through Spark, ordered and unordered.

    python -m benchmarks.p3_p4_latency [--rows 20000]

The ideal is the sum of the latencies / 100. `bare asyncio` is a program of 100 tasks that take the next row each,
without order, timeouts or Spark; `gather` runs each Arrow batch under a semaphore of 100. Query time is counted
whole, the start of the session and of the first worker is not.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait
from benchmarks._common import ideal, interleaved, lognormal, machine, report, spark

CAPACITY = 100


def bare(latencies: list[float]) -> float:
    """Seconds for the same calls in a plain asyncio program."""

    async def run() -> None:
        rows = iter(latencies)

        async def puller() -> None:
            for latency in rows:
                await asyncio.sleep(latency)

        await asyncio.gather(*(puller() for _ in range(CAPACITY)))

    start = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - start


def queries() -> dict[str, Callable[[Any], Any]]:
    """DataFrame in, DataFrame out; defined here so that the functions travel to the worker by value."""

    @async_pandas_udf(capacity=CAPACITY)
    async def call(latency: float) -> float:
        await asyncio.sleep(latency)
        return latency

    @sf.arrow_udf("double")
    def gathered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def all_of(values: list[float]) -> list[None]:
            limit = asyncio.Semaphore(CAPACITY)

            async def one(latency: float) -> None:
                async with limit:
                    await asyncio.sleep(latency)

            return await asyncio.gather(*map(one, values))

        for batch in batches:
            asyncio.run(all_of(batch.to_pylist()))
            yield batch

    return {
        "ordered column": lambda df: df.select(call("latency").alias("call")),
        "ordered_wait": lambda df: ordered_wait(df, call, "latency"),
        "unordered_wait": lambda df: unordered_wait(df, call, "latency"),
        "ordered, queue_size=capacity": lambda df: ordered_wait(df, call, "latency", queue_size=CAPACITY),
        "gather per batch of 1,000": lambda df: df.select(gathered("latency").alias("call")),
    }


def query(df: Any, rows: int, plan: Callable[[Any], Any]) -> float:
    """Seconds for the whole query."""
    start = time.perf_counter()
    assert plan(df).agg(sf.count("call")).first()[0] == rows
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    latencies = lognormal(args.rows)
    session = spark(1)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1000)  # kind to gather
    try:
        df = session.createDataFrame([(x,) for x in latencies], "latency double").coalesce(1).cache()
        df.count()
        cases: dict[str, Callable[[], float]] = {"bare asyncio": partial(bare, latencies)}
        cases |= {name: partial(query, df, args.rows, plan) for name, plan in queries().items()}
        figures = interleaved(cases, args.repetitions)
    finally:
        session.stop()
    best = ideal(latencies, CAPACITY)
    share = {name: [100 * best / seconds for seconds in values] for name, values in figures.items()}
    print(f"\nideal {best:.3f} s, longest call {max(latencies):.3f} s   [{machine()}]")
    report(f"P3, P4 {args.rows} calls, seconds", figures, "s", "bare asyncio")
    report(f"P3, P4 {args.rows} calls, share of the ideal", share, "%")


if __name__ == "__main__":
    main()
