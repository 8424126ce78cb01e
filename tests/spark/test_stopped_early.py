"""Queries that need no more rows: what was done is told, and nothing of it as failed."""

# ruff: noqa: A002 - parameters are called like the columns

import asyncio
import itertools

import pytest
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

from asyncudf import async_pandas_udf, monitor, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark


@async_pandas_udf(capacity=10)
async def waits(id: int) -> int:
    await asyncio.sleep(0.001)
    return id


@async_pandas_udf("twice long", capacity=10, output_mode="unordered")
async def pairs(id):
    for _ in range(2):
        await asyncio.sleep(0.001)
        yield {"twice": id}


def sql(query):
    def build(spark, df):
        df.createOrReplaceTempView("numbers")
        spark.udf.register("waits", waits)
        pairs.register(spark, "pairs")
        return spark.sql(query)

    return build


def column(spark, df):
    return df.withColumn("w", waits("id"))


def operator(spark, df):
    return ordered_wait(df, waits)


def write(df, folder):
    df.limit(5).write.parquet(f"{folder}/out")


QUERIES = {
    "column, show": (column, lambda df, _: df.show(3)),
    "column, limit before a write": (column, write),
    "column, local iterator": (column, lambda df, _: list(itertools.islice(df.toLocalIterator(), 3))),
    "column, limit behind a filter": (column, lambda df, _: df.where("w >= 3").limit(3).collect()),
    "column, half a join": (
        lambda spark, df: df.join(column(spark, df).where("w >= 0"), "id", "left_semi"), lambda df, _: df.take(2)
    ),
    "sql, limit": (sql("SELECT waits(id) AS w FROM numbers LIMIT 4"), lambda df, _: df.collect()),
    "table function, show": (sql("SELECT * FROM pairs(TABLE(numbers), 'id')"), lambda df, _: df.show(3)),
    "operator, limit behind it": (operator, lambda df, _: df.where("id >= 2").limit(4).collect()),
    "operator, limit before another": (
        lambda spark, df: unordered_wait(operator(spark, df).limit(4), pairs), lambda df, _: df.take(1)
    ),
    "operator, local iterator": (operator, lambda df, _: next(df.toLocalIterator())),
}  # fmt: skip


def test_what_stops_early_has_not_failed(spark, tmp_path):
    """Whether a task was told to stop, or had all its rows done when nobody read on; what it did is counted."""
    for name, (build, act) in QUERIES.items():
        with monitor(spark) as run:
            act(build(spark, spark.range(0, 60, 1, 2)), tmp_path / name)
        functions = run.metrics["functions"]
        for function in functions:
            tasks = function["tasks"]
            assert sum(tasks.values()) == tasks["succeeded"] + tasks["stopped"], name
            assert function["failed_attempts"]["calls"] == 0, name
            assert "fail" not in function["verdict"]["text"], name
            assert function["calls"] == function["rows"] + function["abandoned"] > 0, name
        assert functions, name
        assert "fail" not in run.summary(), name


@udf(LongType())
def breaks(value):
    if value == 35:
        raise ValueError("behind")
    return value


FAILED = {
    "column, take": (column, lambda df: df.select(breaks("w")).where("`breaks(w)` > 33").take(4)),
    "table function, limit": (
        sql("SELECT * FROM pairs(TABLE(numbers), 'id')"),
        lambda df: df.select(breaks("id")).where("`breaks(id)` > 33").limit(4).collect(),
    ),
}


@pytest.mark.parametrize("name", FAILED)
@pytest.mark.spark_only("which of its tasks have failed")
def test_what_fails_behind_the_function_has_failed(spark, name):
    """The function ended well and the task did not: one that stops early is no excuse for it."""
    build, act = FAILED[name]
    with pytest.raises(Exception, match="behind"), monitor(spark) as run:  # noqa: PT012
        build(spark, spark.range(0, 60, 1, 2)).take(2)
        act(build(spark, spark.range(0, 60, 1, 2)))
    tasks = [function["tasks"] for function in run.metrics["functions"]]
    assert tasks[0]["failed"] == 0
    assert tasks[-1]["failed"] == 1
    assert run.metrics["functions"][-1]["failed_attempts"]["calls"] > 0
