"""Which rows of a LookupTable count, whatever columns and functions are called, and what is never one of them."""

import asyncio
from datetime import timedelta

import pytest
import tenacity
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from asyncudf import FunctionError, LookupTable, OptionError, RetryStrategy
from tests.kit.lookup_tables import cities, update
from tests.kit.spark_functions import length

pytestmark = pytest.mark.spark


class TestNames:
    def test_no_column_of_the_user_is_taken_for_ours(self, spark, tmp_path):
        """A column `KEY` was dropped by the join, as was a result's field `Key`; an argument `Outcome` was refused."""

        async def both(Outcome: str) -> dict:  # noqa: N803 - the name is what is tested
            return {"Key": len(Outcome)}

        table = LookupTable(spark, str(tmp_path / "t"), both, returnType="Key int")
        df = spark.createDataFrame([("Oslo", 1, 2)], "Outcome string, `KEY_` int, `kEy__` int")
        assert update(table, df) == (1, 0, 0)
        assert table.join(df).columns == ["Outcome", "KEY_", "kEy__", "Key"]
        assert table.join(df).collect() == [("Oslo", 1, 2, 4)]
        assert table.to_df().select("Outcome", "Key").collect() == [("Oslo", 4)]

    @pytest.mark.parametrize("kind", ["parquet", "orc"])
    def test_columns_that_differ_in_case_only_are_the_same(self, spark, tmp_path, kind):
        where, df = str(tmp_path / "t"), cities(spark, "Oslo", None)
        upper, lower = (LookupTable(spark, where, length, name, format=kind) for name in ("CITY", "city"))
        assert update(upper, df) == (2, 0, 0)
        assert update(lower, df.union(cities(spark, "Rome"))) == (1, 2, 0)
        for table, name in [(upper, "CITY"), (lower, "city")]:
            assert update(table, cities(spark, "Oslo", "Rome", None)) == (0, 3, 0)
            assert table.to_df().columns[0] == name
            assert sorted(row.length for row in table.join(df).collect()) == [0, 4]

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

        with pytest.raises(FunctionError, match=f"would have two columns called '{name}'"):
            LookupTable(spark, str(tmp_path / "t"), both, *columns, returnType=returned)

    def test_a_column_that_is_not_there_is_told(self, spark, tmp_path):
        table = LookupTable(spark, str(tmp_path / "t"), length)
        for use in (lambda df: update(table, df), table.join):
            with pytest.raises(FunctionError, match="unknown column 'city'; did you mean 'cities'"):
                use(spark.createDataFrame([("a",)], "cities string"))
            with pytest.raises(FunctionError, match=r"column 'city' is there 2 times \(city, City\)"):
                use(cities(spark, "a").select("city", sf.col("city").alias("City")))
            with pytest.raises(OptionError, match="a LookupTable takes a DataFrame, not 'city'"):
                use("city")
        with pytest.raises(OptionError, match="a column must be a text"):
            LookupTable(spark, str(tmp_path / "t"), length, 1)


def test_results_of_another_function_do_not_count(spark, tmp_path):
    """The second function got the results of the first."""

    async def negative(city: str) -> int:
        return -len(city)

    where, df = str(tmp_path / "t"), cities(spark, "Oslo")
    for function, result in [(length, 4), (negative, -4)]:
        table = LookupTable(spark, where, function)
        assert table.join(df).collect() == [("Oslo", None)]
        assert update(table, df) == (1, 0, 0)
        assert table.join(df).collect() == [("Oslo", result)]
        assert update(LookupTable(spark, where, function), df) == (0, 1, 0)


@pytest.mark.parametrize("ttl", [timedelta.max, 1e12, 1e300, 10**15])
def test_a_ttl_may_be_longer_than_spark_can_count(spark, tmp_path, ttl):
    """Results of which no interval could be made were called for again each time."""
    table = LookupTable(spark, str(tmp_path / "t"), length, ttl=ttl, error_ttl=ttl)
    assert update(table, cities(spark, "Oslo")) == (1, 0, 0)
    assert update(table, cities(spark, "Oslo")) == (0, 1, 0)


class TestStandIns:
    """What only stands in for a result is not kept: it would be the result for ever."""

    def test_what_on_timeout_gives(self, spark, tmp_path):
        async def hangs(city: str) -> int:
            await asyncio.Event().wait()
            return 1

        table = LookupTable(spark, str(tmp_path / "t"), hangs, timeout=0.1, on_timeout=lambda city: -1)
        for _ in range(2):
            assert update(table, cities(spark, "Oslo")) == (1, 0, 1)
        [row] = table.to_df().collect()
        assert (row.hangs, row.error.type) == (None, "AsyncTimeoutError")

    @pytest.mark.parametrize(
        ("retry", "attempts"),
        [
            (RetryStrategy.fixed_delay(3, 0.001, retry_if_result=lambda n: n < 0), 3),
            (RetryStrategy.fixed_delay(3, 3600, retry_if_result=lambda n: n < 0), 1),  # ends at the deadline
            (
                tenacity.Retrying(stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_result(lambda n: n < 0)),
                2,
            ),
        ],
    )
    def test_the_last_of_results_that_are_not_good_enough(self, spark, tmp_path, journal, retry, attempts):
        async def poor(city: str) -> int:
            journal.write("call", city)
            return -1 if city == "bad" else 1

        table = LookupTable(spark, str(tmp_path / "t"), poor, retry=retry)
        df = cities(spark, "bad", "good")
        assert update(table, df) == (2, 0, 1)
        assert journal.lines.count("call bad") == attempts
        rows = {row.city: row for row in table.to_df().collect()}
        assert (rows["bad"].poor, rows["bad"].error.type, rows["good"].poor) == (None, "ResultError", 1)
        assert update(table, df) == (1, 1, 1)

    def test_errors_are_tried_again_as_before(self, spark, tmp_path, journal):
        async def shaky(city: str) -> int:
            journal.write("call", city)
            if len(journal) < 3:
                raise ConnectionError("busy")
            return 7

        table = LookupTable(spark, str(tmp_path / "t"), shaky, retry=RetryStrategy.fixed_delay(3, 0.001))
        assert update(table, cities(spark, "Oslo")) == (1, 0, 0)
        assert table.join(cities(spark, "Oslo")).collect() == [("Oslo", 7)]


def test_a_stream_is_joined_as_it_comes_and_updates_batch_by_batch(spark, tmp_path, lines_of):
    table = LookupTable(spark, str(tmp_path / "t"), length, "line")
    stream = lines_of("Oslo", "Rome\nOslo")
    with pytest.raises(FunctionError, match=r"this one is streaming; update with each batch of it: .*foreachBatch"):
        update(table, stream)
    done = []
    writer = stream.writeStream.foreachBatch(lambda batch, number: done.append(update(table, batch)))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(done) in ([(1, 0, 0), (1, 1, 0)], [(0, 1, 0), (2, 0, 0)])
    for how, where in [("left", "t"), ("inner", "t"), ("left", "none"), ("inner", "none")]:
        joined = LookupTable(spark, str(tmp_path / where), length, "line").join(stream, how=how)
        query = joined.writeStream.format("memory").queryName("lookup_joined").trigger(availableNow=True).start()
        query.awaitTermination(60)
        found = sorted(tuple(row) for row in spark.table("lookup_joined").collect())
        count = 0 if (how, where) == ("inner", "none") else 3
        assert [length for _, length in found] == [4 if where == "t" else None] * count


def test_a_job_that_fails_is_an_error_of_spark(spark, tmp_path):
    def broken():
        raise ValueError("no key for the service")

    async def f(city: str, client) -> int:
        return 1

    table = LookupTable(spark, str(tmp_path / "t"), f, resources={"client": broken})
    with pytest.raises(PySparkException, match="no key for the service"):
        update(table, cities(spark, "Oslo"))
