"""Queries that end before their rows do: how few calls are made that nobody waits for, and that all is closed.

The bounds are for a busy machine. As Spark buffers them, the calls of each query here would run to their end.
"""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import os
import threading

import pytest

from asyncudf import DEAD_LETTERS, AsyncStream, async_pandas_udf
from tests.kit.doors import column, through

pytestmark = pytest.mark.spark

TASKS = 2
CAPACITY = 20
ROWS = 40_000
AT_ONCE = 25 * CAPACITY * TASKS  # a second's calls would be 20 for each slot; three are usual


@pytest.fixture
def client(journal):
    @contextlib.asynccontextmanager
    async def client():
        journal.write("open", os.getpid())
        try:
            yield
        finally:
            journal.write("close", os.getpid())

    return client


@pytest.fixture
def call(journal, client):
    @async_pandas_udf(resources=client, capacity=CAPACITY)
    async def call(id: int, client) -> int:
        journal.write("call", id)
        await asyncio.sleep(0.05)
        return id

    return call


@pytest.fixture
def hangs(journal, client):
    @async_pandas_udf(resources=client, capacity=CAPACITY)
    async def hangs(id: int, client) -> int:
        journal.write("call", id)
        await asyncio.Event().wait()

    return hangs


@pytest.fixture
def patient_spark(spark):
    """Here Spark kills a cancelled task's worker after 0.1 to 2.1 s, which would hide what the worker does itself."""
    conf = spark.sparkContext._jsc.sc().conf()  # the one that is read for each worker
    before = conf.get("spark.python.task.killTimeout")
    conf.set("spark.python.task.killTimeout", "100s")
    yield spark
    conf.set("spark.python.task.killTimeout", before)


def pids(journal):
    return {int(line.split()[1]) for line in journal.lines if line.startswith("open")}


@contextlib.contextmanager
def cancelled_at_the_end(spark, df):
    """A query that is cancelled at the end of the block, without interrupting Spark's threads."""
    errors = []

    def run():
        spark.sparkContext.setJobGroup("stopping", "", interruptOnCancel=False)
        try:
            df.write.format("noop").mode("overwrite").save()
        except Exception as error:
            errors.append(str(error))

    job = threading.Thread(target=run)
    job.start()
    try:
        yield
    finally:
        spark.sparkContext.cancelJobGroup("stopping")
        job.join(timeout=30)
    assert "cancel" in errors[0].lower()


@pytest.mark.promise("cancellation")
@through("column", "table function", "chain")
def test_a_cancelled_job_stops_calling_and_closes_everything(patient_spark, call, journal, workers, until, door):
    df = door(patient_spark.range(0, ROWS, 1, TASKS), call, "id")
    with cancelled_at_the_end(patient_spark, df):
        until(lambda: journal.count("open") == TASKS and journal.count("call") > 10 * CAPACITY, "it runs")
        before = journal.count("call")
    until(lambda: journal.count("close") == TASKS, "the resources are closed")
    calls = journal.count("call")
    assert calls - before <= AT_ONCE
    workers.assert_clean(pids(journal), reused=False)
    assert journal.count("call") == calls, "no call after the close"
    assert column(patient_spark.range(0, 10, 1, TASKS), call, "id").count() == 10


@pytest.mark.promise("cancellation")
@through("column", "chain")
def test_a_cancelled_job_of_calls_that_hang_closes_everything(patient_spark, hangs, journal, workers, until, door):
    """Spark's task looks up only when it gets something: here it is an empty batch each second."""
    df = door(patient_spark.range(0, ROWS, 1, TASKS), hangs, "id")
    with cancelled_at_the_end(patient_spark, df):
        until(lambda: journal.count("call") == CAPACITY * TASKS, "all slots hang")
    until(lambda: journal.count("close") == TASKS, "the resources are closed")
    workers.assert_clean(pids(journal), reused=False)
    assert journal.count("call") == CAPACITY * TASKS


@pytest.mark.promise("LIMIT")
@through("column", "table function", "unordered_wait")
def test_a_limit_has_its_rows_with_the_first_results(spark, call, journal, workers, until, door):
    df = door(spark.range(0, ROWS, 1, TASKS), call, "id")
    assert len(df.where("result >= 0").limit(5).collect()) == 5
    until(lambda: journal.count("close") == journal.count("open"), "the resources are closed")
    calls = journal.count("call")
    assert calls <= AT_ONCE
    workers.assert_clean(pids(journal), reused=False)
    assert journal.count("call") == calls, "no call after the close"


@through("column")
def test_calls_that_hang_beyond_a_limit_are_cancelled_long_before_their_deadline(spark, journal, until, door):
    @async_pandas_udf(timeout=3600, capacity=CAPACITY)
    async def hangs_later(id: int) -> int:
        if id < 5:
            return id
        journal.write("start", id)
        try:
            await asyncio.Event().wait()
        finally:
            journal.write("cancelled", id)

    assert len(door(spark.range(0, ROWS, 1, 1), hangs_later, "id").where("result >= 0").limit(5).collect()) == 5
    until(lambda: 0 < journal.count("start") == journal.count("cancelled"), "all calls are cancelled")


@pytest.mark.promise("cancellation")
@through("ordered_wait")
def test_spark_does_not_take_slow_calls_for_a_worker_that_hangs(spark, conf, journal, door):
    @async_pandas_udf
    async def slow(id: int) -> int:
        journal.write("call", id)
        await asyncio.sleep(id)
        return id

    door(spark.range(0, 1, 1, 1), slow, "id").collect()  # so that the start of a worker does not count
    conf("spark.sql.execution.pyspark.udf.idleTimeoutSeconds", 2)
    conf("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "true")
    assert [row.result for row in door(spark.range(3, 4, 1, 1), slow, "id").collect()] == [3]
    assert journal.count("call") == 2


def only_rows(stream):
    return {"rows": stream}


def only_dead_letters(stream):
    return {"dead": stream.side_output(DEAD_LETTERS)}


def both(stream):
    return {**only_rows(stream), **only_dead_letters(stream)}


@pytest.mark.parametrize("names", ["rows", "dead", "rows dead"])
def test_an_empty_batch_suits_every_stream(spark, conf, names):
    """It comes first here, and Arrow takes only batches like the first. The session's zone is not Arrow's."""
    conf("spark.sql.session.timeZone", "Asia/Tokyo")

    @async_pandas_udf("a timestamp, b struct<c: array<string>>", on_error="dead_letter")
    async def slow_at_first(id: int):
        await asyncio.sleep(1.5 if id == 0 else 0)
        if id == 7:
            raise ValueError(id)

    df = spark.range(0, 9, 1, 1).selectExpr(
        "id",
        "timestamp_seconds(id) AS time",
        "timestamp_ntz '2026-01-01 00:00:00' AS naive",
        "interval '1' day AS day",
        "array(named_struct('a', id, 'b', map('k', id))) AS nested",
        "cast(1 AS decimal(30, 2)) AS money",
    )
    with AsyncStream(df).ordered_wait(slow_at_first) as stream:
        both = {"rows": stream, "dead": stream.side_output(DEAD_LETTERS)}
        wanted = AsyncStream.collect(**{name: both[name] for name in names.split()})
        found = {name: one.select(df.columns).collect() for name, one in wanted.items()}
    rows = df.collect()
    expected = {"rows": rows[:7] + rows[8:], "dead": rows[7:8]}
    assert found == {name: expected[name] for name in found}


def test_an_empty_batch_suits_every_column(spark, conf):
    conf("spark.sql.session.timeZone", "Asia/Tokyo")

    @async_pandas_udf("a timestamp, b struct<c: array<string>, d: decimal(30, 2)>, e map<string, date>")
    async def slow_at_first(id: int):
        await asyncio.sleep(1.5 if id == 0 else 0)

    assert [row.result for row in column(spark.range(0, 3, 1, 1), slow_at_first, "id").collect()] == [None] * 3
