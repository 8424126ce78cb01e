"""A LIMIT that cuts where Spark's connection cannot be found: how many calls are made beyond it, and that they end.

Python then learns that Spark has stopped reading only when it writes into a closed connection. Three fills of Spark's
buffer (spark.buffer.size, 64 KB) stand before that: the first reaches Spark with the rows that it wanted, the closed
connection still takes the second, and the third fails. Each fill is overrun by the results that wait to be written
together: those of a twentieth of a second, or on a busy machine at most 10,000 rows.
"""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import os

import pytest

from asyncudf import async_pandas_udf, ordered_wait

pytestmark = pytest.mark.spark

BUFFER = 64 * 1024
WRITTEN_TOGETHER = 10_000
ROWS = 60_000


class NoConnection:
    """Hides Spark's connection from the next task in the worker that unpickles it."""

    def __reduce__(self):
        return hide, ()


def hide():
    from asyncudf._spark import worker

    find = worker._stream_to_spark

    def find_nothing():
        worker._stream_to_spark = find

    worker._stream_to_spark = find_nothing


@pytest.fixture
def called(journal):
    hidden = NoConnection()

    @contextlib.asynccontextmanager
    async def client():
        assert hidden is None, "what `hide` returns"
        journal.write("open", os.getpid())
        try:
            yield
        finally:
            journal.write("close", os.getpid())

    @async_pandas_udf(resources=client, capacity=100)
    async def called(id: int, size: int, client) -> str:
        journal.write("call", id)
        await asyncio.sleep(0.001)
        return "x" * size

    return called


def column(df, called):
    return df.select("id", called("id", "size").alias("called"))


def rows(spark, size):
    return spark.range(0, ROWS, 1, 1).selectExpr("id", f"{size} AS size")


def test_a_plain_limit_is_pushed_below_a_column(spark, called, journal):
    assert len(column(rows(spark, 8), called).limit(5).collect()) == 5
    assert journal.count("call") == 5


def test_a_limit_before_an_operator_form_is_heeded_exactly(spark, called, journal):
    assert len(ordered_wait(rows(spark, 8).limit(5), called).collect()) == 5
    assert journal.count("call") == 5


@pytest.mark.parametrize(
    ("entry_point", "size", "filtered"),
    [(column, 8, True), (ordered_wait, 1000, False)],
    ids=["a column and narrow rows", "ordered_wait and wide rows without a filter"],
)
def test_the_calls_beyond_a_limit_are_bounded_and_end(
    spark, called, journal, workers, until, entry_point, size, filtered
):
    df = entry_point(rows(spark, size), called)
    found = (df.where("called > ''") if filtered else df).limit(5).collect()
    assert len(found) == 5
    until(lambda: journal.count("close") == 1, "the resource is closed")
    calls = journal.count("call")
    print(f"LIMIT 5, {entry_point.__name__}, {size} bytes: {calls} calls")  # noqa: T201 - shown with pytest -s
    assert calls <= 3 * (BUFFER // size + WRITTEN_TOGETHER)
    workers.assert_clean({int(line.split()[1]) for line in journal.lines if line.startswith("open")}, reused=False)
    assert journal.count("call") == calls, "no call after the close"
    assert journal.count("open") == 1
