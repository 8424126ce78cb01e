"""Mistakes in a chain are named when it is written down, failures of its rows when it runs; then all is closed."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import threading

import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncFunction,
    AsyncStream,
    FunctionError,
    OptionError,
    OutputTag,
    ProcessFunction,
    WatermarkStrategy,
    async_pandas_udf,
    ordered_wait,
    unordered_wait,
)

pytestmark = pytest.mark.spark

LOG = OutputTag("log", "id bigint")


@async_pandas_udf
async def same(id: int) -> int:
    return id


@async_pandas_udf(on_error="dead_letter")
async def lossy(id: int) -> int:
    return id


async def waits(row):
    return row


class Passes(ProcessFunction):
    def process_element(self, value, context, collector):
        collector.collect(value)


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
    "a number for a type": (lambda s, df: s.map(len, 3), "a type is DDL such as .* or a DataType, not 3"),
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
        "Locked cannot be sent to the executors: its attribute 'lock' cannot be pickled.*ProcessFunction.open()",
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


# --- rows that fail ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stream_of():
    """Begins streams that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda df, **options: stack.enter_context(AsyncStream(df, **options))


def picky(row):
    if row["id"] == 3:
        raise KeyError("nothing for three")
    return True


class Picky(ProcessFunction):
    def process_element(self, value, context, collector):
        if picky(value):
            collector.collect(value)


class PickyCall(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([picky(value)])


@async_pandas_udf("boolean")
async def picky_call(id: int):
    await asyncio.sleep(0)
    return picky({"id": id})


FAILURES = {
    "map": (lambda s: s.map(picky, "boolean"), "picky failed, partition 1, for the input {'id': 3"),
    "filter": (lambda s: s.filter(picky), "picky failed, partition 1, for the input {'id': 3"),
    "a lambda": (lambda s: s.filter(lambda row: picky(row)), "filter failed, partition 1, for the input {'id': 3"),
    "flat_map": (
        lambda s: s.flat_map(lambda row: [picky(row)], "boolean"),
        "flat_map failed, partition 1, for the input {",
    ),
    "process": (lambda s: s.process(Picky()), "Picky failed, partition 1, for the input {'id': 3"),
    "an async def": (
        lambda s: s.ordered_wait(picky_call),
        "picky_call failed in attempt 1, partition 1, for the input (3,)",
    ),
    "an AsyncFunction": (
        lambda s: s.unordered_wait(PickyCall(), "id", returnType="boolean"),
        "PickyCall failed in attempt 1, partition 1, for the input {'id': 3}",
    ),
}
PLACES = {
    "first": lambda s, chain: chain(s),
    "behind an async operator": lambda s, chain: chain(s.ordered_wait(same)),
    "in the middle": lambda s, chain: chain(s.map(lambda row: row)).filter(lambda row: True),
    "on a branch": lambda s, chain: AsyncStream.collect(one=s.filter(picky_no_more), other=chain(s))["one"],
}


def picky_no_more(row):
    return True


@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_fails_names_function_row_and_cause(spark, stream_of, spark_error, place):
    df = spark.range(0, 4, 1, 2)
    for name, (chain, said) in FAILURES.items():
        text = spark_error(PLACES[place](stream_of(df), chain).collect)
        assert said in text, name
        assert "KeyError: 'nothing for three'" in text, name
        assert "\n\nTraceback" in text, name


MISFITS = {
    "map": (lambda s: s.map(lambda row: {"id": "x"}), "map failed.*returned 'x' (str) in field 'id': declared int64"),
    "flat_map": (lambda s: s.flat_map(lambda row: 3, "int"), "flat_map failed.*an iterable of rows.*not 3"),
    "process": (lambda s: s.process(Passes(), "id int, x int"), "Passes failed.*missing field 'x'"),
    "a generator that fails": (
        lambda s: s.flat_map(two_and_an_end, "int"),
        "two_and_an_end failed.*RuntimeError: the end",
    ),
}


def two_and_an_end(row):
    yield 1
    yield 2
    raise RuntimeError("the end")


@pytest.mark.parametrize("method", MISFITS)
def test_a_row_that_does_not_fit_names_function_and_field(spark, spark_error, method):
    chain, said = MISFITS[method]
    text = spark_error(chain(AsyncStream(spark.range(1))).to_df())
    for words in said.split(".*"):
        assert words in text


# --- and then all is closed -------------------------------------------------------------------------------------------


class Lives(AsyncFunction):
    """Says when it is opened and closed; row 3 fails in one of its methods."""

    def __init__(self, name, journal, fails=""):
        self.name, self.journal, self.fails = name, journal, fails

    async def open(self, context):
        self.journal.write("open", self.name)
        if self.fails == "open":
            raise OSError("no way in")

    async def async_invoke(self, value, result_future):
        if self.fails == "call" and value["id"] == 3:
            raise OSError("no answer")
        if self.fails == "hangs":
            self.journal.write("call", self.name)
            try:
                await asyncio.Event().wait()
            finally:
                self.journal.write("cancelled", self.name)
        await asyncio.sleep(0)
        result_future.complete([{self.name: 1}])

    async def close(self):
        self.journal.write("close", self.name)
        if self.fails == "close":
            raise OSError("no way out")


class LivesPlainly(ProcessFunction):
    def __init__(self, journal, fails=""):
        self.journal, self.fails = journal, fails

    def open(self, context):
        self.journal.write("open", "plain")
        if self.fails == "open":
            raise OSError("no way in")

    def process_element(self, value, context, collector):
        if self.fails == "call" and value["id"] == 3:
            raise OSError("no answer")
        collector.collect(value)

    async def close(self):
        self.journal.write("close", "plain")
        if self.fails == "close":
            raise OSError("no way out")


def chain(stream, journal, **fails):
    stream = stream.ordered_wait(Lives("head", journal, fails.get("head", "")), "id", returnType="head int")
    stream = stream.process(LivesPlainly(journal, fails.get("plain", "")))
    return stream.unordered_wait(Lives("tail", journal, fails.get("tail", "")), "id", returnType="tail int")


OPEN = ["open tail", "open plain", "open head"]
CLOSE = ["close head", "close plain", "close tail"]
NAMES = {"head": "Lives", "plain": "LivesPlainly", "tail": "Lives"}


@pytest.mark.parametrize("where", NAMES)
def test_a_row_that_fails_in_one_operator_closes_all(spark, stream_of, journal, spark_error, where):
    text = spark_error(chain(stream_of(spark.range(0, 9, 1, 1)), journal, **{where: "call"}).collect)
    assert f"{NAMES[where]} failed" in text
    assert "OSError: no answer" in text
    assert journal.lines == [*OPEN, *CLOSE]


@pytest.mark.parametrize("where", NAMES)
def test_an_operator_that_cannot_be_opened_is_named_and_those_opened_are_closed(
    spark, stream_of, journal, spark_error, where
):
    text = spark_error(chain(stream_of(spark.range(1)), journal, **{where: "open"}).collect)
    assert f"{NAMES[where]}.open() failed: OSError: no way in" in text
    opened = OPEN[: [line.split()[1] for line in OPEN].index(where) + 1]
    assert journal.lines == [*opened, *(line.replace("open", "close") for line in reversed(opened))]


@pytest.mark.parametrize("where", NAMES)
def test_an_operator_that_cannot_be_closed_is_named_and_the_others_are_closed(
    spark, stream_of, journal, spark_error, where
):
    text = spark_error(chain(stream_of(spark.range(1)), journal, **{where: "close"}).collect)
    assert f"{NAMES[where]}.close() failed: OSError: no way out" in text
    assert journal.lines == [*OPEN, *CLOSE]


def test_calls_on_other_branches_are_cancelled_when_a_row_fails(spark, stream_of, journal, spark_error):
    stream = stream_of(spark.range(0, 4, 1, 1))
    frames = AsyncStream.collect(
        hangs=stream.ordered_wait(Lives("hangs", journal, "hangs"), returnType="hangs int"),
        fails=stream.ordered_wait(Lives("fails", journal, "call"), returnType="fails int"),
    )
    assert "OSError: no answer" in spark_error(frames["hangs"])
    assert journal.count("cancelled") == journal.count("call") > 0
    assert (journal.count("open"), journal.count("close")) == (2, 2)
    assert journal.lines[-1].startswith("close")


def test_a_failed_evaluation_is_not_kept_and_can_be_tried_again(spark, stream_of, journal, spark_error, tmp_path):
    class Healed(AsyncFunction):
        async def async_invoke(self, value, result_future):
            if not healed.exists():
                raise OSError("still ill")
            result_future.complete([value["id"]])

    healed = tmp_path / "healed"
    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(Healed(), "id", returnType="bigint")
    assert "still ill" in spark_error(stream.to_df())
    healed.touch()
    assert [row.Healed for row in stream.collect()] == [0, 1, 2]
