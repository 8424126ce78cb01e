"""Sinks: the rows of a DataFrame, or of a stream, go to a service, and every row is accounted for."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

from __future__ import annotations

import datetime
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import asyncudf
from asyncudf import (
    AsyncFunction,
    FunctionError,
    OptionError,
    ResultStore,
    RuntimeContext,
    SinkError,
    SinkReport,
    async_pandas_udf,
    async_sink,
    sink_source,
    stream_sink,
)
from asyncudf._limits.health.option import Failures
from asyncudf._spark import _compat
from asyncudf._spark.api import sinks
from tests.kit.drivers import SharedDriver

pytestmark = pytest.mark.spark


async def refuse_odd(id: int) -> None:
    if id % 2:
        raise ValueError(f"no {id}")


def rows_of(report: SinkReport) -> tuple[int, int, int, int]:
    return report.written, report.failed, report.reused, report.skipped


# What is reported


@pytest.mark.promise("async_sink")
def test_every_row_is_written_or_a_dead_letter(spark: SparkSession, journal: Any) -> None:
    async def post(id: int, name: str) -> object:
        journal.write("post", id, name)
        if id % 10 == 3:
            raise ValueError(f"bad {id}")
        return object()

    df = spark.range(0, 50, 1, 2).withColumn("name", sf.concat(sf.lit("n"), "id"))
    report = async_sink(df, post)
    assert (rows_of(report), report.calls, report.reasons) == ((45, 5, 0, 0), 50, {"ValueError": 5})
    letters = report.dead_letters
    assert letters.columns == ["id", "name", "error"]
    found = sorted(
        (row.id, row.name, row.error.type, row.error.message, row.error.attempts) for row in letters.collect()
    )
    assert found == [(n, f"n{n}", "ValueError", f"bad {n}", 1) for n in (3, 13, 23, 33, 43)]
    assert letters.count() == letters.where("id > 0").count() == 5
    assert journal.count("post") == 50, "the job ran once, and dead letters are read without it"
    with pytest.raises(SinkError, match=r"5 of 50 rows of post failed: ValueError \(5\)") as raised:
        report.raise_for_failures()
    assert raised.value.report is report


def write_row(id: int) -> None:
    if id % 2:
        raise ValueError


async def write_with_answers(id: int) -> Any:
    yield "begun"
    if id % 2:
        raise ValueError
    yield "done"


async def write_series(id: pd.Series) -> Any:
    return [ValueError() if n % 2 else {"status": 201} for n in id]


class WriteAsync(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        if value["id"] % 2:
            result_future.complete_exceptionally(ValueError())
        else:
            result_future.complete(["a", 1, None])


KINDS = [write_row, write_with_answers, write_series, WriteAsync()]


@pytest.mark.parametrize("function", KINDS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_a_function_of_any_kind_writes_and_what_it_returns_is_dropped(spark: SparkSession, function: Any) -> None:
    report = async_sink(spark.range(0, 20, 1, 2), function)
    assert (rows_of(report), report.reasons) == ((10, 10, 0, 0), {"ValueError": 10})


@pytest.mark.parametrize(
    ("answers", "failed", "text"),
    [
        (lambda rows: [None] * (rows - 1), 5, "returned 4 answers for 5 rows; give one answer for each row"),
        (lambda rows: ["no", *[None] * (rows - 1)], 1, "answered a value of type str for a row"),
        (lambda rows: None, 5, "returned a value of type NoneType, and says that it returns a list"),
    ],
)
def test_who_says_that_it_answers_for_each_row_does(spark: SparkSession, answers: Any, failed: int, text: str) -> None:
    """As its annotation says; a service that does not tell of all rows has perhaps not written them."""

    async def bulk(id: pd.Series) -> list[Exception | None]:
        return [None] * len(id) if id[0] else answers(len(id))

    report = async_sink(spark.range(0, 15, 1, 1), bulk, batch_size=5)
    assert rows_of(report)[:2] == (15 - failed, failed)
    assert report.dead_letters is not None
    assert text in report.dead_letters.first().error.message


def test_a_bulk_call_that_returns_one_answer_for_all_has_written_all(spark: SparkSession) -> None:
    async def bulk(id: pd.Series) -> dict[str, str]:
        return {"status": "ok"}

    report = async_sink(spark.range(0, 20, 1, 1), bulk, batch_size=5)
    assert (rows_of(report), report.calls) == ((20, 0, 0, 0), 4)


def test_no_rows_are_a_report_of_zeros(spark: SparkSession, journal: Any) -> None:
    async def post(id: int) -> None:
        journal.write("post")

    report = async_sink(spark.range(0), post)
    assert (rows_of(report), report.calls, report.rows, len(journal)) == ((0, 0, 0, 0), 0, 0, 0)
    assert report.dead_letters.collect() == []
    assert report.dead_letters.columns == ["id", "error"]
    assert report.raise_for_failures() is report


def test_rows_with_a_null_are_skipped_if_that_is_asked_for(spark: SparkSession) -> None:
    async def post(a: int, b: int) -> None: ...

    df = spark.createDataFrame([(1, 2), (None, 3), (4, None), (None, None)], "a int, b int")
    assert rows_of(async_sink(df, post, on_null_input="null")) == (1, 0, 0, 3)
    assert rows_of(async_sink(df, post)) == (4, 0, 0, 0)


def test_a_failed_row_may_fail_the_job(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"refuse_odd failed in attempt 1.*ValueError: no 1"):
        async_sink(spark.range(0, 4, 1, 1), refuse_odd, on_error="raise")


async def refuse(id: int) -> None:
    raise ValueError(f"no {id}")


def test_a_sink_whose_rows_all_fail_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(SinkError, match=r"3 of 3 rows of refuse failed: ValueError \(3\)\n  for example no 0") as error:
        async_sink(spark.range(0, 3, 1, 1), refuse)
    assert error.value.report is not None
    assert [row.id for row in error.value.report.dead_letters.collect()] == [0, 1, 2]


def test_a_sink_of_which_more_than_half_fails_is_an_error(spark: SparkSession) -> None:
    """Each of the two tasks has fewer rows than say something."""

    async def most(id: int) -> None:
        if id % 3:
            raise ValueError

    assert async_sink(spark.range(0, 90, 1, 2), most).failed == 60
    with pytest.raises(SinkError, match="80 of 120 rows of most failed"):
        async_sink(spark.range(0, 120, 1, 2), most)


def test_a_task_of_which_more_than_half_fails_ends_the_job(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="100 of 100 rows of refuse failed, more than max_failures= allows"):
        async_sink(spark.range(0, 5000, 1, 1), refuse, capacity=1)


def test_with_max_failures_of_ones_own_there_is_a_report_up_to_it(spark: SparkSession) -> None:
    df = spark.range(0, 200, 1, 1)
    assert async_sink(df, refuse, max_failures=None).failed == 200
    assert async_sink(df, refuse, max_failures=200).failed == 200
    assert async_sink(df, async_pandas_udf(refuse, on_error="null", max_failures=200)).failed == 200
    with pytest.raises(Exception, match="more than max_failures= allows"):
        async_sink(df, refuse, max_failures=199)


def test_max_failures_of_ones_own_counts_the_rows_of_all_tasks(spark: SparkSession) -> None:
    """Each task of 60 rows has too few for a share: 600 of 1,200 rows failed, with 2% allowed, and nobody said so."""
    with pytest.raises(SinkError, match="120 of 120 rows of refuse failed"):
        async_sink(spark.range(0, 120, 1, 4), refuse, max_failures=0.02)
    with pytest.raises(SinkError, match="40 of 40 rows of refuse failed") as caught:
        async_sink(spark.range(0, 40, 1, 4), refuse, max_failures=39)
    assert caught.value.report.failed == 40


def test_rows_that_no_budget_was_left_for_are_neither_sent_nor_failed() -> None:
    """All rows that were sent had failed, and were less than half of the rows."""
    report: Any = SimpleNamespace(
        rows=300, skipped=20, failed=280, reasons={"ValueError": 120, "BudgetSpentError": 160}
    )
    assert sinks._failures(report) == Failures(rows=120, failed=120)


@pytest.mark.spark_only("foreachBatch runs in the process of the test")
def test_too_many_failures_fail_a_stream_by_its_micro_batch(spark: SparkSession) -> None:
    taken: list[int] = []
    write = stream_sink(refuse, dead_letters=lambda df, n: taken.append(df.count()), name="orders")
    write(spark.range(0, 99, 1, 4), 0)
    with pytest.raises(SinkError, match="120 of 120 rows of refuse failed"):
        write(spark.range(0, 120, 1, 4), 1)
    assert taken == [99, 120], "dead letters are given in any case"


# Which rows there are


def test_dead_letters_have_the_values_of_the_rows(spark: SparkSession) -> None:
    df = spark.range(0, 4, 1, 2).selectExpr(
        "id",
        "map('a', id) m",
        "array(id, null) a",
        "named_struct('x', id, 'y', array(named_struct('z', 'q'))) s",
        "timestamp '2020-06-01 12:00:00.000001' t",
        "timestamp_ntz '2020-06-01 12:00:00' n",
        "date '2020-06-01' d",
        "cast(1.50 as decimal(20, 2)) c",
        "cast('x' as binary) b",
        "cast(null as void) v",
    )
    letters = async_sink(df, refuse, max_failures=None).dead_letters
    assert [field.dataType for field in letters.schema.fields[:-1]] == [field.dataType for field in df.schema.fields]
    assert sorted(letters.drop("error").collect()) == sorted(df.collect())
    found = letters.where("id = 3").first()
    assert (found.t, found.c) == (datetime.datetime(2020, 6, 1, 12, 0, 0, 1), Decimal("1.50"))


@pytest.mark.parametrize("names", [["id", "x", "x", "a.b"], ["id", "x", "X", "`"]])
def test_columns_may_have_any_names(spark: SparkSession, names: list[str]) -> None:
    df = spark.range(0, 4, 1, 2).selectExpr("id", "1", "'two'", "3.5D").toDF(*names)
    report = async_sink(df, refuse_odd, "id")
    assert report.dead_letters.columns == [*names, "error"]
    assert sorted(row[:-1] for row in report.dead_letters.collect()) == [(1, 1, "two", 3.5), (3, 1, "two", 3.5)]


class UnpicklableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def test_errors_that_can_be_neither_pickled_nor_printed_are_reasons_too(spark: SparkSession) -> None:
    async def post(id: int) -> None:
        raise UnpicklableError if id % 2 else ValueError("\ud800 <b>")

    report = async_sink(spark.range(4), post, max_failures=None)
    assert report.reasons == {"UnpicklableError": 2, "ValueError": 2}
    assert "<b>" not in report._repr_html_()
    assert {row.error.message for row in report.dead_letters.collect()} == {
        "<unprintable: RuntimeError>",
        "\\ud800 <b>",
    }


def test_many_large_dead_letters_come_back_whole(spark: SparkSession) -> None:
    df = spark.range(0, 1000, 1, 2).withColumn("text", sf.expr("repeat(uuid(), 400)"))
    letters = async_sink(df, refuse, "id", max_failures=None).dead_letters
    assert letters.agg(sf.count("*"), sf.countDistinct("id"), sf.min(sf.length("text"))).first()[:] == (
        1000,
        1000,
        14400,
    )


# What is refused when it is planned


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda df: async_sink(5, refuse), OptionError, "takes a DataFrame, not 5"),
        (lambda df: async_sink(df, refuse, "idd"), FunctionError, "unknown column 'idd'"),
        (lambda df: async_sink(df.withColumn("Error", sf.lit(1)), refuse), FunctionError, "column 'error'.*rename"),
        (lambda df: async_sink(df.select(), refuse), FunctionError, "no columns"),
        (lambda df: async_sink(df, refuse, returnType="string"), OptionError, "leave returnType out"),
        (lambda df: async_sink(df, refuse, output_mode="ordered"), OptionError, "no output_mode"),
        (lambda df: async_sink(df, refuse, on_error="null"), OptionError, "'dead_letter' or 'raise'"),
        (lambda df: async_sink(df, refuse, on_timeout=1), OptionError, "on_timeout"),
        (lambda df: async_sink(df, refuse, on_error="raise", max_failures=3), OptionError, "max_failures is never"),
        (lambda df: async_sink(df, refuse, max_calls=1, on_spent="null"), OptionError, "'dead_letter' or 'raise'"),
        (lambda df: stream_sink(refuse, on_error="dead_letter"), OptionError, "needs dead_letters="),
        (lambda df: stream_sink(refuse, max_calls=1, on_spent="dead_letter"), OptionError, "needs dead_letters="),
        (lambda df: stream_sink(refuse, max_failures=3), OptionError, "give stream_sink dead_letters="),
        (lambda df: stream_sink(refuse, dead_letters=5), OptionError, "dead_letters"),
        (lambda df: sink_source("", refuse), OptionError, "name"),
        (lambda df: sink_source("x", refuse, dead_letters=lambda df: None), OptionError, "dead_letters"),
        (lambda df: stream_sink(refuse, dead_letters="t", on_error="RAISE"), OptionError, "leave one of them out"),
        (lambda df: async_sink(df, refuse, id="id"), OptionError, "columns by position"),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_sent(
    spark: SparkSession, call: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        call(spark.range(3))


def test_a_stream_is_told_where_to_go(spark: SparkSession) -> None:
    with pytest.raises(FunctionError, match=r"foreachBatch\(stream_sink\(refuse, \.\.\.\)\)"):
        async_sink(spark.readStream.format("rate").load(), refuse, "value")


def test_a_spark_without_data_sources_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "HAS_DATA_SOURCES", False)
    monkeypatch.setattr(_compat.pyspark, "__version__", "3.5.9")
    with pytest.raises(FunctionError, match=r"from version 4\.0 on, and this is 3\.5\.9; use async_sink") as error:
        sink_source("crm", refuse)
    assert "stream_sink" in str(error.value)


# What is sent once


@pytest.mark.promise("stores")
def test_a_row_that_was_acknowledged_is_not_sent_again(spark: SparkSession, journal: Any, tmp_path: Path) -> None:
    async def post(id: int) -> None:
        journal.write("post", id)
        if id == 7 and journal.count("post") < 11:
            raise ValueError

    store = ResultStore.disk(tmp_path / "store")
    df = spark.range(0, 10, 1, 2)
    assert rows_of(async_sink(df, post, store=store, version="1")) == (9, 1, 0, 0)
    assert rows_of(async_sink(df, post, store=store, version="1")) == (1, 0, 9, 0)
    assert rows_of(async_sink(df, post, store=store, version="2")) == (10, 0, 0, 0)


def test_equal_rows_are_one_write_with_a_store_and_two_without(
    spark: SparkSession, journal: Any, tmp_path: Path
) -> None:
    async def post(name: str) -> None:
        journal.write("post", name)

    df = spark.createDataFrame([("a",), ("a",), ("b",)], "name string").coalesce(1)
    report = async_sink(df, post, store=ResultStore.disk(tmp_path / "store"), version="1")
    assert (rows_of(report), sorted(journal.lines)) == ((2, 0, 1, 0), ["post a", "post b"])
    assert rows_of(async_sink(df, post)) == (3, 0, 0, 0)
    assert Counter(journal.lines) == {"post a": 3, "post b": 2}


def test_rows_that_no_budget_is_left_for_are_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    async def post(id: int) -> None: ...

    store = ResultStore.disk(tmp_path / "store")
    budget = asyncudf.Budget(4, unit="rows", reserve=1)
    limited = {"budget": budget, "on_spent": "dead_letter", "store": store, "version": "1", "max_failures": None}
    assert rows_of(async_sink(spark.range(0, 3, 1, 1), post, store=store, version="1")) == (3, 0, 0, 0)
    report = async_sink(spark.range(0, 10, 1, 1), post, capacity=1, **limited)
    assert (rows_of(report), report.reasons) == ((4, 3, 3, 0), {"BudgetSpentError": 3})
    capped = async_sink(spark.range(0, 150, 1, 1), post, max_calls=10, on_spent="dead_letter")
    assert rows_of(capped) == (10, 140, 0, 0), "the user has asked for it: that is no SinkError"


def test_what_a_task_did_before_it_died_counts_once(cluster: Any, tmp_path: Path) -> None:
    """A worker ends in the middle; Spark runs its task again, and the report is that of the attempt that succeeded."""
    program = f"""
def post(id):
    flag = f"{tmp_path}/{{id // 10}}"
    if id % 10 == 9 and not os.path.exists(flag):
        open(flag, "w").close()
        os._exit(9)
    if id % 10 == 5:
        raise ValueError("five")

report = async_sink(spark.range(0, 20, 1, 2), post, capacity=1)
print(report.written, report.failed, report.calls, report.dead_letters.count())
"""
    assert cluster.run(program).split() == ["18", "2", "20", "2"]


def test_a_speculative_copy_of_a_task_sends_nothing_twice(cluster: SharedDriver, tmp_path: Path) -> None:
    """The copy waits for the calls of the slow task and takes their results from the store, or the other way round."""
    program = f"""
import contextlib
from pyspark import TaskContext

@contextlib.asynccontextmanager
async def begun():
    task = TaskContext.get()
    open(f"{tmp_path}/{{task.partitionId()}}.{{task.attemptNumber()}}", "w").close()
    yield

async def post(id, begun):
    while id >= 60 and not os.path.exists("{tmp_path}/3.1"):  # the copy of the last task
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.02)
    with open("{tmp_path}/calls", "a") as file:
        file.write(f"{{id}}\\n")

store = ResultStore.disk("{tmp_path}/store")
conf = spark.sparkContext._jsc.sc().conf()
conf.set("spark.speculation.quantile", "0.5")
report = async_sink(
    spark.range(0, 80, 1, 4), post, capacity=2, store=store, version="1", resources=begun, max_failures=None
)
conf.set("spark.speculation.quantile", "1.0")
print(report.written + report.reused, report.failed)
"""
    assert cluster.run(program).split() == ["80", "0"]
    assert sorted(map(int, (tmp_path / "calls").read_text().split())) == [*range(80)]


# Streams


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Any:
    """A stream of the numbers 0 to 9, five in each of two micro-batches, and a third one of the first five again."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, first in enumerate((0, 5, 0)):
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(first, first + 5), pa.int64())}), file)
        os.utime(file, (number, number))  # Spark takes the oldest first
    return lambda: spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.promise("stream_sink")
def test_a_micro_batch_that_runs_again_sends_what_was_not_acknowledged(
    spark: SparkSession, stream: Any, journal: Any, tmp_path: Path, to_its_end: Any
) -> None:
    """The second micro-batch fails at its last row; a new query goes on there, with the keys that it had.

    Equal rows of two micro-batches are two writes, also with a store.
    """

    async def post(id: int, context: RuntimeContext) -> None:
        journal.write(id, context.idempotency_key)
        if id == 9 and journal.count("9") == 1:
            raise ConnectionError("the service is gone")

    # A function of foreachBatch over Spark Connect does not know its query.
    named: dict[str, Any] = {} if hasattr(spark, "_jsparkSession") else {"name": "posts"}

    def begin() -> None:
        write = stream_sink(post, store=ResultStore.disk(tmp_path / "store"), version="1", capacity=1, **named)
        to_its_end(stream().writeStream.foreachBatch(write))

    with pytest.raises(Exception, match=r"post failed in attempt 1.*ConnectionError: the service is gone"):
        begin()
    begin()
    ids = [line.split()[0] for line in journal.lines]
    assert [ids.count(str(n)) for n in range(10)] == [2, 2, 2, 2, 2, 1, 1, 1, 1, 2]
    assert len(set(journal.lines)) == 15, "row 9 has had its key again, and each micro-batch has keys of its own"


@pytest.mark.spark_only("foreachBatch runs in the process of the test")
def test_dead_letters_of_a_stream_go_to_a_function_or_a_table(
    spark: SparkSession, stream: Any, to_its_end: Any
) -> None:
    taken: list[tuple[int, list[int]]] = []
    sinks = [
        stream_sink(refuse_odd, dead_letters=lambda df, n: taken.append((n, sorted(row.id for row in df.collect())))),
        stream_sink(refuse_odd, dead_letters="not_sent"),
    ]
    spark.sql("DROP TABLE IF EXISTS not_sent")
    try:
        to_its_end(stream().writeStream.foreachBatch(lambda df, n: [write(df, n) for write in sinks]))
        assert sorted(ids for _, ids in taken) == [[1, 3], [1, 3], [5, 7, 9]]
        assert sorted(n for n, _ in taken) == [0, 1, 2]
        found = spark.read.table("not_sent")
        assert (found.count(), found.columns) == (7, ["id", "error"])
    finally:
        spark.sql("DROP TABLE IF EXISTS not_sent")


# The data source


@pytest.fixture
def register(spark: SparkSession) -> Any:
    def make(name: str, function: Any, **options: Any) -> Any:
        source = sink_source(name, function, **options)  # first, as an older Spark is told here
        spark.dataSource.register(source)
        return source

    return make


@pytest.mark.promise("sink_source")
def test_a_dataframe_is_written_by_its_writer(spark: SparkSession, register: Any, journal: Any, tmp_path: Path) -> None:
    async def post(id: int, label: str) -> None:
        journal.write("post", id, label)
        if id == 3:
            raise ValueError("three")

    folder = tmp_path / "not_sent"
    register("crm", post, columns=["id", "name"], dead_letters=str(folder))
    df = spark.range(0, 10, 1, 2).withColumn("name", sf.lit("n"))
    with asyncudf.monitor(spark) as watched:
        df.write.format("crm").mode("append").save()
    (function,) = watched.metrics["functions"]
    assert (function["entry_point"], function["rows"], function["failures"]) == ("sink", 10, 1)
    assert "10 in, 9 written, 1 failed" in watched.summary()
    assert sorted(journal.lines) == sorted(f"post {n} n" for n in range(10))
    (letter,) = spark.read.parquet(str(folder)).collect()
    assert (letter.id, letter.name, letter.error.type, letter.error.message) == (3, "n", "ValueError", "three")


def test_without_a_folder_for_dead_letters_a_failed_row_fails_the_write(spark: SparkSession, register: Any) -> None:
    register("strict", refuse_odd)
    with pytest.raises(Exception, match=r"refuse_odd failed in attempt 1.*ValueError: no 1"):
        spark.range(0, 4, 1, 1).write.format("strict").mode("append").save()


def test_what_a_data_source_cannot_do_is_said_before_anything_is_sent(
    spark: SparkSession, register: Any, journal: Any
) -> None:
    """Spark asks the class that it is given; what that says, Spark says."""

    async def post(id: int) -> None:
        journal.write("post")

    plain = register("plain", post)
    df = spark.range(3)
    for write, message in [
        (lambda: plain({}).writer(df.schema, True), r'rows can only be added: give mode\("append"\)'),
        (lambda: plain({"url": "x"}).writer(df.schema, False), "takes no option 'url'"),
        (lambda: plain({}).schema(), "is a sink"),
        (lambda: df.toDF("x").write.format("plain").mode("append").save(), "unknown column 'id'"),
    ]:
        with pytest.raises(Exception, match=message):
            write()
    assert len(journal) == 0


@pytest.mark.promise("sink_source")
def test_a_stream_is_written_by_its_writer(
    spark: SparkSession,
    register: Any,
    stream: Any,
    journal: Any,
    tmp_path: Path,
    to_its_end: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its micro-batches have keys of their own, and a file of dead letters each."""

    async def post(id: int, context: RuntimeContext) -> None:
        journal.write(id, context.idempotency_key)
        if id % 5 == 3:
            raise ValueError

    folder = str(tmp_path / "not_sent")
    monkeypatch.setenv("HOME", str(tmp_path))
    register("events", post, dead_letters="~/not_sent", store=ResultStore.disk(tmp_path / "store"), version="1")
    to_its_end(stream().writeStream.format("events"))
    assert len(journal) == len(set(journal.lines)) == 15
    assert sorted(row.id for row in spark.read.parquet(folder).collect()) == [3, 3, 8]
    assert len([*Path(folder).glob("*.parquet")]) == 3


# Elsewhere


def test_sinks_over_spark_connect(connect: Any, tmp_path: Path) -> None:
    program = f"""
async def post(id):
    if id % 2:
        raise ValueError(f"no {{id}}")

async def keyed(id, context: RuntimeContext): ...

report = async_sink(spark.range(0, 10, 1, 2), post)
print(report.written, report.failed, sorted(row.error.message for row in report.dead_letters.collect()))

spark.dataSource.register(sink_source("crm", post, dead_letters="{tmp_path}/not_sent"))
spark.range(0, 10, 1, 2).write.format("crm").mode("append").save()
print(spark.read.parquet("{tmp_path}/not_sent").count())

def write(df, number):
    try:
        stream_sink(keyed)(df, number)
    except OptionError as error:
        open("{tmp_path}/error", "w").write(str(error))
    stream_sink(post, name="posts", dead_letters=lambda df, _: df.write.parquet("{tmp_path}/letters"))(df, number)

spark.range(0, 10, 1, 1).write.parquet("{tmp_path}/in")
stream = spark.readStream.schema("id long").parquet("{tmp_path}/in").writeStream.foreachBatch(write)
stream = stream.option("checkpointLocation", "{tmp_path}/checkpoint").trigger(availableNow=True)
stream.start().awaitTermination()
print(spark.read.parquet("{tmp_path}/letters").count())
"""
    messages = [f"no {n}" for n in (1, 3, 5, 7, 9)]
    assert connect.run(program).splitlines() == [f"5 5 {messages}", "5", "5"]
    assert "needs name=" in (tmp_path / "error").read_text()


def test_a_micro_batch_of_which_nobody_knows_the_query_needs_a_name(spark: SparkSession) -> None:
    async def keyed(id: int, context: RuntimeContext) -> None: ...

    with pytest.raises(OptionError, match="needs name="):
        stream_sink(keyed)(spark.range(3), 0)
    assert stream_sink(keyed, name="numbers")(spark.range(3), 0).written == 3
    assert stream_sink(refuse_odd, dead_letters=lambda df, n: None)(spark.range(3), 0).failed == 1


def test_rows_without_a_budget_are_apart_though_an_error_ends_the_write(spark: SparkSession) -> None:
    """Dead letters were refused beside on_error="raise", as if nothing else could make one."""

    async def post(id: int) -> None: ...

    letters: list[int] = []
    options: dict[str, Any] = {"on_error": "raise", "max_calls": 1, "on_spent": "dead_letter"}
    write = stream_sink(post, dead_letters=lambda df, number: letters.append(df.count()), **options)
    report = write(spark.range(0, 3, 1, 1), 0)
    assert (report.written, report.failed, letters) == (1, 2, [2])
