"""A row that fails is a dead letter: its input, and what went wrong."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import DEAD_LETTERS, AsyncFunction, AsyncStream, async_pandas_udf
from tests.kit.frames import tuples
from tests.kit.spark_functions import from_a_coroutine, halved

pytestmark = pytest.mark.spark


@async_pandas_udf(on_error="dead_letter")
async def inverted(half: int) -> float:
    return 1 / half


def test_a_dead_letter_is_the_input_and_what_went_wrong(spark, stream_of):
    df = spark.range(0, 4, 1, 2).withColumn("part", sf.spark_partition_id()).withColumn("xs", sf.array("id"))
    stream = stream_of(df).ordered_wait(halved)
    letters = stream.side_output(DEAD_LETTERS)
    assert letters.columns == [*df.columns, "error"]
    error = "struct<type:string,message:string,attempts:int,elapsed:double,status:int,function:string,partition:int>"
    assert dict(letters.dtypes)["error"] == error
    first, second = sorted(letters.collect())
    assert (first.id, first.part, first.xs) == (1, 0, [1])
    wanted = {"type": "ValueError", "message": "1 is odd", "attempts": 2, "function": "halved", "partition": 0}
    assert {**first.error.asDict(), **wanted} == first.error.asDict()
    assert first.error.elapsed > 0.009, "the back-off is part of it, but for what the clock rounds off"
    assert (second.id, second.error.partition, second.error.message) == (3, 1, "3 is odd")
    assert sorted(tuples(stream.select("id", "half"))) == [(0, 0), (2, 1)]


def test_dead_letters_of_several_operators_are_one_table(spark, stream_of):
    stream = stream_of(spark.range(0, 4, 1, 2)).unordered_wait(halved).ordered_wait(inverted)
    letters = stream.side_output(DEAD_LETTERS)
    assert letters.columns == ["id", "half", "error"]
    assert tuples(letters.select("id", "half", "error.function", "error.type").orderBy("id")) == [
        (0, 0, "inverted", "ZeroDivisionError"),
        (1, None, "halved", "ValueError"),
        (3, None, "halved", "ValueError"),
    ]
    assert tuples(stream) == [(2, 1, 1.0)]


def reordered(s):
    s = s.ordered_wait(halved).map(lambda row: {"half": row["half"], "id": row["id"]}, "half int, id bigint")
    return s.ordered_wait(inverted)


def swapped(s):
    stream = s.map(lambda row: {"id": row["id"], "half": int(row["id"])}, "id bigint, half int")
    stream = stream.ordered_wait(from_a_coroutine, on_error="dead_letter")
    stream = stream.map(lambda row: {"half": row["half"], "id": row["id"] + 10}, "half int, id bigint")
    return stream.ordered_wait(inverted)


def test_dead_letters_of_operators_whose_columns_stand_in_another_order(spark, stream_of):
    letters = swapped(stream_of(spark.range(1))).side_output(DEAD_LETTERS)
    assert tuples(letters.select("id", "half", "error.function")) == [(10, 0, "inverted")]


def test_dead_letters_of_operators_with_other_columns_have_nulls(spark, stream_of):
    letters = reordered(stream_of(spark.range(0, 2, 1, 1))).side_output(DEAD_LETTERS)
    assert tuples(letters.select("id", "half").orderBy("id")) == [(0, 0), (1, None)]


@pytest.mark.parametrize("why", ["timeout", "attempt_timeout", "mismatch", "bad completion"])
def test_every_kind_of_failure_is_a_dead_letter(spark, stream_of, why):
    class Fails(AsyncFunction):
        async def async_invoke(self, value, result_future):
            if "timeout" in why:
                await asyncio.Event().wait()
            result_future.complete("text" if why == "bad completion" else ["text"])

    options = {"timeout": 0.05} if why == "timeout" else {"attempt_timeout": 0.05}
    stream = stream_of(spark.range(0, 2, 1, 1)).unordered_wait(
        Fails(), returnType="int", on_error="dead_letter", **options
    )
    found = tuples(stream.side_output(DEAD_LETTERS).select("id", "error.type").orderBy("id"))
    assert found == [(i, "AsyncTimeoutError" if "timeout" in why else "ResultError") for i in (0, 1)]
    assert stream.count() == 0


def test_the_rows_of_a_failed_micro_batch_are_dead_letters(spark, stream_of):
    @async_pandas_udf("double", batch_size=4, on_error="dead_letter")
    async def batched(id: pd.Series) -> pd.Series:
        if (id == 5).any():
            raise ValueError("five")
        return id / 2

    stream = stream_of(spark.range(0, 10, 1, 1)).ordered_wait(batched)
    assert [row.id for row in stream.collect()] == [0, 1, 2, 3, 8, 9]
    letters = stream.side_output(DEAD_LETTERS).select("id", "error.message", "error.attempts")
    assert tuples(letters.orderBy("id")) == [(i, "five", 1) for i in (4, 5, 6, 7)]


def test_dead_letters_are_a_table_in_sql(spark, stream_of):
    stream = stream_of(spark.range(0, 5, 1, 2)).ordered_wait(halved).ordered_wait(inverted)
    stream.side_output(DEAD_LETTERS).createOrReplaceTempView("letters")
    found = spark.sql("SELECT error.function, count(*), min(id) FROM letters GROUP BY 1 ORDER BY 1")
    assert tuples(found) == [("halved", 2, 1), ("inverted", 1, 0)]


def test_main_and_dead_letters_are_written_from_one_evaluation(spark, stream_of, journal, tmp_path):
    async def picky(id: int) -> int:
        journal.write("call", id)
        return 10 // id

    stream = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(picky, on_error="dead_letter")
    stream.write.parquet(str(tmp_path / "main"))
    stream.side_output(DEAD_LETTERS).write.parquet(str(tmp_path / "letters"))
    assert sorted(tuples(spark.read.parquet(str(tmp_path / "main")))) == [(1, 10), (2, 5), (3, 3), (4, 2), (5, 2)]
    assert tuples(spark.read.parquet(str(tmp_path / "letters")).select("id", "error.function")) == [(0, "picky")]
    assert len(journal) == 6


def test_dead_letters_behind_branches_and_a_union(spark, stream_of):
    shared = stream_of(spark.range(0, 4, 1, 1)).ordered_wait(halved)
    nothing = shared.filter(lambda row: False)
    further = shared.ordered_wait(inverted).map(lambda row: {"id": row["id"], "half": 0}, "id bigint, half int")
    joined = nothing.union(further)
    frames = AsyncStream.collect(
        joined=joined, all=joined.side_output(DEAD_LETTERS), shared=shared.side_output(DEAD_LETTERS)
    )
    assert sorted(row.id for row in frames["shared"].collect()) == [1, 3]
    assert sorted(row.id for row in frames["all"].collect()) == [0, 1, 3]
    assert tuples(frames["joined"]) == [(2, 0)]
