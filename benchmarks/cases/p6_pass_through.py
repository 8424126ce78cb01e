"""P6: the operator form on a table with 10 more columns, which pass through.

The allowance is 1.5 times the same table through `mapInArrow` with a function that does nothing, measured in the same
rounds, plus P1's bound for as many rows: a constant, so that it does not move with our engine. The results go to
Spark's `noop` sink.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._spark import local_spark
from .p1_engine import MOST

__all__ = ("P6",)

ROWS = 1_000_000
FACTOR = 1.5
ALLOWANCE = "the allowance"


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    with local_spark() as session:
        df = table(session, rows)
        yield [
            System("ordered_wait", partial(operated, df, ordered_wait)),
            System("unordered_wait", partial(operated, df, unordered_wait)),
            System(ALLOWANCE, partial(allowance, df, rows), "reference"),
        ]


def table(session: SparkSession, rows: int) -> DataFrame:
    """The argument `id` and 10 columns of numbers and text, in Spark's memory."""
    kinds = ("bigint", "double", "string", "int", "boolean")
    others = [(sf.col("id") % (7 + i)).cast(kinds[i % len(kinds)]).alias(f"c{i}") for i in range(10)]
    df = session.range(rows, numPartitions=1).select("id", *others).cache()
    df.count()
    return df


def operated(df: DataFrame, wait: Callable[..., DataFrame]) -> Sample:
    @async_pandas_udf
    async def call(x: int) -> int:
        return x

    return Sample({"s": sink(wait(df, call, "id"))})


def allowance(df: DataFrame, rows: int) -> Sample:
    def identity(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    through_arrow = sink(df.mapInArrow(identity, df.schema))
    return Sample({"s": FACTOR * through_arrow + MOST * 1e-6 * rows, "s (identity)": through_arrow})


def sink(df: DataFrame) -> float:
    """Seconds until the last row has arrived in a sink that drops all."""
    start = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


P6 = Case(
    "P6",
    "the operator form, an instant function, 10 pass-through columns",
    systems,
    targets=(Target("s", "ordered_wait", 1.0, ALLOWANCE), Target("s", "unordered_wait", 1.0, ALLOWANCE)),
    plots=("s",),
)
