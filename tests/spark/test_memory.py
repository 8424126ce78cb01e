"""At every entry point the rows that wait count with the input that they keep alive."""

# ruff: noqa: A002 - parameters are called like the columns

import asyncio

import pytest

from asyncudf import async_pandas_udf, monitor, ordered_wait

pytestmark = pytest.mark.spark

ROWS, SIZE = 5_000, 2_000
INPUT = 2 * 1_000  # rows of the two newest batches: of 100 rows, or of 1,000 for a table function


class Door:
    """Opens when all rows have come to it."""

    def __init__(self):
        self._came, self._opens = 0, None

    async def wait(self, *, here):
        self._opens = self._opens or asyncio.Event()
        self._came += 1
        if self._came == ROWS:
            self._opens.set()
        if here:
            await self._opens.wait()


def reads():
    door = Door()

    @async_pandas_udf("string")
    async def call(id, page=""):
        await door.wait(here=id == 0)
        return str(id)

    return call


def of_table_function(spark, df):
    door = Door()

    @async_pandas_udf("string")
    async def call(id, page):
        await door.wait(here=id == 0)
        yield str(id)

    df.createOrReplaceTempView("pages")
    call.register(spark, "read_page")
    return spark.sql("SELECT * FROM read_page(TABLE(pages) WITH SINGLE PARTITION, 'id', 'page')")


ENTRY_POINTS = {
    "column": lambda spark, df: df.select(reads()("id", "page")),
    "operator": lambda spark, df: ordered_wait(df, reads(), "id", "page"),
    "column that passes through": lambda spark, df: ordered_wait(df, reads(), "id"),
    "table function": of_table_function,
}


@pytest.mark.promise("memory")
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_rows_that_wait_count_with_their_input(spark, conf, name):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    df = spark.range(0, ROWS, 1, 1).selectExpr("id", f"repeat('x', {SIZE}) AS page")
    with monitor(spark) as run:
        assert len(ENTRY_POINTS[name](spark, df).collect()) == ROWS
    (function,) = [one for one in run.metrics["functions"] if one["rows"]]
    assert (ROWS - INPUT) * SIZE <= function["bytes_peak"] <= 3 * ROWS * SIZE
