"""An async function as a column and as a SQL function."""

import asyncio
import functools
import re
from collections.abc import Iterator

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def people(spark):
    rows = [("Ada", 36), ("Grace", 85), (None, 1), ("Alan", None)]
    df = spark.createDataFrame(rows, "name string, age bigint").coalesce(1).cache()
    df.createOrReplaceTempView("people")
    return df


@async_pandas_udf
async def describe(name: str, age: int = -1, suffix: str = "") -> str:
    await asyncio.sleep(0.001)
    return f"{name} {age}{suffix}"


def test_a_column_is_made_of_names_columns_and_expressions_by_position_or_by_name(people):
    columns = [
        describe("name"),
        describe(sf.col("name"), sf.col("age")),
        describe(age="age", name="name"),
        describe("name", age=sf.col("age") + 1),
        describe(sf.lower("name"), "age", sf.lit("!")),
    ]
    assert tuple(people.select(*columns).first()) == ("Ada -1", "Ada 36", "Ada 36", "Ada 37", "ada 36!")


@pytest.mark.parametrize("how", ["spark.udf.register", "its own register"])
def test_a_registered_function_is_called_in_sql(spark, people, how):
    if how == "spark.udf.register":
        spark.udf.register("describe_sql", describe)
    else:
        describe.register(spark, "describe_sql")
    query = "SELECT describe_sql(name, age) AS d FROM people WHERE describe_sql(name) LIKE 'A%'"
    assert [row.d for row in spark.sql(query).collect()] == ["Ada 36", "Alan None"]


@pytest.mark.spark_only("its words for an error")
def test_arguments_by_name_in_sql_give_no_result(spark, people):
    """Spark refuses them for functions of an iterator of batches, from 4.0 on by a message that says what works."""
    describe.register(spark, "describe_named")
    refusals = r"NAMED_PARAMETERS_NOT_SUPPORTED.*positional arguments|Cannot evaluate expression: age =>"
    with pytest.raises(Exception, match=refusals):
        spark.sql("SELECT describe_named(age => age, name => name) FROM people").collect()
    assert spark.sql("SELECT describe_named(name, -1, '?') FROM people").first()[0] == "Ada -1?"


class Pickled:
    """An async function that tells how often it was pickled."""

    __name__ = "pickled"
    times = 0

    async def __call__(self, x):
        return x

    def __reduce__(self):
        type(self).times += 1
        return Pickled, ()


@pytest.mark.parametrize("how", ["spark.udf.register", "its own register"])
def test_a_function_is_planned_once_when_it_is_registered(spark, how):
    """It was planned for its type as well, and pickled once more for that."""
    udf, before = async_pandas_udf(Pickled(), "long"), Pickled.times
    spark.udf.register("pickled", udf) if how == "spark.udf.register" else udf.register(spark, "pickled")
    assert Pickled.times - before == 2  # once to say what is wrong with it, once by Spark


@async_pandas_udf
async def all_optional(name: str = "nobody") -> str:
    return name


@pytest.mark.parametrize(
    ("function", "call", "message"),
    [
        (describe, "f()", r"describe takes .*column.* \(name, age, suffix\)"),
        (describe, "f(name, age, name, name)", r"describe takes the columns \(name, age, suffix\), not 4"),
        (all_optional, "f()", "all_optional takes at least one column"),
    ],
    ids=["too few", "too many", "none, all being optional"],
)
@pytest.mark.usefixtures("people")
def test_a_sql_call_with_a_wrong_number_of_columns_says_so(spark, spark_error, function, call, message):
    """Spark asks nobody before it runs the query; the error must be clear at least."""
    spark.udf.register("f", function)
    assert re.search(message, spark_error(spark.sql(f"SELECT {call} FROM people")))


def test_two_async_columns_and_one_over_the_result_of_another(spark):
    @async_pandas_udf
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @async_pandas_udf
    async def text(x: int, y: int) -> str:
        return f"{x}/{y}"

    df = spark.range(0, 20, 1, 1).select("id", double("id").alias("twice"), text("id", double(double("id"))).alias("t"))
    assert [tuple(row) for row in df.collect()] == [(i, 2 * i, f"{i}/{4 * i}") for i in range(20)]


@pytest.mark.usefixtures("small_batches")
def test_beside_and_around_ordinary_pandas_udfs_of_the_same_query(spark, spark_error):
    """Before Spark 4.1 an async column is a pandas UDF too, and Spark may evaluate one with the results of another."""

    @async_pandas_udf
    async def successor(x: int) -> int:
        return x + 1

    def tenfold(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return (series * 10 for series in batches)

    def half(series: pd.Series) -> pd.Series:
        return series // 2

    tenfold, half = sf.pandas_udf(tenfold, "bigint"), sf.pandas_udf(half, "bigint")
    one = successor("id")
    found = (
        spark.range(0, 20, 1, 1).select(one, tenfold("id"), tenfold(one), half(one), successor(half("id"))).collect()
    )
    assert sorted(map(tuple, found)) == [(i + 1, 10 * i, 10 * i + 10, (i + 1) // 2, i // 2 + 1) for i in range(20)]
    after = spark.range(5, 6).select(successor(tenfold("id")))
    if hasattr(sf, "arrow_udf"):
        assert after.first()[0] == 51
    else:
        assert "ordered_wait(df.withColumn('c', tenfold(...)), successor, 'c')" in spark_error(after)


def test_all_that_can_be_called_can_be_a_column(spark):
    class Adder:
        def __init__(self, summand):
            self.summand = summand

        async def __call__(self, x: int) -> int:
            return x + self.summand

        async def method(self, x: int) -> int:
            return x + self.summand

    async def add(x: int, y: int) -> int:
        return x + y

    async def total(*numbers: int) -> int:
        return sum(numbers)

    columns = [
        async_pandas_udf(Adder(1))("id"),
        async_pandas_udf(Adder(2).method)("id"),
        async_pandas_udf(functools.partial(add, y=3))("id"),
        async_pandas_udf(lambda x: x + 4, "bigint")("id"),
        async_pandas_udf(total)("id", sf.lit(2), "id"),
    ]
    assert [spark.range(5, 6).select(column).first()[0] for column in columns] == [6, 7, 8, 9, 12]


def test_broadcasts_accumulators_and_the_task_context_work_as_in_any_udf(spark):
    names = spark.sparkContext.broadcast({0: "zero", 1: "one"})
    calls = spark.sparkContext.accumulator(0)

    @async_pandas_udf
    async def name(x: int) -> str:
        from pyspark import TaskContext

        await asyncio.sleep(0)
        calls.add(1)
        return f"{names.value[x]} in partition {TaskContext.get().partitionId()}"

    found = [row[0] for row in spark.range(0, 2, 1, 2).select(name("id")).collect()]
    assert found == ["zero in partition 0", "one in partition 1"]
    assert calls.value == 2


def test_a_column_may_stand_where_spark_takes_an_expression(spark):
    @async_pandas_udf
    async def negative(x: int) -> int:
        return -x

    df = spark.range(0, 4, 1, 1)
    assert [row.id for row in df.where(negative("id") < -1).collect()] == [2, 3]
    assert [row.id for row in df.orderBy(negative("id")).collect()] == [3, 2, 1, 0]
    mixed = df.select(sf.when(sf.col("id") > 1, negative("id") * 2).otherwise(sf.lit(0)))
    assert [row[0] for row in mixed.collect()] == [0, 0, -4, -6]
