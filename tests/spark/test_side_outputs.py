"""Side outputs of a chain: what functions write to tags of their own, and latencies."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import datetime
import decimal

import pytest
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncFunction,
    AsyncStream,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    async_pandas_udf,
)
from tests.kit.frames import from_ddl, tuples
from tests.kit.spark_functions import LOG, from_a_coroutine, halved, note

pytestmark = pytest.mark.spark


class FromAnAsyncFunction(AsyncFunction):
    async def open(self, context):
        self.context = context

    async def async_invoke(self, value, result_future):
        await asyncio.sleep(0)
        note(self.context, value["id"])
        result_future.complete([{"got": value["id"]}])


class FromAProcessFunction(ProcessFunction):
    def process_element(self, value, context, collector):
        note(context, value["id"])
        collector.collect({"id": value["id"], "got": value["id"]})


WRITERS = {
    "coroutine": lambda s: s.ordered_wait(from_a_coroutine),
    "AsyncFunction": lambda s: s.unordered_wait(FromAnAsyncFunction(), returnType="got bigint"),
    "ProcessFunction": lambda s: s.process(FromAProcessFunction(), "id bigint, got bigint"),
}
NOTES = [(1, "odd 1"), (3, None), (3, "odd 3"), (5, "odd 5")]


def key(row):
    return (row[0], row[1] or "")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_side_output_is_written_from(spark, stream_of, writer):
    main = WRITERS[writer](stream_of(spark.range(0, 6, 1, 2)))
    side = main.side_output(LOG)
    assert sorted(tuples(side), key=key) == NOTES
    assert sorted(tuples(main)) == [(i, i) for i in range(6)]
    assert side.columns == ["id", "note"]


@pytest.mark.promise("side outputs")
@pytest.mark.parametrize("order", ["main side main side", "side main"])
def test_main_and_side_outputs_are_one_evaluation_in_whatever_order_they_are_read(spark, stream_of, journal, order):
    @async_pandas_udf("got bigint", on_error="dead_letter")
    async def noted(id: int, context: RuntimeContext):
        journal.write("call", id)
        note(context, id)
        return {"got": 10 // id}

    stream = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(noted)
    for read in order.split():
        if read == "main":
            assert tuples(stream.orderBy("id")) == [(1, 10), (2, 5), (3, 3), (4, 2), (5, 2)]
        else:
            assert sorted(tuples(stream.side_output(LOG)), key=key) == NOTES
            assert stream.side_output(DEAD_LETTERS).select("id", "error.type").first() == (0, "ZeroDivisionError")
            assert stream.side_output(OutputTag("never written", "x int, y string")).columns == ["x", "y"]
            assert stream.side_output(OutputTag("never written", "x int, y string")).count() == 0
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]


ANYTHING = "s struct<at: timestamp, m: map<string, array<int>>>, a array<struct<x: decimal(5,2)>>, b binary, d date"
MOMENT = datetime.datetime(2021, 10, 31, 0, 30, tzinfo=datetime.UTC)
VALUE = {
    "s": {"at": MOMENT, "m": {"k": [1, None]}},
    "a": [{"x": decimal.Decimal("1.25")}, None],
    "b": b"\0",
    "d": datetime.date(1, 1, 1),
}


def test_a_tag_may_have_columns_of_any_type(spark, stream_of, conf):
    conf("spark.sql.session.timeZone", "Asia/Kathmandu")
    tag = OutputTag("anything", ANYTHING)
    parsed = OutputTag("parsed", st.StructType().add("n", "integer").add("value", st.ArrayType(st.StringType())))

    async def writes(id: int, context: RuntimeContext) -> int:
        context.output(tag, VALUE)
        context.output(parsed, {"n": None, "value": ["x"]})
        return id

    stream = stream_of(spark.range(1)).ordered_wait(writes)
    frames = AsyncStream.collect(main=stream, anything=stream.side_output(tag), parsed=stream.side_output(parsed))
    for anything, other in (
        (frames["anything"], frames["parsed"]),
        (stream.side_output(tag), stream.side_output(parsed)),
    ):
        found = anything.select("s.m", "a", "b", "d", sf.unix_seconds("s.at")).first()
        assert found == ({"k": [1, None]}, [(VALUE["a"][0]["x"],), None], b"\0", VALUE["d"], int(MOMENT.timestamp()))
        assert tuples(other) == [(None, ["x"])]


def test_a_side_output_is_read_with_the_schema_that_it_was_written_with(spark, stream_of, spark_error):
    stream = stream_of(spark.range(0, 4, 1, 1)).ordered_wait(from_a_coroutine)
    same = OutputTag("log", st.StructType().add("id", "long").add("note", "string"))
    assert stream.side_output(same).count() == 3
    text = spark_error(stream.side_output(OutputTag("log", "id int, note string")).to_df())
    assert "the side output 'log' was written as (int64, string) and is read as (int32, string)" in text
    assert "same OutputTag" in text


@pytest.mark.parametrize("schema", ["id long, note string", "id int, note string"])
def test_collect_reads_a_tag_by_its_name_too(spark, stream_of, spark_error, schema):
    stream = stream_of(spark.range(0, 4, 1, 1)).ordered_wait(from_a_coroutine)
    frames = AsyncStream.collect(main=stream, side=stream.side_output(OutputTag("log", schema)))
    assert [field.dataType for field in frames["side"].schema] == [field.dataType for field in from_ddl(schema)]
    assert frames["side"].count() == 3


def test_latencies_tell_how_long_rows_take_up_to_each_operator(spark, stream_of):
    async def first(id: int) -> int:
        await asyncio.sleep(0.001)
        return id

    stream = stream_of(spark.range(0, 40, 1, 2), latency_interval=0.001).ordered_wait(first, capacity=2)
    stream = stream.filter(lambda row: row["id"] < 5).unordered_wait(halved, on_error="null", capacity=3)
    latencies = stream.side_output(LATENCIES)
    assert latencies.dtypes == [("operator", "string"), ("partition", "int"), ("latency", "double")]
    found = latencies.collect()
    operators = {(row.operator, row.partition) for row in found}
    assert operators == {(operator, number) for operator in ("first", "filter", "halved") for number in (0, 1)}
    assert all(row.latency >= 0 for row in found)
