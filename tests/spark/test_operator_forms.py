"""ordered_wait and unordered_wait: results beside the columns of a DataFrame."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import functools
from importlib.util import find_spec

import pyspark
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncudf import DEAD_LETTERS, AsyncFunction, AsyncStream, async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark


@async_pandas_udf("temp double, sky string")
async def weather(city):
    return {"temp": len(city) + 0.5, "sky": f"clear over {city}"} if city else None


@async_pandas_udf
async def shout(city: str, times: int = 1) -> str:
    await asyncio.sleep(0.001)
    return f"{city}{'!' * times}"


@pytest.fixture(scope="module")
def trips(spark):
    return spark.createDataFrame(
        [(1, "Oslo", 2), (2, "Bergen", 3), (3, None, 0)], "id int, city string, times int"
    ).coalesce(1)


def test_the_fields_of_a_struct_become_columns(trips):
    df = ordered_wait(trips, weather, "city")
    assert df.columns == ["id", "city", "times", "temp", "sky"]
    assert [tuple(row) for row in df.collect()] == [
        (1, "Oslo", 2, 4.5, "clear over Oslo"),
        (2, "Bergen", 3, 6.5, "clear over Bergen"),
        (3, None, 0, None, None),
    ]


@pytest.mark.parametrize("profiler", ["perf", "memory"])
def test_a_query_under_sparks_profiler_gives_its_rows(trips, conf, profiler):
    """The profile has Spark's thread alone before Python 3.12; the page on monitoring has another way."""
    if profiler == "memory" and pyspark.__version__.startswith("4.1.") and find_spec("memory_profiler") is None:
        pytest.skip("for this Spark 4.1 needs the package memory-profiler")
    conf("spark.sql.pyspark.udf.profiler", profiler)
    expected = ["Oslo!!", "Bergen!!!", "None"]
    assert [row.shout for row in ordered_wait(trips, shout).collect()] == expected
    assert [row[0] for row in trips.select(shout("city", "times")).collect()] == expected


@pytest.mark.spark_only("metadata of columns")
def test_columns_keep_what_spark_knows_of_them(trips, stream_of):
    """It was lost beside dead letters, behind a union, and where PySpark would not find each column by its name."""
    known = {"city": {"comment": "the town"}, "times": {"ml_attr": {"type": "nominal", "vals": ["a", "b"]}}}
    df = functools.reduce(lambda df, name: df.withMetadata(name, known[name]), known, trips)

    @async_pandas_udf("temp double COMMENT 'in Kelvin'")
    async def kelvin(city):
        return {"temp": 280.0}

    with_results = {**known, "temp": {"comment": "in Kelvin"}}
    stream, lettered = stream_of(df), stream_of(df).ordered_wait(kelvin, on_error="dead_letter")
    for found, wanted in (
        (ordered_wait(df, kelvin), with_results),
        (ordered_wait(df.withColumn("a.b", sf.lit(1)), kelvin), with_results),
        (stream.union(stream.filter(lambda row: row["id"] > 1)).to_df(), known),
        (lettered.to_df(), with_results),
        (lettered.side_output(DEAD_LETTERS), known),
    ):
        assert {field.name: field.metadata for field in found.schema if field.metadata} == wanted


def test_without_columns_those_called_like_the_parameters_are_read(trips):
    assert ordered_wait(trips, shout).first().shout == "Oslo!!"
    assert ordered_wait(trips.drop("times"), shout).first().shout == "Oslo!"  # the parameter's own default


@pytest.fixture(scope="module")
def dotted(spark):
    """A column whose name Spark reads in backticks only, and one whose name is not the only one."""
    return spark.range(5, 6).selectExpr("id", "id * 2 AS `a.b`", "id * 3 AS `b``c`").alias("t")


@async_pandas_udf
async def told(x: int) -> int:
    return x


REFERENCES = {
    "col": (lambda df: sf.col("id"), 5),
    "a column in capitals": (lambda df: sf.col("ID"), 5),
    "an attribute": (lambda df: df.id, 5),
    "an item": (lambda df: df["`a.b`"], 10),
    "with the DataFrame's name": (lambda df: sf.col("t.id"), 5),
    "col with a quoted name": (lambda df: sf.col("`a.b`"), 10),
    "a quoted name": (lambda df: "`a.b`", 10),
    "a name with backticks": (lambda df: "`b``c`", 15),
    "the name itself": (lambda df: "a.b", 10),
}


@pytest.mark.spark_only("a client does not know a DataFrame's alias")
def test_a_column_is_given_by_a_reference_or_a_quoted_name(dotted):
    """As to a column function, and to Spark's own methods."""
    wanted = {name: expected for name, (_, expected) in REFERENCES.items()}
    for wait in (ordered_wait, lambda df, *args: AsyncStream(df).unordered_wait(*args)):
        results = [
            wait(dotted, told, made(dotted)).select(sf.lit(name), "told") for name, (made, _) in REFERENCES.items()
        ]
        assert dict(map(tuple, functools.reduce(DataFrame.union, results).collect())) == wanted


class Visits(AsyncFunction):
    """As many results for a row as its column `times` says."""

    async def async_invoke(self, value, result_future):
        result_future.complete([f"{sorted(value)} {n}" for n in range(value["times"])])


@pytest.mark.promise("0 to n results")
@pytest.mark.parametrize(("wait", "form"), [(ordered_wait, "class"), (unordered_wait, "async_pandas_udf")])
def test_an_async_function_gets_a_mapping_and_gives_any_number_of_rows(trips, wait, form):
    function = Visits if form == "class" else async_pandas_udf(Visits(), "string")
    options = {"returnType": "string"} if form == "class" else {}
    named = wait(trips, function, "times", "city", **options).orderBy("id", "Visits").collect()
    assert [(row.id, row.Visits) for row in named] == [
        (1, "['city', 'times'] 0"),
        (1, "['city', 'times'] 1"),
        (2, "['city', 'times'] 0"),
        (2, "['city', 'times'] 1"),
        (2, "['city', 'times'] 2"),
    ]
    assert wait(trips, function, **options).orderBy("id").first().Visits == "['city', 'id', 'times'] 0"


@pytest.mark.usefixtures("small_batches")
def test_unordered_wait_lets_every_row_pass_a_slow_one(spark):
    @contextlib.asynccontextmanager
    async def last():
        yield asyncio.Event()

    async def first_waits_for_last(id: int, last) -> int:
        if id == 0:
            await last.wait()
        if id == 39:
            last.set()
        return id

    df = unordered_wait(spark.range(0, 40, 1, 1), first_waits_for_last, resources=last)
    rows = [tuple(row) for row in df.collect()]
    assert sorted(rows) == [(i, i) for i in range(40)], "each row keeps its own result"
    assert rows.index((0, 0)) >= 38


@pytest.mark.promise("0 to n results")
@pytest.mark.usefixtures("small_batches")
def test_every_result_stands_beside_its_own_row_when_many_rows_change_places(spark):
    async def stops(id: int):
        await asyncio.sleep(id * 7919 % 13 / 2000)
        for n in range(id % 4):
            yield {"stop": id * 10 + n}

    df = spark.sql("SELECT id, concat('p', id) AS p, array(id) AS a FROM range(0, 3000, 1, 2)")
    rows = unordered_wait(df, stops, "id", returnType="stop bigint", capacity=50).collect()
    assert sorted(row.stop for row in rows) == [i * 10 + n for i in range(3000) for n in range(i % 4)]
    assert all((row.p, row.a) == (f"p{row.id}", [row.id]) and row.stop // 10 == row.id for row in rows)
