"""Jobs that are killed half-way and run again, against a server that counts: what is in the store is not paid twice.

The server answers some requests and then holds all others, so that the kill comes at the same point each time: when all
that was answered is in the store.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from asyncudf import ResultStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS, ANSWERED = 120, 45
PROGRAM = """
import asyncio, os, sys
import aiohttp
from pyspark.sql import SparkSession
from asyncudf import AsyncStream, ResultStore, async_pandas_udf, ordered_wait, unordered_wait
from functools import partial

url, folder, entry_point, master = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)

@async_pandas_udf(
    store=ResultStore.disk(folder + "/store"),
    capacity=10,
    resources={"session": partial(aiohttp.ClientSession, url)},
)
async def asked(n: int, session) -> int:
    async with session.get(f"/{n}", headers={"X-Pid": str(os.getpid())}) as response:
        return int(await response.text())

numbers = spark.range(0, ROWS, 1, 2).withColumnRenamed("id", "n")
if entry_point == "column":
    found = numbers.select(asked("n").alias("asked"))
elif entry_point == "ordered_wait":
    found = ordered_wait(numbers, asked)
elif entry_point == "chain":
    found = AsyncStream(numbers).unordered_wait(asked).map(lambda row: row).to_df()
elif entry_point == "sql":
    asked.register(spark, "asked")
    numbers.createOrReplaceTempView("numbers")
    found = spark.sql("SELECT asked(n) AS asked FROM numbers")
elif entry_point == "table function":
    asked.with_options(output_mode="unordered").register(spark, "asked_of")
    numbers.createOrReplaceTempView("numbers")
    found = spark.sql("SELECT * FROM asked_of(TABLE(numbers), 'n')")
elif entry_point == "streaming":
    numbers.write.mode("ignore").parquet(folder + "/in")
    stream = spark.readStream.schema(numbers.schema).parquet(folder + "/in")
    query = (
        unordered_wait(stream, asked).writeStream.format("parquet").option("path", folder + "/out")
        .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    found = spark.read.parquet(folder + "/out")
print(sorted(row.asked for row in found.collect()) == list(range(0, 10 * ROWS, 10)), flush=True)
spark.stop()
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


def start(server, folder, entry_point, master):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, server.url, str(folder), entry_point, master]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def jvm_of(pid: int) -> psutil.Process:
    """The JVM that a Python worker belongs to."""
    return next(process for process in psutil.Process(pid).parents() if process.name().startswith("java"))


def kill_worker(server, job):
    os.kill(next(iter(server.pids)), signal.SIGKILL)


def kill_executor(server, job):
    jvm_of(next(iter(server.pids))).kill()


def kill_driver(server, job):
    workers = [jvm_of(pid) for pid in tuple(server.pids)]  # the server goes on
    job.kill()
    for jvm in {jvm.pid: jvm for jvm in workers}.values():
        jvm.kill()


@pytest.mark.parametrize(
    ("entry_point", "kill", "master"),
    [
        ("column", kill_driver, "local[2]"),
        ("streaming", kill_driver, "local[2]"),
        ("table function", kill_driver, "local[2]"),
        ("ordered_wait", kill_worker, "local[2,4]"),
        ("chain", kill_worker, "local[2,4]"),
        ("sql", kill_executor, "local-cluster[2,1,1024]"),
    ],
)
def test_what_has_reached_the_store_is_not_called_again(server, tmp_path, entry_point, kill, master):
    job = start(server, tmp_path, entry_point, master)
    try:
        until(lambda: server.held >= 10 or job.poll() is not None, "the server holds")
        until(lambda: entries(tmp_path) == ANSWERED or job.poll() is not None, "all answers are in the store")
        assert job.poll() is None, job.communicate()
        kill(server, job)
        before, calls = set(server.answered), Counter(server.calls)
        assert len(before) == ANSWERED
        server.release()
        if kill is kill_driver:
            job.communicate(timeout=60)
            assert job.returncode == -signal.SIGKILL
            job = start(server, tmp_path, entry_point, master)
        out, err = job.communicate(timeout=180)
    finally:
        job.kill()
        job.communicate()
    assert out.strip() == "True", err
    assert [n for n in before if server.calls[n] > calls[n]] == []
    assert set(server.calls) == set(range(ROWS))
