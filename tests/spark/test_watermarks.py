"""Watermarks from data: rows overtake each other only between two of them, in one operator and in a chain."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib

import pytest

from asyncudf import AsyncStream, WatermarkStrategy, async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark


@contextlib.asynccontextmanager
async def called():
    yield {}


@async_pandas_udf(resources=called, timeout=30.0)
async def fives_wait_for_the_next_five(id: int, called) -> int:
    """Rows 0, 5, 10 ... wait until the calls of the next five rows have started; the others return at once."""
    called.setdefault(id, asyncio.Event()).set()
    if id % 5 == 0 and id < 35:
        await called.setdefault(id + 9, asyncio.Event()).wait()
    return id


@async_pandas_udf(resources=called, timeout=30.0)
async def again(id: int, called) -> int:
    return await fives_wait_for_the_next_five.__wrapped__(id, called)


@pytest.fixture(scope="module")
def rows(spark):
    """Row i stands at i seconds after the epoch; late rows and other marks are in columns of their own."""
    return spark.range(0, 40, 1, 1).selectExpr(
        "id",
        "timestamp_seconds(id) AS ts",
        "timestamp_seconds(IF(id % 5 = 3, id - 100, id)) AS often_late",
        "id % 5 = 4 AS flag",
        "IF(id % 5 = 4, timestamp_seconds(id), NULL) AS fence",
        "TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, id) AS ntz",
        "id * 1000000 AS micros",
        "date_add(DATE'1970-01-01', CAST(id DIV 5 AS int)) AS day",
    )


# Between two fences the rows that return at once leave first; the one that waited leaves last.
FENCED = [i for start in range(0, 40, 5) for i in (start + 1, start + 2, start + 3, start + 4, start)]
FENCED[-5:] = [35, 36, 37, 38, 39]


@pytest.mark.promise("watermarks")
def test_no_row_passes_a_watermark(rows):
    found = unordered_wait(rows, fives_wait_for_the_next_five, watermark=WatermarkStrategy.for_punctuation("flag"))
    assert [tuple(row) for row in found.select("id", "fives_wait_for_the_next_five").collect()] == [
        (i, i) for i in FENCED
    ]


SECOND = 1_000_000


def written(df, column):
    found = df.selectExpr("id", f"unix_micros({column}) AS w").collect()
    return {row.id: row.w for row in found}


def test_the_watermark_in_force_is_written_beside_each_row(rows, conf):
    conf("spark.sql.session.timeZone", "Asia/Kolkata")
    monotonous = WatermarkStrategy.for_monotonous_timestamps("ts", interval=5)
    df = unordered_wait(rows, fives_wait_for_the_next_five, watermark=monotonous, with_watermark_column="w")
    assert df.columns[-2:] == ["fives_wait_for_the_next_five", "w"]
    assert df.schema["w"].dataType.typeName() == "timestamp"
    # the largest timestamp before the fence, less a microsecond
    assert written(df, "w") == {i: None if i < 5 else (i // 5 * 5 - 1) * SECOND - 1 for i in range(40)}


@pytest.mark.promise("watermarks")
def test_a_later_operator_rebuilds_the_segments_from_the_column(rows):
    flag = WatermarkStrategy.for_punctuation("flag")
    first = ordered_wait(rows, fives_wait_for_the_next_five, watermark=flag, with_watermark_column="w")
    second = unordered_wait(first, again, watermark=WatermarkStrategy.from_column("w"), with_watermark_column="w2")
    assert [row.id for row in second.collect()] == FENCED
    assert second.where("NOT (w <=> w2)").count() == 0


@pytest.mark.promise("watermarks")
@pytest.mark.spark_only("the size of a batch is 1,024 on Sail")
def test_each_arrow_batch_is_a_segment_for_all_operators(rows, conf):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    stream = AsyncStream(rows).assign_timestamps_and_watermarks(WatermarkStrategy.per_batch())
    stream = stream.filter(lambda row: True).unordered_wait(fives_wait_for_the_next_five)
    assert [row.id for row in stream.unordered_wait(again).collect()] == FENCED
