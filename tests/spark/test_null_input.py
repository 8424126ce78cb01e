"""`on_null_input="null"` in each form of a query: rows with a NULL argument make no call."""

from __future__ import annotations

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import asyncudf
from asyncudf import AsyncStream, RateLimit, async_pandas_udf

pytestmark = pytest.mark.spark

# A call for a NULL would be a TypeError, and its permit would take a second.
EXPECTED = {i: None if i % 3 else f"{i}!" for i in range(60)}


@async_pandas_udf(
    "string", on_null_input="null", rate_limit=RateLimit(1000, scope="task"), max_failures=1, on_error="null"
)
async def shout(text: str) -> str:
    return text + "!"


@async_pandas_udf("string", on_null_input="null", batch_size=7)
async def shout_together(text: pd.Series) -> pd.Series:
    assert text.notna().all()
    return text + "!"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT id, IF(id % 3 = 0, string(id), NULL) AS text FROM range(0, 60, 1, 3)")


FORMS = {
    "column": lambda spark, df: df.withColumn("shout", shout("text")),
    "vectorized column": lambda spark, df: df.withColumn("shout", shout_together("text")),
    "chain": lambda spark, df: AsyncStream(df).filter(lambda row: True).ordered_wait(shout, "text"),
    "table function": lambda spark, df: spark.sql("SELECT * FROM null_shouts(TABLE(null_rows), 'text')"),
}


@pytest.mark.promise("null input")
@pytest.mark.parametrize("form", FORMS)
def test_rows_with_a_null_make_no_call(spark: SparkSession, rows: DataFrame, form: str) -> None:
    rows.createOrReplaceTempView("null_rows")
    shout.with_options(output_mode="unordered").register(spark, "null_shouts")
    got = {row["id"]: row["shout"] for row in FORMS[form](spark, rows).collect()}
    assert got == EXPECTED


def test_a_dry_run_promises_no_calls_for_them(rows: DataFrame) -> None:
    told = asyncudf.dry_run(rows, shout, "text")
    assert (told.rows, told.calls, told.calls_at_most) == (60, 20, 20)
    assert "60, of which 40 with a NULL make no call" in str(told)
