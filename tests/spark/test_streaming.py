"""Structured Streaming: the same entry points over an unbounded table."""

import asyncio

import pytest

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark


@async_pandas_udf("length int, upper string")
async def measure(line):
    await asyncio.sleep(0.001)
    return {"length": len(line), "upper": line.upper()}


async def length(line: str) -> int:
    return len(line)


async def shouted(line: str) -> str:
    return f"{line}!"


@pytest.mark.spark_only("watermarks")
def test_a_watermark_of_spark_goes_through_the_operators(spark, lines_of, to_its_end):
    """It was lost where a name of a column has a dot, and Spark refused the aggregate."""
    events = lines_of("00:00:05\n00:01:00\n00:02:00\n").selectExpr(
        "CAST('2026-01-01 ' || line AS timestamp) AS at", "line", "1 AS `a.b`"
    )
    enriched = ordered_wait(events.withWatermark("at", "10 seconds"), shouted)
    to_its_end(enriched.groupBy("at").count().writeStream.format("memory").queryName("counted").outputMode("append"))
    assert [str(row.at) for row in spark.sql("SELECT CAST(at AS string) AS at FROM counted ORDER BY at").collect()] == [
        "2026-01-01 00:00:05",
        "2026-01-01 00:01:00",
    ]


@pytest.fixture
def lines(lines_of):
    return lines_of("one\ntwo\n", "three\n")


@pytest.mark.promise("structured streaming")
def test_a_stream_is_enriched(spark, lines, to_its_end):
    """The column and both operator forms work over an unbounded table."""
    df = lines.select("line", measure("line").alias("m"))
    df = unordered_wait(ordered_wait(df, length), shouted)
    assert df.isStreaming
    to_its_end(df.writeStream.format("memory").queryName("enriched"))
    found = sorted(tuple(row) for row in spark.table("enriched").select("line", "m.*", "length", "shouted").collect())
    assert found == [("one", 3, "ONE", 3, "one!"), ("three", 5, "THREE", 5, "three!"), ("two", 3, "TWO", 3, "two!")]
