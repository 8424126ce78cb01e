"""Mistakes in a chain are named when it is written down, before any job runs."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import threading

import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncStream,
    FunctionError,
    OptionError,
    OutputTag,
    WatermarkStrategy,
    async_pandas_udf,
    ordered_wait,
    unordered_wait,
)
from tests.kit.spark_functions import Passes, same

pytestmark = pytest.mark.spark
LOG = OutputTag("log", "id bigint")


@async_pandas_udf(on_error="dead_letter")
async def lossy(id: int) -> int:
    return id


async def waits(row):
    return row


class Locked(Passes):
    def __init__(self):
        self.lock = threading.Lock()


def locked(row, lock=None):
    return LOCKS[0], row


LOCKS = [threading.Lock()]


def nothing(stream):
    return stream.filter(lambda row: False)


@pytest.fixture(scope="module")
def df(spark):
    return spark.sql("SELECT 1L AS id, 'Oslo' AS city, 'x' AS error")


PLANS = {
    "a list for a DataFrame": (lambda s, df: AsyncStream([1]), r"AsyncStream takes a DataFrame, not \[1\]"),
    "a table's name for a DataFrame": (
        lambda s, df: AsyncStream("trips"),
        "AsyncStream takes a DataFrame, not 'trips'",
    ),
    "object_reuse": (
        lambda s, df: AsyncStream(df, object_reuse="yes"),
        "object_reuse must be True or False, not 'yes'",
    ),
    "latency_interval": (lambda s, df: AsyncStream(df, latency_interval=-1), "latency_interval.* more than 0 .*not -1"),
    "an async def in map": (lambda s, df: s.map(waits), "map takes a plain def; for an async def use ordered_wait"),
    "an async def in flat_map": (lambda s, df: s.flat_map(waits), "flat_map takes a plain def; for an async def"),
    "an async def in filter": (lambda s, df: s.filter(waits), "filter takes a plain def; for an async def"),
    "a column in filter": (lambda s, df: s.filter(sf.col("id") > 1), "filter takes a function of one row .*not Column"),
    "a function in process": (
        lambda s, df: s.process(len),
        r"takes a ProcessFunction, such as YourFunction\(\), not <b",
    ),
    "a class in process": (
        lambda s, df: s.process(Passes),
        r"takes a ProcessFunction, such as YourFunction\(\), not <c",
    ),
    "an unknown column": (
        lambda s, df: s.ordered_wait(same).ordered_wait(same, "ID2"),
        "unknown column 'ID2'; there are: id, city, error, same",
    ),
    "a column that a map has dropped": (
        lambda s, df: s.map(lambda row: 1, "int").ordered_wait(same),
        "unknown column 'id'; .*value",
    ),
    "a name clash": (
        lambda s, df: s.ordered_wait(same).ordered_wait(same),
        "same would add a column 'same', but.*rename",
    ),
    "a name clash of a dead letter": (
        lambda s, df: s.ordered_wait(lossy),
        "dead letter of lossy would add.* 'error'.*rename",
    ),
    "a tag that nobody writes": (
        lambda s, df: nothing(s).ordered_wait(same).side_output(LOG),
        "nothing in this stream can write to the side output 'log': it needs a ProcessFunction, an AsyncFunction or",
    ),
    "no dead letters": (
        lambda s, df: s.process(Passes()).side_output(DEAD_LETTERS),
        "can write to the side output 'dead_letters': it needs an operator with on_error='dead_letter'",
    ),
    "dead letters of another branch": (
        lambda s, df: (s.map(lambda row: 1, "int").ordered_wait(lossy, "value"), s.side_output(DEAD_LETTERS)),
        "nothing in this stream can write to the side output 'dead_letters'",
    ),
    "no latencies": (lambda s, df: s.ordered_wait(same).side_output(LATENCIES), "it needs latency_interval"),
    "a tag's name": (lambda s, df: s.process(Passes()).side_output("log"), "side_output takes an OutputTag, not 'log'"),
    "a number for a tag's schema": (
        lambda s, df: s.process(Passes()).side_output(OutputTag("log", 3)),
        "an OutputTag needs DDL such as 'city string' or a DataType, not 3",
    ),
    "a column for a DataFrame": (
        lambda s, df: AsyncStream(df.city),
        "AsyncStream takes a DataFrame, not Column<'city'>",
    ),
    "a number for a type": (lambda s, df: s.map(len, 3), "returnType must be DDL such as .*, a DataType, .* not 3"),
    "a tag without a name": (lambda s, df: OutputTag("", "int"), "an OutputTag needs a name, not ''"),
    "a side output of a side output": (
        lambda s, df: s.process(Passes()).side_output(LOG).side_output(LOG),
        "nothing in this stream can write to the side output 'log'",
    ),
    "a union of other DataFrames": (
        lambda s, df: s.union(AsyncStream(df)),
        r"union takes branches of the same stream.*for others use AsyncStream\(df.unionByName",
    ),
    "a union with a DataFrame": (lambda s, df: s.union(df), "union takes branches of the same stream"),
    "a union of other columns": (
        lambda s, df: nothing(s).union(s.ordered_wait(same)),
        r"same columns, not \(id bigint, city string, error string\) and \(id .*, same bigint\); use map",
    ),
    "a lock in a process function": (
        lambda s, df: s.process(Locked()),
        r"Locked cannot be sent to the executors: its attribute 'lock' \(lock\) cannot .*ProcessFunction.open()",
    ),
    "a lock in a map": (lambda s, df: s.map(locked), "locked cannot be sent to the executors: its variable 'LOCKS'"),
    "a lock in a filter": (
        lambda s, df: s.filter(locked),
        "locked cannot be sent to the executors: its variable 'LOCKS'",
    ),
    "collect of a DataFrame": (lambda s, df: AsyncStream.collect(a=s, b=df), "collect takes streams; b is DataFrame"),
    "collect of nothing": (
        lambda s, df: AsyncStream.collect(),
        r"collect takes streams by name: .*collect\(main=stream",
    ),
    "collect of one stream by name": (
        lambda s, df: s.collect(rejects=s),
        r"takes no rejects; for several results .*AsyncStream\.collect\(main=\.\.\., rejects=\.\.\.\)",
    ),
    "a strategy that is none": (
        lambda s, df: s.assign_timestamps_and_watermarks("id"),
        "a WatermarkStrategy is needed, not 'id'",
    ),
    "batches behind an operator": (
        lambda s, df: s.ordered_wait(same).unordered_wait(same, watermark=WatermarkStrategy.per_batch()),
        r"per_batch\(\) follows the batches of the DataFrame; assign it before the first operator",
    ),
    "a watermark of text": (
        lambda s, df: s.ordered_wait(same, watermark=WatermarkStrategy.for_monotonous_timestamps("city")),
        "watermarks cannot be read from 'city', a string; use timestamp",
    ),
    "output_mode": (lambda s, df: s.ordered_wait(same, output_mode="unordered"), "said by the name.*ordered_wait"),
    "dead letters of a column": (lambda s, df: lossy("id"), r"lossy have nowhere to go here; use AsyncStream\(df\)"),
    "dead letters of ordered_wait": (
        lambda s, df: ordered_wait(df.drop("error"), lossy),
        "lossy have nowhere to go here",
    ),
    "dead letters of unordered_wait": (
        lambda s, df: unordered_wait(df.drop("error"), same, on_error="dead_letter"),
        r"same have nowhere to go here; use AsyncStream\(df\).ordered_wait.*side_output\(DEAD_LETTERS\)",
    ),
    "dead letters in SQL": (lambda s, df: lossy.register(df.sparkSession, "f"), "lossy have nowhere to go here"),
    "dead letters of udf.register": (lambda s, df: df.sparkSession.udf.register("f", lossy), "have nowhere to go here"),
    "dead letters of a table function": (
        lambda s, df: lossy.with_options(output_mode="unordered").register(df.sparkSession, "f"),
        "the dead letters of f have nowhere to go here",
    ),
}


@pytest.mark.parametrize("mistake", PLANS)
def test_a_mistake_is_named_before_any_job_runs(df, no_job, mistake):
    plan, said = PLANS[mistake]
    with no_job, pytest.raises((FunctionError, OptionError), match=said):
        plan(AsyncStream(df), df)


def test_branches_that_differ_in_nullability_only_can_be_united(spark):
    stream = AsyncStream(spark.range(0, 2, 1, 1).select(sf.array("id").alias("xs")))
    joined = stream.union(stream.map(lambda row: {"xs": [None]}, "xs array<bigint>"))
    assert sorted(str(row.xs) for row in joined.collect()) == ["[0]", "[1]", "[None]", "[None]"]
