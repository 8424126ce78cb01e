"""A row that fails is a dead letter: its input, and what went wrong."""

import pytest
from pyspark.sql import functions as sf

from asyncudf import DEAD_LETTERS
from tests.kit.frames import tuples
from tests.kit.spark_functions import halved

pytestmark = pytest.mark.spark


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
