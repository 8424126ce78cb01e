"""Mistakes in a chain are named when it is written down, before any job runs."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import threading

import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, FunctionError, OptionError, OutputTag, async_pandas_udf, ordered_wait
from tests.kit.spark_functions import Passes

pytestmark = pytest.mark.spark


@async_pandas_udf(on_error="dead_letter")
async def lossy(id: int) -> int:
    return id


class Locked(Passes):
    def __init__(self):
        self.lock = threading.Lock()


def locked(row, lock=None):
    return LOCKS[0], row


LOCKS = [threading.Lock()]


@pytest.fixture(scope="module")
def df(spark):
    return spark.sql("SELECT 1L AS id, 'Oslo' AS city, 'x' AS error")


PLANS = {
    "a column in filter": (lambda s, df: s.filter(sf.col("id") > 1), "filter takes a function of one row .*not Column"),
    "a class in process": (
        lambda s, df: s.process(Passes),
        r"takes a ProcessFunction, such as YourFunction\(\), not <c",
    ),
    "a name clash of a dead letter": (
        lambda s, df: s.ordered_wait(lossy),
        "dead letter of lossy would add.* 'error'.*rename",
    ),
    "a column for a DataFrame": (
        lambda s, df: AsyncStream(df.city),
        "AsyncStream takes a DataFrame, not Column<'city'>",
    ),
    "a union of other DataFrames": (
        lambda s, df: s.union(AsyncStream(df)),
        r"union takes branches of the same stream.*for others use AsyncStream\(df.unionByName",
    ),
    "a union with a side output": (
        lambda s, df: s.union(s.process(Passes()).side_output(OutputTag("log", df.schema))),
        "union takes branches of the same stream, no side outputs",
    ),
    "a lock in a process function": (
        lambda s, df: s.process(Locked()),
        r"Locked cannot be sent to the executors: its attribute 'lock' \(lock\) cannot .*ProcessFunction.open()",
    ),
    "a lock in a map": (lambda s, df: s.map(locked), "locked cannot be sent to the executors: its variable 'LOCKS'"),
    "collect of nothing": (
        lambda s, df: AsyncStream.collect(),
        r"collect takes streams by name: .*collect\(main=stream",
    ),
    "collect of one stream by name": (
        lambda s, df: s.collect(rejects=s),
        r"takes no rejects; for several results .*AsyncStream\.collect\(main=\.\.\., rejects=\.\.\.\)",
    ),
    "dead letters of a column": (lambda s, df: lossy("id"), r"lossy have nowhere to go here; use AsyncStream\(df\)"),
    "dead letters of ordered_wait": (
        lambda s, df: ordered_wait(df.drop("error"), lossy),
        "lossy have nowhere to go here",
    ),
    "dead letters in SQL": (lambda s, df: lossy.register(df.sparkSession, "f"), "lossy have nowhere to go here"),
    "dead letters of a table function": (
        lambda s, df: lossy.with_options(output_mode="unordered").register(df.sparkSession, "f"),
        "the dead letters of f have nowhere to go here",
    ),
}


@pytest.mark.promise("errors when planned")
@pytest.mark.parametrize("mistake", PLANS)
def test_a_mistake_is_named_before_any_job_runs(df, no_job, mistake):
    plan, said = PLANS[mistake]
    with no_job, pytest.raises((FunctionError, OptionError), match=said):
        plan(AsyncStream(df), df)


def test_branches_that_differ_in_nullability_only_can_be_united(spark):
    stream = AsyncStream(spark.range(0, 2, 1, 1).select(sf.array("id").alias("xs")))
    joined = stream.union(stream.map(lambda row: {"xs": [None]}, "xs array<bigint>"))
    assert sorted(str(row.xs) for row in joined.collect()) == ["[0]", "[1]", "[None]", "[None]"]
