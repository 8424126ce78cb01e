"""Structured Streaming: the same entry points over an unbounded table."""

import asyncio

import pytest

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark


@async_pandas_udf("length int, upper string")
async def measure(line):
    await asyncio.sleep(0.001)
    return {"length": len(line), "upper": line.upper()}


@pytest.fixture
def lines(lines_of):
    return lines_of("one\ntwo\n", "three\n")


ENTRY_POINTS = {
    "column": lambda df: df.select("line", measure("line").alias("m")).select("line", "m.*"),
    "ordered_wait": lambda df: ordered_wait(df, measure, "line"),
    "unordered_wait": lambda df: unordered_wait(df, measure),
}


@pytest.mark.promise("structured streaming")
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_a_stream_is_enriched(spark, lines, tmp_path, entry_point):
    """The column and both operator forms work over an unbounded table."""
    df = ENTRY_POINTS[entry_point](lines)
    assert df.isStreaming
    name = f"sink_{entry_point}"
    query = (
        df.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = sorted(tuple(row) for row in spark.table(name).collect())
    assert found == [("one", 3, "ONE"), ("three", 5, "THREE"), ("two", 3, "TWO")]
