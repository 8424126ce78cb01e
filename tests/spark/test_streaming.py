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
