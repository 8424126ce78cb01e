"""What is counted of rows: by a query of its own, or beside one that does something else with them."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from .._errors.exceptions import AsyncUDFError
from .schemas import is_comparable

LONGEST = 600.0  # seconds until Spark tells what it has observed of a query that has ended


class RowCounts(NamedTuple):
    """What a function would read."""

    rows: int
    called: int  # rows that make a call
    distinct: int | None  # arguments of these; None if Spark cannot compare them
    tasks: int  # at a time; over Spark Connect, which does not tell the cores, one for each partition


def count_rows(df: DataFrame, positions: Sequence[int], *, skips_nulls: bool, approximate: bool = False) -> RowCounts:
    """Count in one query, which reads the columns at these positions alone, those of the function.

    `approximate`: distinct arguments with an error of about 5%, and without a shuffle of all of them.
    """
    fields = df.schema.fields
    read = [sf.col(str(position)) for position in positions]
    key, distinct = sf.struct(*read), sf.lit(None)
    if skips_nulls:
        key = sf.when(functools.reduce(operator.and_, (column.isNotNull() for column in read)), key)
    if all(is_comparable(fields[position].dataType) for position in positions):
        distinct = (sf.approx_count_distinct if approximate else sf.count_distinct)("key")
    numbered = df.toDF(*map(str, range(len(fields))))  # equal names, and names with dots, are no matter then
    keys = numbered.select(key.alias("key"), sf.spark_partition_id().alias("partition"))
    counts = keys.agg(sf.count(sf.lit(1)), sf.count("key"), distinct, sf.max("partition"))
    rows, called, known, last = counts.collect()[0]
    partitions = 1 if last is None else last + 1
    cores = df.sparkSession.sparkContext.defaultParallelism if hasattr(df, "_jdf") else partitions
    return RowCounts(rows, called, known, min(partitions, cores))


def observed(seen: Observation) -> dict[str, Any]:
    """What was counted beside a query that has ended, with an end: Spark tells it by its listeners, and may drop it.

    Raises:
        AsyncUDFError: Spark does not tell it.
    """
    told = Future[dict[str, Any]]()

    def wait() -> None:
        try:
            told.set_result(seen.get)
        except BaseException as error:
            told.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    try:
        return told.result(LONGEST)
    except TimeoutError:
        if told.done():  # it is an error of Spark
            raise
        raise AsyncUDFError(
            "what was written is there, but Spark has not told how many rows it was: its listeners are overloaded "
            "(its log says 'Dropping event from queue'); raise spark.scheduler.listenerbus.eventqueue.capacity, and "
            "run it again"
        ) from None
