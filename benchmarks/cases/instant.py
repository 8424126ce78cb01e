"""P2, P6 and P22: calls that return at once, so that what is counted is the price of the operator.

P2 has an instant function as a column. P6 has the operator form on a table with ten more columns, which pass through,
beside `mapInArrow` with a function that does nothing. P22 has texts and bytes of 100 bytes as results. The Arrow UDF is
Spark's own, with a plain function: a function that does not wait should be one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

from .._calls import Calls, per_row
from .._harness import Case, Sample, Settings, System, Target
from .._meter import workers_of
from .._spark import local_spark, noop

__all__ = ("P2", "P6", "P22")

ARROW_UDF, IDENTITY = "plain Arrow UDF", "mapInArrow, identity"
PEERS = ("flink", "jvm", "ray", "daft")
TEXT, BYTES = "é" + 98 * "x", 100 * b"x"  # a hundred bytes each


@contextlib.contextmanager
def columns(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, [0.0] * settings.rows(300_000), values=per_row)
        arrow_udf = sf.udf(lambda latency: time.time(), "double", useArrow=True)
        yield [
            System("bare", calls.bare),
            System("column", calls.column),
            System("ordered_wait", calls.ordered),
            System("unordered_wait", calls.unordered),
            System(ARROW_UDF, partial(calls.of_column, arrow_udf)),
            System("handwritten", calls.handwritten),
            System("gather", calls.gather),
            *calls.peers(settings, PEERS),
        ]


@contextlib.contextmanager
def pass_through(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(500_000)
    with local_spark() as session:
        kinds = ("bigint", "double", "string", "int", "boolean")
        others = [(sf.col("id") % (7 + i)).cast(kinds[i % len(kinds)]).alias(f"c{i}") for i in range(10)]
        df = session.range(rows, numPartitions=1).select("id", *others).cache()
        df.count()
        yield [
            System("ordered_wait", partial(operated, df, rows, ordered_wait)),
            System("unordered_wait", partial(operated, df, rows, unordered_wait)),
            System(IDENTITY, partial(identity, df, rows)),
        ]


def operated(df: DataFrame, rows: int, wait: Callable[..., DataFrame]) -> Sample:
    @async_pandas_udf
    async def call(x: int) -> int:
        return x

    return Sample({"us/row": noop(wait(df, call, "id")) / rows * 1e6})


def identity(df: DataFrame, rows: int) -> Sample:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    return Sample({"us/row": noop(df.mapInArrow(same, df.schema)) / rows * 1e6})


@contextlib.contextmanager
def texts(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(300_000)
    with local_spark() as session:
        yield [
            System(f"{name} of {kind}", partial(lengths, session, rows, make(value, returns)))
            for name, make in (("column", column), (ARROW_UDF, arrow_udf))
            for kind, value, returns in (("texts", TEXT, "string"), ("bytes", BYTES, "binary"))
        ]


def column(value: str | bytes, returns: str) -> Callable[..., Column]:
    @async_pandas_udf(returns)
    async def call(x: int) -> str | bytes:
        return value

    return call


def arrow_udf(value: str | bytes, returns: str) -> Callable[..., Column]:
    return sf.udf(lambda x: value, returns, useArrow=True)


def lengths(session: SparkSession, rows: int, called: Callable[..., Column]) -> Sample:
    """A whole query that sums the lengths of the results."""
    worker = workers_of(session)
    start, cpu = time.perf_counter(), worker.cpu()
    df = session.range(rows, numPartitions=1).select(called("id").alias("x"))
    answer = df.agg(sf.sum(sf.octet_length("x"))).first()
    seconds, cpu = time.perf_counter() - start, worker.cpu() - cpu
    assert answer is not None
    assert answer[0] == 100 * rows
    return Sample({"CPU us/row": cpu / rows * 1e6, "us/row": seconds / rows * 1e6})


P2 = Case(
    "P2",
    "calls that return at once, from the first call to the last result",
    columns,
    (
        Target("us/row", "column", most=3.0, against=ARROW_UDF),
        Target("us/row", "column", most=0.7, against="gather"),
    ),
    minutes=3.4,
    peers=PEERS,
)
P6 = Case(
    "P6",
    "calls that return at once, ten more columns that pass through",
    pass_through,
    tuple(Target("us/row", wait, most=2.0, against=IDENTITY) for wait in ("ordered_wait", "unordered_wait")),
    minutes=0.6,
)
P22 = Case(
    "P22",
    "results of 100 bytes, an instant function as a column; the CPU of the Python worker",
    texts,
    tuple(
        Target("CPU us/row", f"column of {kind}", most=4.0, against=f"{ARROW_UDF} of {kind}")
        for kind in ("texts", "bytes")
    ),
    minutes=0.7,
)
