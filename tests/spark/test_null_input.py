"""`on_null_input="null"` in each form of a query: rows with a NULL argument make no call."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import asyncudf
from asyncudf import AsyncStream, RateLimit, ResultStore, async_pandas_udf, ordered_wait, unordered_wait

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


def found(df: DataFrame, column: str = "shout") -> dict[int, Any]:
    return {row["id"]: row[column] for row in df.collect()}


@pytest.mark.parametrize("function", [shout, shout_together], ids=["plain", "vectorized"])
@pytest.mark.parametrize("form", ["column", "ordered", "unordered", "SQL", "table function", "stream"])
def test_in_each_form(spark: SparkSession, rows: DataFrame, function: Any, form: str) -> None:
    rows.createOrReplaceTempView("null_rows")
    name = function.__name__
    if form == "column":
        got = found(rows.withColumn("shout", function("text")))
    elif form == "ordered":
        df = ordered_wait(rows, function, "text")
        assert [row["id"] for row in df.collect()] == [*range(60)]
        got = found(df, name)
    elif form == "unordered":
        got = found(unordered_wait(rows, function, "text"), name)
    elif form == "SQL":
        function.register(spark, "null_shout")
        got = found(spark.sql("SELECT id, null_shout(text) AS shout FROM null_rows"))
    elif form == "table function":
        function.with_options(output_mode="unordered").register(spark, "null_shouts")
        got = found(spark.sql("SELECT * FROM null_shouts(TABLE(null_rows), 'text')"), name)
    else:
        stream = AsyncStream(rows).filter(lambda row: True).ordered_wait(function, "text")
        got = found(stream.to_df(), name)
    assert got == EXPECTED


def test_captured_and_with_a_store_they_are_no_calls(spark: SparkSession, rows: DataFrame, tmp_path: Any) -> None:
    function = shout.with_options(on_error="capture", store=ResultStore.disk(tmp_path / "results"), version="1")
    for calls in (20, 0):
        with asyncudf.monitor(spark) as run:
            got = rows.withColumn("shout", function("text")).collect()
        assert {row["id"]: row["shout"].value for row in got} == EXPECTED
        assert {row["shout"].error for row in got} == {None}
        (figures,) = run.metrics["functions"]
        assert (figures["rows"], figures["results"], figures["calls"], figures["failures"]) == (60, 60, calls, 0)


def test_a_dry_run_promises_no_calls_for_them(rows: DataFrame) -> None:
    run = asyncudf.dry_run(rows.withColumn("shout", shout("text")))
    assert (run.calls.at_least, run.calls.at_most) == (0, 60)
    assert "nulls" in run.mentions[0].reasons
    assert "on_null_input" in " ".join(str(run).split())
