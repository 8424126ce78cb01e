"""Functions as SQL table functions over TABLE(...): the entry point for unordered functions and for 0..n results."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

import pytest

from asyncudf import AsyncFunction, async_pandas_udf

pytestmark = pytest.mark.spark


@async_pandas_udf("temp double, sky string", output_mode="unordered")
async def weather(city, day=None):
    await asyncio.sleep(0.001)
    return {"temp": len(city) + 0.5, "sky": f"clear over {city} on {day}"} if city else None


@pytest.fixture(scope="module")
def sql(spark):
    trips = [(1, "Oslo", "Monday"), (2, "Bergen", "Friday"), (3, None, None)]
    spark.createDataFrame(trips, "id int, city string, day string").coalesce(1).createOrReplaceTempView("trips")
    weather.register(spark, "weather_at")

    def rows(query):
        return [tuple(row) for row in spark.sql(query).collect()]

    rows.spark = spark
    return rows


@pytest.mark.promise("table function")
def test_the_tables_columns_are_kept_and_the_results_appended(spark, sql):
    query = "SELECT * FROM weather_at(TABLE(trips), 'city') ORDER BY id"
    assert spark.sql(query).columns == ["id", "city", "day", "temp", "sky"]
    assert sql(query) == [
        (1, "Oslo", "Monday", 4.5, "clear over Oslo on None"),
        (2, "Bergen", "Friday", 6.5, "clear over Bergen on None"),
        (3, None, None, None, None),
    ]


def test_without_columns_those_called_like_the_parameters_are_read(sql):
    assert sql("SELECT sky FROM weather_at(TABLE(trips)) WHERE id = 1") == [("clear over Oslo on Monday",)]


def test_columns_are_named_by_parameter(sql):
    """`parameter => column`, in any order."""
    query = "SELECT sky FROM weather_at(TABLE(trips), day => 'city', city => 'day') WHERE id = 1"
    assert sql(query) == [("clear over Monday on Oslo",)]


@pytest.mark.parametrize("name", ["trips", "table", "row"])
def test_the_table_too_is_given_by_name(sql, name):
    """By any, at any place. `table => TABLE(trips)` was planned, and each row failed."""
    query = f"SELECT sky FROM weather_at(day => 'city', {name} => TABLE(trips), city => 'day') WHERE id = 1"
    assert sql(query) == [("clear over Monday on Oslo",)]


def test_parameters_may_be_called_like_those_of_the_class_that_spark_calls(spark, sql):
    @async_pandas_udf("string", output_mode="unordered")
    async def told(table, row="", self=""):
        return f"{table} {row} {self}"

    told.register(spark, "told")
    query = "SELECT told FROM told(TABLE(trips), self => 'city', row => 'day', table => 'id') WHERE id = 1"
    assert sql(query) == [("1 Monday Oslo",)]


def test_the_table_may_be_a_subquery_and_have_other_columns(spark, sql):
    query = "SELECT * FROM weather_at(TABLE(SELECT upper(city) AS town, id * 2 AS n FROM trips WHERE id = 1), 'town')"
    assert spark.sql(query).columns == ["town", "n", "temp", "sky"]
    assert sql(query) == [("OSLO", 2, 4.5, "clear over OSLO on None")]


def test_an_empty_table_gives_no_rows(sql):
    assert sql("SELECT * FROM weather_at(TABLE(SELECT * FROM trips WHERE id > 99), 'city')") == []


def test_a_partitioned_table_keeps_all_rows(sql):
    query = "SELECT id, temp FROM weather_at(TABLE(trips) PARTITION BY (day), 'city') ORDER BY id"
    assert sql(query) == [(1, 4.5), (2, 6.5), (3, None)]


def test_an_async_function_gets_a_mapping_and_gives_any_number_of_rows(spark, sql, journal):
    class Repeat(AsyncFunction):
        async def open(self, context):
            journal.write("open")

        async def async_invoke(self, value, result_future):
            result_future.complete([f"{sorted(value)} {n}" for n in range(value["id"] - 1)])

        async def close(self):
            journal.write("close")

    async_pandas_udf(Repeat(), "string").register(spark, "repeat_it")
    named = "SELECT id, Repeat FROM repeat_it(TABLE(trips), 'id', 'city')"
    assert sql(named) == [(2, "['city', 'id'] 0"), (3, "['city', 'id'] 0"), (3, "['city', 'id'] 1")]
    assert journal.lines == ["open", "close"]
    assert sql("SELECT Repeat FROM repeat_it(TABLE(trips)) WHERE id = 2") == [("['city', 'day', 'id'] 0",)]


def test_a_generator_with_the_default_mode_keeps_the_order(spark, sql):
    @async_pandas_udf("bigint")
    async def backwards(id):
        await asyncio.sleep((20 - id) / 1000)
        yield id

    backwards.register(spark, "backwards")
    found = sql("SELECT * FROM backwards(TABLE(SELECT id FROM range(0, 20, 1, 1)))")
    assert found == [(i, i) for i in range(20)]


def test_more_rows_than_are_handed_over_together(spark, sql):
    @async_pandas_udf(output_mode="unordered")
    async def negative(id: int) -> int:
        return -id

    negative.register(spark, "negative_of")
    query = "SELECT count(*), sum(id), sum(negative) FROM negative_of(TABLE(SELECT id FROM range(0, 2500, 1, 1)))"
    assert sql(query) == [(2500, 3123750, -3123750)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("weather_at(TABLE(trips), 'town')", "unknown column 'town'; there are: id, city, day"),
        ("weather_at(TABLE(trips), 'cty')", "unknown column 'cty'; did you mean 'city'?"),
        ("weather_at(TABLE(trips), town => 'city')", r"weather cannot take town by name.*\(city, day\)"),
        ("weather_at(TABLE(trips), 'city', 'day', 'id')", r"takes the columns \(city, day\), not 3"),
        ("weather_at(TABLE(trips), 5)", "names of its columns as strings"),
        ("weather_at('trips')", "first argument of weather is a table"),
        ("weather_at(TABLE(SELECT id FROM trips))", "unknown column 'city'"),
        ("weather_at(TABLE(SELECT city, 1 AS TEMP FROM trips))", "would add a column 'temp'"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(spark, sql, no_job, call, message):
    with no_job, pytest.raises(Exception, match=message):
        spark.sql(f"SELECT * FROM {call}")
