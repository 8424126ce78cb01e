"""A row that fails is a dead letter: its input, and what went wrong."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import pytest
from pyspark.sql import functions as sf

from asyncudf import DEAD_LETTERS, async_pandas_udf
from tests.kit.frames import tuples
from tests.kit.spark_functions import halved

pytestmark = pytest.mark.spark


@async_pandas_udf(on_error="dead_letter")
async def inverted(half: int) -> float:
    return 1 / half


@pytest.mark.promise("side outputs")
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
