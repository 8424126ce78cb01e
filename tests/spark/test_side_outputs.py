"""Side outputs of a chain: what functions write to tags of their own, dead letters, latencies."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import datetime
import decimal

import pandas as pd
import pytest
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncFunction,
    AsyncStream,
    FunctionError,
    OutputTag,
    ProcessFunction,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
    ordered_wait,
)

pytestmark = pytest.mark.spark

LOG = OutputTag("log", "id bigint, note string")
COUNT = OutputTag("count", "int")
TWICE = RetryStrategy.fixed_delay(attempts=2, delay=0.01)


@pytest.fixture
def stream_of():
    """Begins streams that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda df, **options: stack.enter_context(AsyncStream(df, **options))


def tuples(frame):
    return [tuple(row) for row in frame.collect()]


# --- tags of one's own ------------------------------------------------------------------------------------------------


def note(context, id):
    if id % 2:
        context.output(LOG, {"id": id, "note": f"odd {id}"})
    if id == 3:
        context.output(LOG, {"id": id, "note": None})


@async_pandas_udf("got bigint")
async def from_a_coroutine(id: int, context: RuntimeContext):
    note(context, id)
    await asyncio.sleep(0)
    return {"got": id}


@async_pandas_udf("got bigint")
async def from_a_generator(id: int, context: RuntimeContext):
    note(context, id)
    yield {"got": id}


@async_pandas_udf("got bigint")
def from_a_thread(id: int, context: RuntimeContext):
    note(context, id)
    return {"got": id}


@async_pandas_udf("got bigint", batch_size=2)
async def from_a_vectorized_function(id: pd.Series, context: RuntimeContext):
    for one in id.tolist():
        note(context, one)
    return pd.DataFrame({"got": id})


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
    "generator": lambda s: s.unordered_wait(from_a_generator),
    "thread": lambda s: s.ordered_wait(from_a_thread),
    "vectorized": lambda s: s.ordered_wait(from_a_vectorized_function),
    "AsyncFunction": lambda s: s.unordered_wait(FromAnAsyncFunction(), returnType="got bigint"),
    "ProcessFunction": lambda s: s.process(FromAProcessFunction(), "id bigint, got bigint"),
}
NOTES = [(1, "odd 1"), (3, None), (3, "odd 3"), (5, "odd 5")]


def key(row):
    return (row[0], row[1] or "")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("entry_point", ["side_output", "collect"])
def test_a_side_output_is_written_from(spark, stream_of, writer, entry_point):
    stream = WRITERS[writer](stream_of(spark.range(0, 6, 1, 2)))
    main, side = stream, stream.side_output(LOG)
    if entry_point == "collect":
        frames = AsyncStream.collect(main=stream, side=side)
        main, side = frames["main"], frames["side"]
    assert sorted(tuples(side), key=key) == NOTES
    assert sorted(tuples(main)) == [(i, i) for i in range(6)]
    assert side.columns == ["id", "note"]


@pytest.mark.parametrize("order", ["main side main side", "side side main main"])
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


class Both(ProcessFunction):
    def process_element(self, value, context, collector):
        context.output(LOG, {"id": value["id"], "note": "first"})
        context.output(COUNT, value["id"])


def test_each_tag_has_its_own_rows_also_of_several_operators(spark, stream_of):
    stream = stream_of(spark.range(0, 4, 1, 1)).ordered_wait(from_a_coroutine).process(Both())
    log, count = stream.side_output(LOG), stream.side_output(COUNT)
    assert sorted(tuples(log), key=key) == sorted([*NOTES[:3], *((i, "first") for i in range(4))], key=key)
    assert (tuples(count), count.columns) == ([(i,) for i in range(4)], ["value"])
    assert stream.count() == 0, "nothing was collected"


ANYTHING = "s struct<at: timestamp, m: map<string, array<int>>>, a array<struct<x: decimal(5,2)>>, b binary, d date"
MOMENT = datetime.datetime(2021, 10, 31, 0, 30, tzinfo=datetime.UTC)
VALUE = {
    "s": {"at": MOMENT, "m": {"k": [1, None]}},
    "a": [{"x": decimal.Decimal("1.25")}, None],
    "b": b"\0",
    "d": datetime.date(1, 1, 1),
}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_a_tag_may_have_columns_of_any_type(spark, stream_of, conf, zone):
    conf("spark.sql.session.timeZone", zone)
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
        assert found == (
            {"k": [1, None]},
            [(VALUE["a"][0]["x"],), None],
            b"\0",
            VALUE["d"],
            int(MOMENT.timestamp()),
        )
        assert tuples(other) == [(None, ["x"])]


def test_side_rows_of_a_failed_attempt_and_of_a_dead_letter_are_dropped(spark, stream_of):
    @async_pandas_udf("int", retry=TWICE, on_error="dead_letter")
    async def second_time_lucky(id: int, context: RuntimeContext):
        context.output(LOG, {"id": id, "note": f"attempt {context.attempt_number}"})
        if id == 0 or context.attempt_number == 1:
            raise ConnectionError
        return context.attempt_number

    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(second_time_lucky)
    assert tuples(stream.side_output(LOG)) == [(1, "attempt 2"), (2, "attempt 2")]
    assert tuples(stream) == [(1, 2), (2, 2)]
    assert tuples(stream.side_output(DEAD_LETTERS).select("id", "error.attempts")) == [(0, 2)]


async def misfit(id: int, context: RuntimeContext) -> int:
    context.output(LOG, {"id": "one", "note": None})
    return id


class MisfitRows(ProcessFunction):
    def process_element(self, value, context, collector):
        context.output(LOG, {"id": 1})


MISFITS = {
    "a function": (lambda s: s.ordered_wait(misfit), "side output 'log' returned 'one' (str) in field 'id'"),
    "a ProcessFunction": (
        lambda s: s.process(MisfitRows()),
        "MisfitRows failed.*side output 'log'.*missing field 'note'",
    ),
}


@pytest.mark.parametrize("writer", MISFITS)
def test_a_value_that_does_not_fit_names_its_tag(spark, stream_of, spark_error, writer):
    chain, said = MISFITS[writer]
    stream = chain(stream_of(spark.range(1)))
    assert all(words in spark_error(stream.side_output(LOG).to_df()) for words in said.split(".*"))


def test_a_value_that_does_not_fit_its_tag_is_the_rows_error(spark, stream_of):
    stream = stream_of(spark.range(1)).ordered_wait(misfit, on_error="dead_letter")
    (error,) = tuples(stream.side_output(DEAD_LETTERS).select("error.type", "error.message"))
    assert error[0] == "ResultError"
    assert "side output 'log'" in error[1]


def test_a_tag_that_nobody_reads_is_dropped_unseen(spark, stream_of):
    stream = stream_of(spark.range(0, 2, 1, 1)).ordered_wait(misfit)
    assert tuples(AsyncStream.collect(main=stream)["main"]) == [(0, 0), (1, 1)]
    assert tuples(ordered_wait(spark.range(0, 2, 1, 1), misfit)) == [(0, 0), (1, 1)]


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
    assert [field.dataType for field in frames["side"].schema] == [
        field.dataType for field in st.StructType.fromDDL(schema)
    ]
    assert frames["side"].count() == 3


def test_a_tag_may_be_declared_in_all_of_sparks_ddl(spark, stream_of):
    tag = OutputTag("log", "id bigint NOT NULL, note string COMMENT 'why'")

    async def writes(id: int, context: RuntimeContext) -> int:
        context.output(tag, (id, "x"))
        return id

    assert tuples(stream_of(spark.range(1)).ordered_wait(writes).side_output(tag)) == [(0, "x")]


# --- dead letters -----------------------------------------------------------------------------------------------------


@async_pandas_udf("half int", on_error="dead_letter", retry=TWICE)
async def halved(id: int):
    if id % 2:
        raise ValueError(f"{id} is odd")
    return {"half": id // 2}


@async_pandas_udf(on_error="dead_letter")
async def inverted(half: int) -> float:
    return 1 / half


def test_a_dead_letter_is_the_input_and_what_went_wrong(spark, stream_of):
    df = spark.range(0, 4, 1, 2).withColumn("part", sf.spark_partition_id()).withColumn("xs", sf.array("id"))
    stream = stream_of(df).ordered_wait(halved)
    letters = stream.side_output(DEAD_LETTERS)
    assert letters.columns == [*df.columns, "error"]
    error = "struct<type:string,message:string,attempts:int,elapsed:double,status:int,function:string,partition:int>"
    assert dict(letters.dtypes)["error"] == error
    first, second = sorted(letters.collect())
    assert (first.id, first.part, first.xs) == (1, 0, [1])
    wanted = {"type": "ValueError", "message": "1 is odd", "attempts": 2, "function": "halved", "partition": 0}
    assert {**first.error.asDict(), **wanted} == first.error.asDict()
    assert first.error.elapsed > 0.009, "the back-off is part of it, but for what the clock rounds off"
    assert (second.id, second.error.partition, second.error.message) == (3, 1, "3 is odd")
    assert sorted(tuples(stream.select("id", "half"))) == [(0, 0), (2, 1)]


def test_dead_letters_of_several_operators_are_one_table(spark, stream_of):
    stream = stream_of(spark.range(0, 4, 1, 2)).unordered_wait(halved).ordered_wait(inverted)
    letters = stream.side_output(DEAD_LETTERS)
    assert letters.columns == ["id", "half", "error"]
    assert tuples(letters.select("id", "half", "error.function", "error.type").orderBy("id")) == [
        (0, 0, "inverted", "ZeroDivisionError"),
        (1, None, "halved", "ValueError"),
        (3, None, "halved", "ValueError"),
    ]
    assert tuples(stream) == [(2, 1, 1.0)]


def reordered(s):
    s = s.ordered_wait(halved).map(lambda row: {"half": row["half"], "id": row["id"]}, "half int, id bigint")
    return s.ordered_wait(inverted)


def swapped(s):
    stream = s.map(lambda row: {"id": row["id"], "half": int(row["id"])}, "id bigint, half int")
    stream = stream.ordered_wait(from_a_coroutine, on_error="dead_letter")
    stream = stream.map(lambda row: {"half": row["half"], "id": row["id"] + 10}, "half int, id bigint")
    return stream.ordered_wait(inverted)


def test_dead_letters_of_operators_whose_columns_stand_in_another_order(spark, stream_of):
    letters = swapped(stream_of(spark.range(1))).side_output(DEAD_LETTERS)
    assert tuples(letters.select("id", "half", "error.function")) == [(10, 0, "inverted")]


def test_dead_letters_of_operators_with_other_columns_have_nulls(spark, stream_of):
    letters = reordered(stream_of(spark.range(0, 2, 1, 1))).side_output(DEAD_LETTERS)
    assert tuples(letters.select("id", "half").orderBy("id")) == [(0, 0), (1, None)]


@pytest.mark.parametrize("why", ["timeout", "attempt_timeout", "misfit", "bad completion"])
def test_every_kind_of_failure_is_a_dead_letter(spark, stream_of, why):
    class Fails(AsyncFunction):
        async def async_invoke(self, value, result_future):
            if "timeout" in why:
                await asyncio.Event().wait()
            result_future.complete("text" if why == "bad completion" else ["text"])

    options = {"timeout": 0.05} if why == "timeout" else {"attempt_timeout": 0.05}
    stream = stream_of(spark.range(0, 2, 1, 1)).unordered_wait(
        Fails(), returnType="int", on_error="dead_letter", **options
    )
    found = tuples(stream.side_output(DEAD_LETTERS).select("id", "error.type").orderBy("id"))
    assert found == [(i, "AsyncTimeoutError" if "timeout" in why else "ResultError") for i in (0, 1)]
    assert stream.count() == 0


def test_the_rows_of_a_failed_micro_batch_are_dead_letters(spark, stream_of):
    @async_pandas_udf("double", batch_size=4, on_error="dead_letter")
    async def batched(id: pd.Series) -> pd.Series:
        if (id == 5).any():
            raise ValueError("five")
        return id / 2

    stream = stream_of(spark.range(0, 10, 1, 1)).ordered_wait(batched)
    assert [row.id for row in stream.collect()] == [0, 1, 2, 3, 8, 9]
    letters = stream.side_output(DEAD_LETTERS).select("id", "error.message", "error.attempts")
    assert tuples(letters.orderBy("id")) == [(i, "five", 1) for i in (4, 5, 6, 7)]


def test_dead_letters_are_a_table_in_sql(spark, stream_of):
    stream = stream_of(spark.range(0, 5, 1, 2)).ordered_wait(halved).ordered_wait(inverted)
    stream.side_output(DEAD_LETTERS).createOrReplaceTempView("letters")
    found = spark.sql("SELECT error.function, count(*), min(id) FROM letters GROUP BY 1 ORDER BY 1")
    assert tuples(found) == [("halved", 2, 1), ("inverted", 1, 0)]


def test_main_and_dead_letters_are_written_from_one_evaluation(spark, stream_of, journal, tmp_path):
    async def picky(id: int) -> int:
        journal.write("call", id)
        return 10 // id

    stream = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(picky, on_error="dead_letter")
    stream.write.parquet(str(tmp_path / "main"))
    stream.side_output(DEAD_LETTERS).write.parquet(str(tmp_path / "letters"))
    assert sorted(tuples(spark.read.parquet(str(tmp_path / "main")))) == [(1, 10), (2, 5), (3, 3), (4, 2), (5, 2)]
    assert tuples(spark.read.parquet(str(tmp_path / "letters")).select("id", "error.function")) == [(0, "picky")]
    assert len(journal) == 6


def test_dead_letters_behind_branches_and_a_union(spark, stream_of):
    shared = stream_of(spark.range(0, 4, 1, 1)).ordered_wait(halved)
    nothing = shared.filter(lambda row: False)
    further = shared.ordered_wait(inverted).map(lambda row: {"id": row["id"], "half": 0}, "id bigint, half int")
    joined = nothing.union(further)
    frames = AsyncStream.collect(
        joined=joined, all=joined.side_output(DEAD_LETTERS), shared=shared.side_output(DEAD_LETTERS)
    )
    assert sorted(row.id for row in frames["shared"].collect()) == [1, 3]
    assert sorted(row.id for row in frames["all"].collect()) == [0, 1, 3]
    assert tuples(frames["joined"]) == [(2, 0)]


# --- operators behind a side output -----------------------------------------------------------------------------------


@pytest.fixture
def primary(journal):
    @async_pandas_udf("got string", on_error="dead_letter")
    async def primary(id: int):
        journal.write("primary", id)
        if id % 2:
            raise ConnectionError("no route")
        return {"got": f"primary {id}"}

    return primary


@pytest.fixture
def fallback(journal):
    @async_pandas_udf("got string")
    async def fallback(id: int):
        journal.write("fallback", id)
        await asyncio.sleep(0)
        return {"got": f"fallback {id}"}

    return fallback


def test_operators_go_on_behind_a_side_output(spark, stream_of, journal, primary, fallback):
    main = stream_of(spark.range(0, 6, 1, 2)).unordered_wait(primary)
    lost = main.side_output(DEAD_LETTERS).filter(lambda row: row["error"]["type"] == "ConnectionError")
    repaired = lost.unordered_wait(fallback)
    assert repaired.columns == ["id", "error", "got"]
    together = main.to_df().union(repaired.select("id", "got"))
    assert sorted(tuples(together)) == [(i, f"{'fallback' if i % 2 else 'primary'} {i}") for i in range(6)]
    assert main.count() == 3
    assert (journal.count("primary"), journal.count("fallback")) == (6, 3)


def test_operators_behind_a_side_output_are_collected_with_the_rest(spark, stream_of, journal, primary, fallback):
    main = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(primary)
    lost = main.side_output(DEAD_LETTERS)
    repaired = lost.ordered_wait(fallback)
    frames = AsyncStream.collect(main=main, lost=lost, repaired=repaired, loud=repaired.map(lambda row: 1, "int"))
    for _ in range(2):
        assert sorted(row.id for row in frames["lost"].collect()) == [1, 3, 5]
        assert sorted(row.got for row in frames["repaired"].collect()) == [f"fallback {i}" for i in (1, 3, 5)]
        assert sorted(row.got for row in frames["main"].collect()) == [f"primary {i}" for i in (0, 2, 4)]
        assert tuples(frames["loud"]) == [(1,)] * 3
    assert (journal.count("primary"), journal.count("fallback")) == (6, 3)


def test_the_only_operator_behind_a_side_output_is_kept_too(spark, stream_of, journal, primary, fallback):
    main = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(primary)
    frames = AsyncStream.collect(main=main, repaired=main.side_output(DEAD_LETTERS).ordered_wait(fallback))
    assert [frames["repaired"].count(), frames["main"].count(), frames["repaired"].count()] == [3, 3, 3]
    assert (journal.count("primary"), journal.count("fallback")) == (6, 3)


def test_a_side_output_of_a_chain_behind_a_side_output(spark, stream_of, journal, primary):
    @async_pandas_udf("got string", on_error="dead_letter")
    async def last_resort(id: int, context: RuntimeContext):
        context.output(LOG, {"id": id, "note": "tried"})
        return {"got": f"{9 // (id - 1)}"}

    lost = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(primary).side_output(DEAD_LETTERS)
    tried = lost.map(lambda row: {"id": row["id"]}, "id bigint").ordered_wait(last_resort)
    assert sorted(tuples(tried)) == [(3, "4"), (5, "2")]
    assert sorted(tuples(tried.side_output(LOG))) == [(3, "tried"), (5, "tried")]
    assert tuples(tried.side_output(DEAD_LETTERS).select("id", "error.function")) == [(1, "last_resort")]
    assert journal.count("primary") == 6


# --- latencies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0.001, datetime.timedelta(milliseconds=1)])
def test_latencies_tell_how_long_rows_take_up_to_each_operator(spark, stream_of, interval):
    async def first(id: int) -> int:
        await asyncio.sleep(0.001)
        return id

    stream = stream_of(spark.range(0, 40, 1, 2), latency_interval=interval).ordered_wait(first, capacity=2)
    stream = stream.filter(lambda row: row["id"] < 5).unordered_wait(halved, on_error="null", capacity=3)
    latencies = stream.side_output(LATENCIES)
    assert latencies.dtypes == [("operator", "string"), ("partition", "int"), ("latency", "double")]
    found = latencies.collect()
    operators = {(row.operator, row.partition) for row in found}
    assert operators == {(operator, number) for operator in ("first", "filter", "halved") for number in (0, 1)}
    assert all(row.latency >= 0 for row in found)


def test_latencies_of_two_branches(spark, stream_of):
    stream = stream_of(spark.range(0, 4, 1, 1), latency_interval=0.001)
    left, right = stream.ordered_wait(halved), stream.map(lambda row: row)
    frames = AsyncStream.collect(left=left.side_output(LATENCIES), right=right.side_output(LATENCIES))
    assert {row.operator for row in frames["left"].collect()} >= {"source", "halved"}
    assert {row.operator for row in frames["right"].collect()} >= {"source", "map"}


# --- streaming --------------------------------------------------------------------------------------------------------


@async_pandas_udf("length int", on_error="dead_letter")
async def measured(line):
    if line == "bad":
        raise ValueError(line)
    return {"length": len(line)}


async def shouted(line: str, context: RuntimeContext) -> str:
    context.output(LOG, {"id": 1, "note": line})
    return line.upper()


@pytest.fixture
def lines(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in (("1.txt", "one\nbad\n"), ("2.txt", "three\n")):
        (folder / name).write_text(text)
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
    return stream.withColumnRenamed("value", "line")


@pytest.fixture
def run(tmp_path):
    """Runs a streaming query to its end."""

    def run(writer):
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    return run


def test_a_chain_runs_in_a_streaming_query(spark, stream_of, lines, run):
    stream = stream_of(lines).filter(lambda row: row["line"] != "bad").ordered_wait(shouted)
    stream = stream.unordered_wait(measured, on_error="raise")
    assert stream.isStreaming
    run(stream.writeStream.format("memory").queryName("chained_lines"))
    assert sorted(tuples(spark.table("chained_lines"))) == [("one", "ONE", 3), ("three", "THREE", 5)]


IN_A_STREAM = {
    "dead letters": lambda s: s.ordered_wait(measured).side_output(DEAD_LETTERS).to_df(),
    "the rows beside dead letters": lambda s: s.ordered_wait(measured).to_df(),
    "latencies": lambda s: s.ordered_wait(shouted).side_output(LATENCIES).to_df(),
    "a tag": lambda s: s.ordered_wait(shouted).side_output(LOG).to_df(),
    "several results": lambda s: AsyncStream.collect(a=s, b=s.map(lambda row: row)),
}


@pytest.mark.parametrize("what", IN_A_STREAM)
def test_side_outputs_of_a_streaming_dataframe_are_refused(lines, stream_of, what):
    stream = stream_of(lines, latency_interval=1 if what == "latencies" else None)
    with pytest.raises(FunctionError, match=r"streaming DataFrame cannot be kept.*foreachBatch\(f\) with AsyncStream"):
        IN_A_STREAM[what](stream)


def test_foreach_batch_has_side_outputs(spark, lines, run, journal, tmp_path):
    async def measured_once(line: str) -> int:
        journal.write("call", line)
        return await measured.__wrapped__(line)

    def write(batch, number):
        with AsyncStream(batch).ordered_wait(measured_once, returnType="length int", on_error="dead_letter") as stream:
            stream.write.mode("append").parquet(str(tmp_path / "main"))
            stream.side_output(DEAD_LETTERS).write.mode("append").parquet(str(tmp_path / "letters"))

    run(lines.writeStream.foreachBatch(write))
    assert sorted(tuples(spark.read.parquet(str(tmp_path / "main")))) == [("one", 3), ("three", 5)]
    assert tuples(spark.read.parquet(str(tmp_path / "letters")).select("line", "error.type")) == [("bad", "ValueError")]
    assert sorted(journal.lines) == ["call bad", "call one", "call three"]
