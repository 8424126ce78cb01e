"""Marks in a plan, which say to its tasks what an engine without a TaskContext does not: see `running_task`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ._compat import engine_of
from .running_task import MARKS


def query_mark() -> Column:
    """A number that is the same in all of a query, and differs in each run of it."""
    return sf.unix_micros(sf.current_timestamp())


def marked(df: DataFrame) -> DataFrame:
    """The rows as an operator reads them: with marks, if the engine does not tell tasks what they are."""
    if engine_of(df.sparkSession).tells_tasks or df.isStreaming:
        return df
    return df.select("*", query_mark().alias(MARKS[0]), sf.spark_partition_id().alias(MARKS[1]))
