"""What Spark's user reads of a task that failed, and what is in the columns of an error, at every entry point."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import json
import os
import re

import pytest

from asyncudf import AsyncFunction, AsyncStream, async_pandas_udf, ordered_wait, unordered_wait

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


def in_sql(spark, df, function):
    df.createOrReplaceTempView("seven")
    function.register(spark, "seven_of")
    return spark.sql("SELECT * FROM seven_of(TABLE(seven), 'id')")


AT = r"failed in attempt 1, partition 0, for the input"
ENTRY_POINTS = {
    "a column": (lambda spark, df: df.select(fails("id")), rf"fails {AT} \(7,\)"),
    "unordered_wait": (lambda spark, df: unordered_wait(df, many), rf"many {AT} \(7,\)"),
    "a chain": (lambda spark, df: AsyncStream(df).filter(lambda row: True).ordered_wait(fails), rf"fails {AT} \(7,\)"),
    "a table function": (lambda spark, df: in_sql(spark, df, many), rf"many {AT} \(7,\)"),
    "open": (lambda spark, df: ordered_wait(df, OpensWrongly(), returnType="int"), r"OpensWrongly\.open\(\) failed"),
    "close": (lambda spark, df: ordered_wait(df, ClosesWrongly(), returnType="int"), r"ClosesWrongly\.close\(\)"),
}


def error_of(query):
    with pytest.raises(Exception, match="asyncudf") as caught:
        query.collect()
    return str(caught.value)


@pytest.mark.promise("errors")
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_the_message_comes_first_and_then_the_users_frames_only(spark, entry_point):
    query, said = ENTRY_POINTS[entry_point]
    head, *lines = error_of(query(spark, spark.range(7, 8, 1, 1))).strip().splitlines()
    assert head.startswith("An exception was thrown from the Python worker")
    if spark.version < "4":  # Spark 3.5 always shows the library's frames, before the message
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("asyncudf.")) :]
    if not hasattr(spark, "_jsparkSession"):  # a client shows the server's words for it as well, and the state below
        lines[0] = lines[0].removeprefix("[PYTHON_EXCEPTION] An exception was thrown from the Python worker: ")
        assert lines.pop().strip() == "SQLSTATE: 38000"
    assert re.match(rf"asyncudf\.[\w.]*Error: .*{said}.*: JSONDecodeError: Expecting property name", lines[0]), lines[0]
    hint = [
        'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; a sink with dead_letters=.'
    ]
    below = lines[1 : lines.index("Traceback (most recent call last):")]
    assert below == [*(hint if AT in said else []), ""], "only rows of an async function have a policy"
    files = {line.split('"')[1] for line in lines if line.startswith("  File ")}
    assert files == {__file__, json.__file__, json.decoder.__file__}
    assert lines[-1].startswith("json.decoder.JSONDecodeError: ")


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
