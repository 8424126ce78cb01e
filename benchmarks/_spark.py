"""A Spark session for a case, and how its queries are timed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf

__all__ = (
    "arrow_column",
    "batches_of",
    "configured",
    "local_spark",
    "noop",
    "seconds_of_calls",
    "seconds_of_column",
    "sized",
    "spark",
)

Batch = TypeVar("Batch", bound=Sized)

# How many rows Spark hands to a worker at once. A column over a cached table gets the batches of the cache, whatever
# the first setting says; mapInArrow and mapInPandas follow the first alone.
BATCH_ROWS = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.inMemoryColumnarStorage.batchSize")


@contextlib.contextmanager
def local_spark(conf: dict[str, str] | None = None, cores: int = 1) -> Iterator[SparkSession]:
    """A session of so many cores, stopped at the end with all its Python workers."""
    session = spark(cores, conf)
    try:
        yield session
    finally:
        session.stop()


def spark(cores: int = 1, conf: dict[str, str] | None = None, master: str = "") -> SparkSession:
    """A quiet local session whose workers run this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # another might have another asyncudf, and no uvloop
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName("asyncudf benchmarks")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR")
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def seconds_of_calls(df: DataFrame, rows: int) -> float:
    """Seconds from the start of the first call to the arrival of the last result at the driver.

    The column `call` holds the time at which each call started. So the start of the job, of the worker and of
    Python does not count, as it does not for any other system.
    """
    answer = df.agg(sf.min("call"), sf.count("call")).first()
    end = time.time()
    assert answer is not None
    first, count = answer
    assert count == rows, f"{count} results for {rows} rows"
    return end - float(first)


def arrow_column(function: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], returns: str) -> Callable[[str], Column]:
    """Spark's own iterator of Arrow arrays as a function of a column; its stubs do not know the plain form."""
    native: Any = arrow_udf
    column: Callable[[str], Column] = native(function, returns)
    return column


def seconds_of_column(session: SparkSession, rows: int, column: Callable[[str], Column]) -> float:
    """Seconds of a whole query in one task, of a column that has the values of its argument."""
    start = time.perf_counter()
    answer = session.range(rows, numPartitions=1).select(column("id").alias("x")).agg(sf.sum("x")).first()
    seconds = time.perf_counter() - start
    assert answer is not None
    assert answer[0] == rows * (rows - 1) // 2
    return seconds


def noop(df: DataFrame) -> float:
    """Seconds until the last row has arrived in a sink that drops all."""
    start = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def batches_of(rows: int) -> dict[str, str]:
    """The settings by which a table that is cached under them comes in batches of so many rows."""
    return dict.fromkeys(BATCH_ROWS, str(rows))


@contextlib.contextmanager
def configured(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """A session with these settings, until the end."""
    for key, value in conf.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in conf:
            session.conf.unset(key)


def sized(batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """The batches as they are.

    Raises:
        AssertionError: One that is not the last has another number of rows, so that what is measured is not what the
            table of figures says.
    """
    last = rows
    for batch in batches:
        assert len(batch) <= rows == last, f"batches of {last} and {len(batch)} rows, not of {rows}"
        last = len(batch)
        yield batch
