"""A dry run counts the calls that a function would make for the rows of a DataFrame, and calls nothing."""

import asyncio

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    DryRun,
    FunctionError,
    OptionError,
    RateLimit,
    ResultStore,
    async_pandas_udf,
    dry_run,
)
from asyncudf.testing import run_rows

pytestmark = pytest.mark.spark

ROWS = 100


@pytest.fixture
def weather(journal):
    async def weather(city: str) -> float:
        journal.write("called", city)
        return 1.0

    return async_pandas_udf(weather, capacity=10)


@pytest.fixture
def cities(spark):
    return spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('city ', id % 7) AS city")


@pytest.mark.promise("dry_run")
def test_rows_and_distinct_arguments_are_counted_and_nothing_is_called(cities, weather, journal):
    told = dry_run(cities, weather, "city", latency=2, price=0.01)
    assert told == DryRun("weather", ("city",), ROWS, 7, ROWS, ROWS, 2, 20, 10.0, 1.0)
    assert str(told).splitlines() == [
        "weather(city): 100 calls; nothing was called",
        "  rows      100",
        "  arguments 7 distinct",
        "  time      10 s, 20 calls in flight",
        "  cost      1",
    ]
    assert (len(journal), weather.__name__) == (0, "weather")


def test_with_a_store_each_distinct_argument_is_a_call(cities, weather):
    told = dry_run(cities, weather, "city", latency=2, price=0.01, store=ResultStore.executor(), version="1")
    assert (told.calls, told.calls_at_most, told.seconds, told.cost) == (7, ROWS, 2.0, pytest.approx(0.07))
    assert str(told).startswith("weather(city): 7 calls to expect, at most 100; nothing was called\n")


def test_only_the_columns_of_the_function_are_made(spark, weather, journal):
    """A column of another function, which this one does not read, calls nothing."""
    other = async_pandas_udf("string")(weather.spec.function)
    df = spark.range(ROWS).selectExpr("concat('city ', id % 7) AS city").withColumn("other", other("city"))
    assert dry_run(df, weather).distinct == 7
    assert dry_run(df.limit(0), weather, latency=1) == DryRun("weather", ("city",), 0, 0, 0, 0, 1, 10, 0.0, None)
    assert len(journal) == 0


def test_any_columns_and_functions(spark, cities, weather):
    """Columns are found as the operators find them; Spark cannot compare maps, and counts their rows alone."""

    class Ask(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([1])

    async def by_tags(tags) -> int:
        return 1

    @async_pandas_udf("double", batch_size=30)
    async def in_batches(city: pd.Series, id: pd.Series):  # noqa: A002
        return id

    tagged = cities.withColumn("tags", sf.create_map(sf.lit("a"), "id"))
    assert dry_run(tagged, by_tags).distinct is None
    assert "arguments" not in str(dry_run(tagged, by_tags))
    assert dry_run(cities, Ask()).columns == ("id", "city")
    assert dry_run(cities.toDF("a.b", "A"), weather, "`a.b`").distinct == ROWS
    assert dry_run(cities, weather, cities.city).columns == ("city",)
    batched = dry_run(cities, in_batches, counting="approximate")
    assert (batched.calls, batched.calls_at_most, batched.columns) == (4, ROWS, ("city", "id"))
    assert abs(batched.distinct - ROWS) < 15
    with pytest.raises(FunctionError, match="unknown column 'town'"):
        dry_run(cities, weather, "town")


@pytest.mark.parametrize("limit", [{"job_capacity": 4}, {"rate_limit": RateLimit(10, burst=1)}])
def test_the_time_is_that_of_the_limit_that_decides(spark, weather, limit):
    told = dry_run(spark.range(0, ROWS, 1, 1).selectExpr("string(id) AS city"), weather, latency=0.5, **limit)
    if "job_capacity" in limit:
        assert (told.capacity, told.seconds) == (4, 12.5)
        return

    async def ends(n: int) -> float:
        await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time()

    assert told.seconds == pytest.approx(max(run_rows(ends, range(ROWS), **limit)), rel=0.02)


def test_over_spark_connect(connect):
    assert (
        connect.run("""
@async_pandas_udf
async def told(x: int) -> int:
    raise AssertionError("called")

df = spark.range(0, 100, 1, 3).selectExpr("id % 7 AS x")
report = asyncudf.dry_run(df, told, "x", latency=1, capacity=5)
print(report.rows, report.distinct, report.calls, report.tasks, report.capacity)
""")
        == "100 7 100 3 15\n"
    )


def test_what_cannot_be_counted_is_refused(cities, weather, lines_of):
    with pytest.raises(OptionError, match=r"before the function is applied, .*dry_run\(df, function, 'city'\)"):
        dry_run(cities.withColumn("w", weather("city")))
    with pytest.raises(OptionError, match="takes a DataFrame, not 'SELECT 1'"):
        dry_run("SELECT 1", weather)
    with pytest.raises(OptionError, match="this one is streaming"):
        dry_run(lines_of("1"), weather, "line")
    for options in ({"latency": 0}, {"price": -1}, {"price": float("nan")}, {"price": True}, {"counting": "quick"}):
        with pytest.raises(OptionError, match=next(iter(options))):
            dry_run(cities, weather, **options)
