"""Which rows of a LookupTable count, whatever columns and functions are called, and what is never one of them."""

from collections import Counter
from functools import reduce

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncudf import FunctionError, LookupTable, OptionError
from tests.kit.lookup_tables import cities, update
from tests.kit.spark_functions import length

pytestmark = pytest.mark.spark


class TestNames:
    @pytest.mark.parametrize(
        ("columns", "returned", "name"),
        [
            (["error"], "int", "error"),
            (["Called_At"], "int", "Called_At"),
            (["city", "City"], "int", "city"),
            (["city"], "error string", "error"),
            (["city"], "a int, CITY int", "city"),
            (["both"], "int", "both"),
        ],
    )
    def test_no_two_columns_have_one_name(self, spark, tmp_path, columns, returned, name):
        """An argument `error` was called and paid for, and `to_df` could not be read."""

        async def both(one: str, other: str = "") -> dict:
            return {}

        with pytest.raises(FunctionError, match=f"the LookupTable of both would add a column (?i:'{name}')"):
            LookupTable(spark, str(tmp_path / "t"), both, *columns, returnType=returned)

    def test_a_column_that_is_not_there_is_told(self, spark, tmp_path):
        table = LookupTable(spark, str(tmp_path / "t"), length)
        for use in (lambda df: update(table, df), table.join):
            with pytest.raises(FunctionError, match="unknown column 'city'; did you mean 'cities'"):
                use(spark.createDataFrame([("a",)], "cities string"))
            with pytest.raises(PySparkException, match=r"AMBIGUOUS_REFERENCE"):
                use(cities(spark, "a").select("city", sf.col("city").alias("City")))
            with pytest.raises(OptionError, match="a LookupTable takes a DataFrame, not 'city'"):
                use("city")
        with pytest.raises(OptionError, match="a column must be a text"):
            LookupTable(spark, str(tmp_path / "t"), length, 1)


@pytest.mark.spark_only("foreachBatch runs in the process of the test")
def test_a_stream_is_joined_as_it_comes_and_updates_batch_by_batch(spark, tmp_path, lines_of, to_its_end):
    table = LookupTable(spark, str(tmp_path / "t"), length, "line")
    stream = lines_of("Oslo", "Rome\nOslo")
    with pytest.raises(PySparkException, match="streaming sources must be executed with writeStream"):
        update(table, stream)
    done = []
    writer = stream.writeStream.foreachBatch(lambda batch, number: done.append(update(table, batch)))
    to_its_end(writer)
    assert sorted(done) in ([(1, 0, 0), (1, 1, 0)], [(0, 1, 0), (2, 0, 0)])
    joins = [
        LookupTable(spark, str(tmp_path / where), length, "line")
        .join(stream, how=how)
        .withColumn("joined", sf.lit(f"{how} {where}"))
        for how in ("left", "inner")
        for where in ("t", "none")
    ]
    to_its_end(reduce(DataFrame.union, joins).writeStream.format("memory").queryName("lookup_joined"), "joins")
    found = Counter((row.joined, row.length) for row in spark.table("lookup_joined").collect())
    assert found == {("left t", 4): 3, ("inner t", 4): 3, ("left none", None): 3}


def test_a_job_that_fails_is_an_error_of_spark(spark, tmp_path):
    def broken():
        raise ValueError("no key for the service")

    async def f(city: str, client) -> int:
        return 1

    table = LookupTable(spark, str(tmp_path / "t"), f, resources={"client": broken})
    with pytest.raises(PySparkException, match="no key for the service"):
        update(table, cities(spark, "Oslo"))
