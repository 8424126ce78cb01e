"""A service is called once for each row, whatever the optimizer does with the plan around the function."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import re
from pathlib import Path

import pytest
from pyspark.sql import functions as sf

from asyncudf import ResultStore, async_pandas_udf, ordered_wait

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("adaptive")]

ROWS = 100
PAGE = Path(__file__).parents[2] / "docs" / "calls.md"


@pytest.fixture
def called(journal):
    @async_pandas_udf
    async def called(id: int) -> int:
        journal.write("called", id)
        return id % 10

    return called


# docs/calls.md has some of these: query, calls for 100 rows, and with deterministic=True.
MENTIONS = {
    "SELECT f(id).a, f(id).b FROM t": (200, 100),
    "SELECT f(id).a FROM t WHERE f(id).b > 0": (190, 190),
    "SELECT r.a, r.b FROM (SELECT f(id) r FROM t)": (100, 100),
    "SELECT r.a FROM (SELECT f(id) r FROM t) WHERE r.b > 0": (100, 190),
    "SELECT r.a FROM (SELECT f(id) r FROM t) WHERE r.b IS NOT NULL": (100, 200),
    "SELECT r.a FROM (SELECT f(id) r FROM t) JOIN range(10) k ON r.b = k.id": (100, 200),
    "SELECT r.b, count(*) FROM (SELECT f(id) r FROM t) GROUP BY r.b": (100, 100),
    "SELECT CASE WHEN id < 10 THEN f(id).a END FROM t": (100, 100),
    "SELECT id, r.a FROM (SELECT id, f(id) r FROM t) ORDER BY id": (200, 200),
}


@pytest.mark.spark_only("tests/engines/calls_on_sail.md has the calls on Sail")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("query", MENTIONS)
def test_the_calls_of_the_page_are_made(spark, journal, query, deterministic):
    @async_pandas_udf("a int, b int", deterministic=deterministic)
    async def f(id: int):
        journal.write("called", id)
        return {"a": id, "b": id % 10}

    spark.udf.register("f", f)
    spark.range(0, ROWS, 1, 2).createOrReplaceTempView("t")
    spark.sql(query).collect()
    assert len(journal) == MENTIONS[query][deterministic]


@pytest.mark.parametrize(
    "query", ["f(id).a FROM t WHERE f(id).b > 0", "r.a FROM (SELECT f(id) r FROM t) WHERE r.b > 0"]
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_with_a_store_only_the_first_mention_is_a_call(spark, journal, query, deterministic):
    @async_pandas_udf(
        "a int, b int", deterministic=deterministic, store=ResultStore.executor(), version=f"{query} {deterministic}"
    )
    async def f(id: int):
        journal.write("called", id)
        return {"a": id, "b": id % 10}

    spark.udf.register("f", f)
    spark.range(0, ROWS, 1, 2).createOrReplaceTempView("t")
    assert spark.sql(f"SELECT {query}").collect()
    assert sorted(journal.lines) == sorted(f"called {i}" for i in range(ROWS))


def test_the_page_has_the_table_of_mentions():
    found = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if re.match(r"\| `SELECT", line)]
    told = {query.strip(" `"): (int(calls), int(also)) for query, calls, also in found}
    assert told
    assert told.items() <= MENTIONS.items()


@pytest.mark.promise("calls for each row")
def test_as_many_calls_as_rows_in_sql(spark, called, journal):
    spark.udf.register("called_sql", called)
    spark.sql("SELECT * FROM (SELECT id, called_sql(id) r FROM range(100)) WHERE r IS NOT NULL AND r > 4").collect()
    assert len(journal) == ROWS


def test_a_result_that_nobody_reads_is_not_computed(spark, called, journal):
    spark.range(0, ROWS, 1, 2).select("id", called("id").alias("r")).select("id").collect()
    assert len(journal) == 0


@pytest.mark.promise("calls for each row")
def test_rows_that_are_only_counted_are_called_by_an_operator_but_not_by_a_column(spark, called, journal):
    df = spark.range(0, ROWS, 1, 2)
    assert df.withColumn("r", called("id")).count() == ROWS
    assert len(journal) == 0
    assert ordered_wait(df, called, "id").count() == ROWS
    assert len(journal) == ROWS


def test_a_function_declared_deterministic_lets_the_optimizer_call_it_again(spark, called, journal):
    df = spark.range(0, ROWS, 1, 2).select("id", called.with_options(deterministic=True)("id").alias("r"))
    assert df.where("r > 4").count() == ROWS // 2
    assert len(journal) >= ROWS


def test_an_async_function_in_an_aggregate_is_refused_by_spark_before_anything_runs(spark, called, no_job):
    with no_job, pytest.raises(Exception, match=r"(?i)nondeterministic"):
        spark.range(10).groupBy().agg(sf.sum(called("id"))).collect()
