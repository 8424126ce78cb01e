"""Jobs that are killed half-way and run again, against a server that counts: what is in the store is not paid twice.

The server answers some requests and then holds all others, so that the kill comes at the same point each time: when all
that was answered is in the store.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from asyncudf import ResultStore
from tests.kit.batch_services import billing
from tests.kit.drivers import HEAD, driver
from tests.kit.programs import run_program

pytestmark = pytest.mark.spark

ROWS, ANSWERED = 120, 45
PROGRAM = """
import aiohttp
from functools import partial
from tests.kit.batch_services import Findable

def enriched(spark, entry_point, url, folder):
    @async_pandas_udf(
        store=ResultStore.disk(folder + "/store"),
        capacity=10,
        resources={"session": partial(aiohttp.ClientSession, url)},
    )
    async def asked(n: int, session) -> int:
        async with session.get(f"/{n}", headers={"X-Pid": str(os.getpid())}) as response:
            return int(await response.text())

    numbers = spark.range(0, ROWS, 1, 2).withColumnRenamed("id", "n")
    numbers.createOrReplaceTempView("numbers")
    if entry_point == "column":
        return numbers.select(asked("n").alias("asked"))
    if entry_point == "chain":
        return AsyncStream(numbers).unordered_wait(asked).map(lambda row: row).to_df()
    if entry_point == "table function":
        asked.with_options(output_mode="unordered").register(spark, "asked_of")
        return spark.sql("SELECT * FROM asked_of(TABLE(numbers), 'n')")
    if entry_point == "streaming":
        numbers.write.mode("ignore").parquet(folder + "/in")
        stream = spark.readStream.schema(numbers.schema).parquet(folder + "/in")
        query = (
            unordered_wait(stream, asked).writeStream.format("parquet").option("path", folder + "/out")
            .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return spark.read.parquet(folder + "/out")
    if entry_point == "submit":
        @batch_function("bigint", parse=lambda answer: answer["value"])
        def doubled(n: int):
            return {"n": n}

        state = folder + "/state"
        submission = submit(numbers, doubled, "n", service=Findable(url, max_requests=50), state=state)
        assert submission.wait().may_be_twice == 0
        return submission.collect().select(doubled.__name__).toDF("asked")
    if entry_point == "sink":
        report = async_sink(numbers, asked)
        assert report.rows == report.written + report.reused == ROWS, report
        assert report.written == report.attempts, report  # 0 if a worker outlived its executor and sent all of them
        assert f"{ROWS:,} rows: {report.written:,} written" in str(report)
    if entry_point == "stream_sink":
        numbers.write.mode("ignore").parquet(folder + "/in")
        stream = spark.readStream.schema(numbers.schema).parquet(folder + "/in")
        writer = stream.writeStream.option("checkpointLocation", folder + "/checkpoint")
        writer.foreachBatch(stream_sink(asked)).trigger(availableNow=True).start().awaitTermination()
    return numbers.selectExpr("10 * n AS asked")  # a sink gives no rows

def ask(spark, *where):
    print(sorted(row.asked for row in enriched(spark, *where).collect()) == list(range(0, 10 * ROWS, 10)))
""".replace("ROWS", str(ROWS))


class Server:
    """Answers /n with 10 n, counts, and can hold its answers."""

    def __init__(self):
        self.calls = Counter()
        self.answered = set()
        self.pids = set()
        self.left = ANSWERED  # answers until it holds
        self.held = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._release, self._stop = asyncio.Event(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/{n}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request):
        n = int(request.match_info["n"])
        self.calls[n] += 1
        self.pids.add(int(request.headers["X-Pid"]))
        if self.left <= 0:
            self.held += 1
            await self._release.wait()
        self.left -= 1
        self.answered.add(n)
        return web.Response(text=str(10 * n))

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._release.set)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def release(self):
        """Answer everything from now on."""
        self.left = 10**9
        self._loop.call_soon_threadsafe(self._release.set)


@pytest.fixture
def server():
    with Server() as server:
        yield server


def entries(folder: Path) -> int:
    """How many results are in the store."""

    async def count():
        async with ResultStore.disk(folder / "store") as store:
            return (await store.info())["entries"]

    return asyncio.run(count()) if any(folder.glob("store/results-*")) else 0


def until(condition, what, deadline=120.0):
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        time.sleep(0.02)


def is_stopped_half_way(server, folder):
    until(lambda: server.held >= 10, "the server holds")
    until(lambda: entries(folder) == ANSWERED, "all answers are in the store")


def goes_on(server):
    """Lets the server answer everything; gives what to compare in the end."""
    before, calls = set(server.answered), Counter(server.calls)
    assert len(before) == ANSWERED
    server.release()
    return before, calls


def assert_nothing_is_paid_twice(server, before, calls):
    assert [n for n in before if server.calls[n] > calls[n]] == []
    assert set(server.calls) == set(range(ROWS))


def jvm_of(pid: int) -> psutil.Process:
    """The JVM that a Python worker belongs to; the wheel's Java is called `real-java`."""
    return next(process for process in psutil.Process(pid).parents() if process.name().endswith("java"))


def kill_worker(pid):
    os.kill(pid, signal.SIGKILL)


def kill_executor(pid):
    jvm_of(pid).kill()


@pytest.mark.parametrize(
    ("entry_point", "kill"),
    [("chain", kill_worker), pytest.param("sink", kill_executor, marks=pytest.mark.promise("resume"))],
)
def test_a_worker_or_an_executor_that_is_killed(cluster, server, tmp_path, entry_point, kill):
    """Its task runs again elsewhere, and makes no call for a row whose result had reached the store."""
    cluster.begin(f"{PROGRAM}\nask(spark, {entry_point!r}, {server.url!r}, {str(tmp_path)!r})")
    is_stopped_half_way(server, tmp_path)
    kill(next(iter(server.pids)))
    before, calls = goes_on(server)
    assert cluster.finish().strip() == "True"
    assert_nothing_is_paid_twice(server, before, calls)


def test_a_driver_that_is_killed(spark, tmp_path, alive, monkeypatch):
    """Another one runs the queries again. The first has all of them at once, each with a store of its own, and a
    monitor, whose workers end like all others; and a submission, of which a worker was killed before it.
    """
    monkeypatch.setattr("asyncudf._batches.writer.QUIET", 0.0)  # all workers of the killed driver have ended
    entry_points = ["column", "streaming", "table function", "stream_sink"]
    folders = {entry_point: tmp_path / entry_point.replace(" ", "_") for entry_point in entry_points}
    for folder in folders.values():
        folder.mkdir()
    with contextlib.ExitStack() as stack:
        servers = {entry_point: stack.enter_context(Server()) for entry_point in entry_points}
        url, jobs = stack.enter_context(billing())
        senders, gone = [], threading.Event()
        stack.callback(gone.set)

        def disturb(step, pid):
            if step == "submit after" and len(senders) < 2:
                senders.append(pid)
                os.kill(pid, signal.SIGKILL) if len(senders) == 1 else gone.wait()

        jobs.disturb, jobs.answer = disturb, lambda body, asked: {"value": 10 * body["n"]}
        queries = [(one, servers[one].url, str(folders[one])) for one in entry_points]
        queries.append(("submit", url, str(tmp_path)))
        program = f"""
spark = session(SparkSession.builder.master("local[12, 4]"))
with asyncudf.monitor(spark):
    threads = [threading.Thread(target=ask, args=(spark.newSession(), *query)) for query in {queries!r}]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
        job = stack.enter_context(driver(PROGRAM + program))
        for one in entry_points:
            is_stopped_half_way(servers[one], folders[one])
        until(lambda: len(senders) == 2, "a second job is taken")
        assert job.poll() is None
        jvm = jvm_of(next(iter(servers[entry_points[0]].pids)))
        os.killpg(job.pid, signal.SIGKILL)
        until(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, "the JVM has ended")
        workers = set.union(set(senders), *(server.pids for server in servers.values()))
        until(lambda: not any(map(alive, workers)), "the workers have ended")
        gone.set()
        before = {one: goes_on(servers[one]) for one in entry_points}
        again = tmp_path / "again.py"
        again.write_text(
            f"{HEAD}\n{PROGRAM}\nspark = session(SparkSession.builder)\n[ask(spark, *query) for query in {queries!r}]"
        )
        assert run_program(spark, again, folder=tmp_path).split() == ["True"] * len(queries)
        for one in entry_points:
            assert_nothing_is_paid_twice(servers[one], *before[one])
        assert len({one.key for one in jobs.jobs.values()}) == len(jobs.jobs) == 3
        assert set(jobs.billed.values()) == {1}
