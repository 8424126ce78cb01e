"""What Spark's user reads of a task that failed, and what is in the columns of an error, at every entry point."""

# ruff: noqa: A002, A006 - parameters are called like the columns, and Spark's own is `id`

import contextlib
import json
import os
import re
import threading

import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncStream,
    FunctionError,
    OptionError,
    ProcessFunction,
    async_pandas_udf,
    http,
    ordered_wait,
    unordered_wait,
)
from asyncudf._spark._compat import IS_SPLIT

pytestmark = pytest.mark.spark


def parse(id):
    return json.loads("{") if id == 7 else id


@async_pandas_udf
async def fails(id: int) -> int:
    return parse(id)


@async_pandas_udf("bigint")
async def many(id: int):
    yield parse(id)


class Rich(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([parse(value["id"])])


class OpensWrongly(Rich):
    async def open(self, context):
        parse(7)


class ClosesWrongly(Rich):
    async def close(self):
        parse(7)

    async def async_invoke(self, value, result_future):
        result_future.complete([1])


class Process(ProcessFunction):
    def process_element(self, value, context, collector):
        parse(value["id"])


class ProcessOpensWrongly(Process):
    def open(self, context):
        parse(7)


@contextlib.asynccontextmanager
async def client():
    yield parse(7)


@async_pandas_udf(resources=client)
async def with_client(id: int, client) -> int:
    return id


def in_sql(spark, df, function):
    df.createOrReplaceTempView("seven")
    function.register(spark, "seven_of")
    return spark.sql("SELECT * FROM seven_of(TABLE(seven), 'id')")


AT = r"failed in attempt 1, partition 0, for the input"
ENTRY_POINTS = {
    "a column": (lambda spark, df: df.select(fails("id")), rf"fails {AT} \(7,\)"),
    "ordered_wait": (lambda spark, df: ordered_wait(df, fails), rf"fails {AT} \(7,\)"),
    "unordered_wait": (lambda spark, df: unordered_wait(df, many), rf"many {AT} \(7,\)"),
    "an AsyncFunction": (lambda spark, df: ordered_wait(df, Rich(), returnType="int"), rf"Rich {AT} {{'id': 7}}"),
    "a chain": (lambda spark, df: AsyncStream(df).filter(lambda row: True).ordered_wait(fails), rf"fails {AT} \(7,\)"),
    "a table function": (lambda spark, df: in_sql(spark, df, many), rf"many {AT} \(7,\)"),
    "map": (lambda spark, df: AsyncStream(df).map(lambda row: parse(row["id"])), r"map failed, .* input {'id': 7}"),
    "filter": (lambda spark, df: AsyncStream(df).filter(lambda row: parse(row["id"])), r"filter failed, partition 0"),
    "process": (lambda spark, df: AsyncStream(df).process(Process()), r"Process failed, partition 0, for the input"),
    "open": (lambda spark, df: ordered_wait(df, OpensWrongly(), returnType="int"), r"OpensWrongly\.open\(\) failed"),
    "close": (
        lambda spark, df: ordered_wait(df, ClosesWrongly(), returnType="int"),
        r"ClosesWrongly\.close\(\)",
    ),
    "a process's open": (lambda spark, df: AsyncStream(df).process(ProcessOpensWrongly()), r"\.open\(\) failed"),
    "a resource": (
        lambda spark, df: df.select(with_client("id")),
        r"resource 'client' of with_client could not be opened",
    ),
}


def error_of(query):
    with pytest.raises(Exception, match="asyncudf") as caught:
        query.collect()
    return str(caught.value)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_the_message_comes_first_and_then_the_users_frames_only(spark, entry_point):
    query, said = ENTRY_POINTS[entry_point]
    head, *lines = error_of(query(spark, spark.range(7, 8, 1, 1))).strip().splitlines()
    assert head.startswith("An exception was thrown from the Python worker")
    if not IS_SPLIT:  # Spark 3.5 always shows the library's frames, before the message
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("asyncudf.")) :]
    assert re.match(rf"asyncudf\.[\w.]*Error: .*{said}.*: JSONDecodeError: Expecting property name", lines[0]), lines[0]
    hint = [
        'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; a sink with dead_letters=.'
    ]
    below = lines[1 : lines.index("Traceback (most recent call last):")]
    assert below == [*(hint if AT in said else []), ""], "only rows of an async function have a policy"
    files = {line.split('"')[1] for line in lines if line.startswith("  File ")}
    assert files == {__file__, json.__file__, json.decoder.__file__}
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


@pytest.mark.parametrize("entry_point", ["a column", "a chain", "a table function"])
def test_the_switch_brings_all_frames_back(spark, monkeypatch, entry_point):
    """With ASYNCUDF_FULL_TRACEBACK the library's frames are shown, for those who look for its bugs."""
    monkeypatch.setenv("ASYNCUDF_FULL_TRACEBACK", "1")
    text = error_of(ENTRY_POINTS[entry_point][0](spark, spark.range(7, 8, 1, 1)))
    assert "/_loop/bridge.py" in text
    assert "/_operators/" in text
    assert "JSONDecodeError" in text


def pid_of(batches):
    import pyarrow as pa

    for batch in batches:
        hidden = os.environ.get("SPARK_HIDE_TRACEBACK", "")
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()] * batch.num_rows, "hidden": [hidden] * batch.num_rows})


def test_the_worker_that_failed_serves_no_other_task(spark, journal):
    @async_pandas_udf
    async def fails_in(id: int) -> int:
        journal.write(os.getpid())
        raise ValueError("no")

    error_of(spark.range(0, 2, 1, 2).select(fails_in("id")))
    later = spark.range(0, 8, 1, 4).mapInArrow(pid_of, "pid long, hidden string").collect()
    assert not {row.pid for row in later} & {int(line) for line in journal.lines}
    assert {row.hidden for row in later} == {""}


def test_a_mistake_in_sql_is_told_without_frames(spark):
    spark.range(1).createOrReplaceTempView("seven")
    many.register(spark, "many_of")
    with pytest.raises(Exception, match="unknown column 'it'") as caught:
        spark.sql("SELECT * FROM many_of(TABLE(seven), 'it')").collect()
    assert "asyncudf.FunctionError: unknown column 'it'" in str(caught.value)
    assert 'File "' not in str(caught.value)


class HttpError(Exception):
    def __init__(self, status):
        super().__init__(f"GET https://me:secret@example.com/v1?key=secret: {status}")
        self.status = status


@async_pandas_udf
async def from_http(id: int) -> int:
    raise HttpError(404) if id else ValueError("no status")


def test_captured_errors_have_the_status_and_no_secrets(spark):
    df = spark.range(0, 2, 1, 1)
    found = df.select(from_http.with_options(on_error="capture")("id").alias("r")).select("r.error.*").collect()
    assert [(row.type, row.status) for row in found] == [("ValueError", None), ("HttpError", 404)]
    assert found[1].message == "GET https://***@example.com/v1?***: 404"


def test_dead_letters_have_the_status_before_function_and_partition(spark):
    with AsyncStream(spark.range(1, 2, 1, 1)).ordered_wait(from_http, on_error="dead_letter") as stream:
        letters = stream.side_output(DEAD_LETTERS)
        fields = ["type", "message", "attempts", "elapsed", "status", "function", "partition"]
        assert letters.schema["error"].dataType.names == fields
        (letter,) = letters.collect()
    assert (letter.error.status, letter.error.function, letter.error.partition) == (404, "from_http", 0)
    assert letter.error.message == "GET https://***@example.com/v1?***: 404"


@async_pandas_udf("x int, y string")
async def point(id: int):
    if id == 1:
        raise ValueError("no")
    return {"x": id, "y": "a"}


@async_pandas_udf("x int, y string")
async def other_point(id: int):
    return {"x": -id, "y": "b"}


def test_the_column_of_a_result_can_be_named_so_that_two_do_not_clash(spark):
    df = spark.range(0, 2, 1, 1)
    stream = AsyncStream(df).ordered_wait(point, as_="p", on_error="capture")
    stream = stream.unordered_wait(other_point, "id", as_="q", on_error="capture")
    found = stream.to_df()
    assert found.columns == ["id", "p", "q"]
    rows = found.selectExpr("id", "p.value.x a", "p.error.type t", "q.value.x b").collect()
    assert [tuple(row) for row in rows] == [(0, 0, None, 0), (1, None, "ValueError", -1)]


def test_a_struct_a_plain_value_and_a_row_of_none_in_a_named_column(spark):
    df = spark.range(0, 2, 1, 1)
    structs = ordered_wait(df, point, as_="p", on_error="null")
    assert structs.schema["p"].dataType.simpleString() == "struct<x:int,y:string>"
    assert [row.p for row in structs.collect()] == [(0, "a"), None]
    numbers = unordered_wait(df, fails, as_="n")
    assert [(row.id, row.n) for row in numbers.collect()] == [(0, 0), (1, 1)]


def test_the_next_operator_reads_a_named_column_as_a_struct(spark):
    @async_pandas_udf("int")
    async def reads(p):
        return None if p is None else p["x"] + 10

    stream = AsyncStream(spark.range(0, 2, 1, 1)).ordered_wait(point, as_="p", on_error="null").ordered_wait(reads)
    assert [(row.p, row.reads) for row in stream.filter(lambda row: row["p"] or True).collect()] == [
        ((0, "a"), 10),
        (None, None),
    ]


@pytest.mark.parametrize("wrong", ["", 5, sf])
def test_something_else_than_a_name_is_refused(spark, no_job, wrong):
    with no_job, pytest.raises(OptionError, match="as_ must be the name of a column, not "):
        ordered_wait(spark.range(1), point, as_=wrong)


def test_a_named_column_that_is_there_already_is_refused(spark, no_job):
    with no_job, pytest.raises(FunctionError, match=r"would add a column 'id'.*withColumnRenamed\('id', \.\.\.\)$"):
        ordered_wait(spark.range(1), point, as_="id")


@async_pandas_udf("x int, inner struct<a: int>", extra_fields="drop")
async def talkative(id: int):
    return {"x": id, "new": 1, "inner": {"a": 1, "b": [2]}}


def test_unknown_fields_are_dropped_at_every_entry_point(spark):
    df = spark.range(0, 1, 1, 1)
    df.createOrReplaceTempView("one")
    talkative.with_options(output_mode="unordered").register(spark, "talkative_of")
    for found in (
        df.select(talkative("id").alias("r")).select("r.*"),
        ordered_wait(df, talkative).drop("id"),
        spark.sql("SELECT x, inner FROM talkative_of(TABLE(one), 'id')"),
    ):
        assert found.first() == (0, (1,))


def test_redacted_inputs_are_not_in_the_message(spark):
    text = error_of(spark.range(7, 8, 1, 1).select(fails.with_options(redact=True)("id")))
    assert "fails failed in attempt 1, partition 0, for the input <redacted: int>: JSONDecodeError" in text


@async_pandas_udf("int", redact=True)
async def repeats_its_input(id: int) -> int:
    raise http.PermanentError(400, "Bad Request", f"no such customer: secret {id}")


def test_nor_in_the_traceback_below_it(spark):
    """Which prints the user's exception once more, here with the body of the service's answer."""
    text = error_of(spark.range(7, 8, 1, 1).select(repeats_its_input("id")))
    assert "in repeats_its_input" in text
    assert "secret" not in text.replace('f"no such customer: secret {id}"', "")  # the line of code


def test_a_redact_function_that_cannot_be_sent_is_named(spark, no_job):
    lock = threading.Lock()
    with no_job, pytest.raises(FunctionError, match=r"redact.*lock"):
        ordered_wait(spark.range(1), fails, redact=lambda id: lock)
