"""What a function opens, when it is closed, what its context says, and that nothing is left in a reused worker."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import os
import socket
import threading
import time

import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncFunction, RuntimeContext, async_pandas_udf, ordered_wait, unordered_wait
from tests.kit.doors import through

pytestmark = pytest.mark.spark


class Service(AsyncFunction):
    def __init__(self, journal):
        self.journal = journal
        self.calls = 0

    async def open(self, context):
        self.partition = context.partition
        self.loop = asyncio.get_running_loop()
        self.journal.write("open", self.partition)

    async def async_invoke(self, value, result_future):
        assert asyncio.get_running_loop() is self.loop
        self.calls += 1
        if value["id"] == 99:
            raise ValueError("ninety-nine")
        result_future.complete([self.partition])

    async def close(self):
        assert asyncio.get_running_loop() is self.loop
        self.journal.write("close", self.partition, self.calls)


@pytest.mark.promise("resources")
def test_an_async_function_is_opened_and_closed_once_in_each_task_and_knows_its_partition(spark, journal):
    df = unordered_wait(spark.range(0, 40, 1, 4), Service(journal), returnType="int")
    rows = df.withColumn("really", sf.spark_partition_id()).collect()
    assert [row.Service for row in rows] == [row.really for row in rows]
    assert {row.really for row in rows} == {0, 1, 2, 3}
    assert sorted(journal.lines) == [f"close {i} 10" for i in range(4)] + [f"open {i}" for i in range(4)]


@pytest.mark.promise("context")
def test_the_context_of_a_plain_function(spark):
    @async_pandas_udf("partition int, attempt int, task int, remaining double, key string", timeout=50.0)
    async def told(id: int, context: RuntimeContext):
        return {
            "partition": context.partition,
            "attempt": context.attempt_number,
            "task": context.task_attempt_number,
            "remaining": context.remaining(),
            "key": context.idempotency_key,
        }

    df = spark.range(0, 8, 1, 4).select("id", sf.spark_partition_id().alias("really"), told("id").alias("t"))
    first, second = df.collect(), df.collect()
    assert [row.t.partition for row in first] == [row.really for row in first]
    assert {(row.t.attempt, row.t.task) for row in first} == {(1, 0)}
    assert all(0 < row.t.remaining <= 50 for row in first)
    assert len({row.t.key for row in first}) == 8
    assert [row.t.key for row in second] == [row.t.key for row in first], "the same in another run"
    moved = spark.range(0, 8, 1, 1).select("id", told("id").alias("t")).collect()
    assert [row.t.key for row in moved] == [row.t.key for row in first], "the same in another partition"


# --- nothing is left behind -------------------------------------------------------------------------------------------


@pytest.fixture
def untidy(journal):
    """A function that uses a socket, a thread and a task, and tidies up only the socket."""

    @contextlib.asynccontextmanager
    async def server():
        listening = socket.create_server(("127.0.0.1", 0))
        yield listening.getsockname()
        listening.close()

    @async_pandas_udf(resources=server, capacity=8)
    async def untidy(id: int, server) -> int:
        journal.write(os.getpid())
        _reader, writer = await asyncio.open_connection(*server)
        background = asyncio.create_task(asyncio.Event().wait())
        await asyncio.to_thread(time.sleep, 0.001)
        assert not background.done()
        writer.close()
        await writer.wait_closed()
        return id

    return untidy


def pids(journal):
    return {int(line) for line in journal.lines}


@pytest.mark.promise("nothing is left")
@through("column", "table function", "unordered_wait")
def test_an_exhausted_iterator_leaves_nothing_in_the_worker(spark, journal, workers, untidy, door):
    door(spark.range(0, 20, 1, 2), untidy, "id").collect()
    workers.assert_clean(pids(journal), reused=True)


@through("column", "unordered_wait")
def test_a_failure_leaves_nothing_behind(spark, journal, workers, spark_error, door):
    @async_pandas_udf
    async def fails(id: int) -> int:
        journal.write(os.getpid())
        asyncio.create_task(asyncio.Event().wait())  # noqa: RUF006
        await asyncio.to_thread(time.sleep, 0.001)
        if id == 13:
            raise ValueError("thirteen")
        return id

    assert "thirteen" in spark_error(door(spark.range(0, 20, 1, 2), fails, "id"))
    workers.assert_clean(pids(journal), reused=False)


@pytest.mark.promise("nothing is left")
def test_a_failing_task_ends_though_calls_do_not_heed_their_cancellation(spark, journal, workers, spark_error):
    @async_pandas_udf(on_error="raise")
    async def stubborn(id: int) -> int:
        journal.write(os.getpid())
        if id == 3:
            raise ValueError("three")
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return id

    assert "three" in spark_error(spark.range(0, 4, 1, 1).select(stubborn("id")))
    workers.assert_clean(pids(journal), reused=False)


@pytest.mark.promise("nothing is left")
def test_the_next_task_in_the_same_worker_starts_clean(spark, journal):
    names = ["asyncudf-loop", "asyncudf-watch"]

    @async_pandas_udf("pid bigint, threads array<string>, loop_is_fresh boolean")
    async def look(id: int):
        loop = asyncio.get_running_loop()
        fresh = not hasattr(loop, "seen")
        loop.seen = True
        journal.write(os.getpid())
        return {
            "pid": os.getpid(),
            "threads": sorted(t.name for t in threading.enumerate() if t is not threading.main_thread()),
            "loop_is_fresh": fresh,
        }

    for _ in range(3):
        found = [row[0] for row in spark.range(0, 2, 1, 2).select(look("id")).collect()]
        assert [r.threads for r in found] == [names, names]
        assert all(r.loop_is_fresh for r in found)


@pytest.mark.parametrize(("loop", "is_uvloop"), [("asyncio", False), ("auto", True)])
def test_calls_run_on_the_loop_that_was_asked_for(spark, loop, is_uvloop):
    async def runs_on_uvloop(id: int) -> bool:
        kinds = type(asyncio.get_running_loop()).__mro__
        return any(kind.__module__.split(".")[0] == "uvloop" for kind in kinds)

    assert ordered_wait(spark.range(1), runs_on_uvloop, loop=loop).first().runs_on_uvloop is is_uvloop
