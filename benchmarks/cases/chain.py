"""CHAIN: two async operators in one chain against two stages, one `unordered_wait` behind another.

A chain runs in one Python worker and hands over rows one by one; two stages run in a worker each, with Arrow batches
and Spark between them. Seconds run from the start of the first call to the last result. `rows between` is the
largest number of rows that the first operator had finished and the second not yet started; `peak MB` the memory of
the worker, or of both. The second service is slower than the first, as it is where back-pressure counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from asyncudf import AsyncStream, async_pandas_udf, unordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._meter import Meter
from .._spark import local_spark
from .._work import lognormal

__all__ = ("CHAIN",)

ROWS = 10_000
FASTER, SLOWER = 0.5, 1.0  # of the usual latencies
CONF = {"spark.python.worker.reuse": "false"}
Query = Callable[[DataFrame, Meter, Meter], tuple[DataFrame, list[Meter]]]


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark(CONF) as session, tempfile.TemporaryDirectory() as folder:
        rows = settings.rows(ROWS)
        latencies = {
            "first_latency": [FASTER * x for x in lognormal(rows, seed=1)],
            "second_latency": [SLOWER * x for x in lognormal(rows, seed=2)],
        }
        df = session.createDataFrame(pa.table(latencies)).coalesce(1).cache()
        df.count()
        yield [
            System(name, partial(run, df, rows, folder, query))
            for name, query in (("chain", chained), ("two stages", in_two_stages))
        ]


def functions(first_meter: Meter, second_meter: Meter) -> tuple[Any, Any]:
    @async_pandas_udf("began double, done double", resources={"meter": first_meter.resource})
    async def first(first_latency: float, meter: Any) -> tuple[float, float]:
        began = time.time()
        await asyncio.sleep(first_latency)
        return began, time.time()

    @async_pandas_udf("taken double", resources={"meter": second_meter.resource})
    async def second(second_latency: float, meter: Any) -> tuple[float]:
        taken = time.time()
        await asyncio.sleep(second_latency)
        return (taken,)

    return first, second


def chained(df: DataFrame, one: Meter, two: Meter) -> tuple[DataFrame, list[Meter]]:
    first, second = functions(one, two)
    # Both meters are in the same process; the second closes last.
    return AsyncStream(df).unordered_wait(first).unordered_wait(second).to_df(), [two]


def in_two_stages(df: DataFrame, one: Meter, two: Meter) -> tuple[DataFrame, list[Meter]]:
    first, second = functions(one, two)
    return unordered_wait(unordered_wait(df, first), second), [one, two]


def run(df: DataFrame, rows: int, folder: str, query: Query) -> Sample:
    plan, meters = query(df, Meter(folder, "one"), Meter(folder, "two"))
    times = plan.select("began", "done", "taken").toArrow()
    end = time.time()
    assert times.num_rows == rows
    began, done, taken = (times.column(name).to_pylist() for name in ("began", "done", "taken"))
    return Sample(
        {
            "seconds": end - min(began),
            "rows between": most_between(done, taken),
            "peak MB": sum(meter.read()["peak"] for meter in meters),
        }
    )


def most_between(done: list[float], taken: list[float]) -> int:
    """The most rows that were done and not taken at one time."""
    events = sorted([(moment, 1) for moment in done] + [(moment, -1) for moment in taken])
    return max(itertools.accumulate(change for _, change in events))


CHAIN = Case(
    "CHAIN",
    "two async operators, unordered: one chain against two stages",
    systems,
    tuple(
        Target(quantity, "chain", most=1.0, against="two stages") for quantity in ("seconds", "rows between", "peak MB")
    ),
    minutes=1.2,
)
