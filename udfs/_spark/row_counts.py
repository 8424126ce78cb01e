"""The rows that a function would read, and their distinct arguments, counted by one query."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .schemas import is_comparable


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
