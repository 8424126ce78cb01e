"""What tests of a LookupTable ask it for."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from asyncudf import LookupTable


def cities(spark: SparkSession, *names: str | None) -> DataFrame:
    return spark.createDataFrame([(name,) for name in names], "city string")


def update(table: LookupTable, df: DataFrame) -> tuple[int, int, int]:
    """How many arguments were called, had a result already, and failed."""
    done = table.update(df, progress=False)
    return done.called, done.reused, done.failed
