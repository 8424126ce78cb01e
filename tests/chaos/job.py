"""The driver of a job: it reads a shape and where the services are, runs the query, and writes what came out of it.

    python -m tests.chaos.job FOLDER

FOLDER has the pickle `job`. Here go `rows-N.parquet` and `letters-N.parquet` of run N, and `outcome` when all is done.
A line "cancel" on the standard input cancels the query, and the end of the input ends this process. On Sail functions
run in this process, or in a server whose address is in the pickle.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import os
import pickle
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pandas as pd
import pyspark
from pyspark.sql import DataFrame, SparkSession

from asyncudf import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncStream,
    AsyncUDF,
    Budget,
    CircuitBreaker,
    RateLimit,
    ResultFuture,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
    async_sink,
    http,
    monitor,
    ordered_wait,
    stream_sink,
    unordered_wait,
)
from tests.chaos.checks import Beside, Run
from tests.chaos.shapes import BESIDE_ROWS, DEAREST, NULL_ROW, NULL_ROWS, Shape, price_of, result_of
from tests.kit.leftovers import leftovers
from tests.kit.sail import sail_session

__all__ = ("Place", "run_once")

CANCELLED = threading.Event()
CANCELLED_SAYS = "JOB_CANCELLED|OPERATION_CANCELED|operation not found"
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
OTHERS = re.compile(r"thread (Dummy|ThreadPoolExecutor|Thread-\d+ \(_run\))")  # Sail's, its client's, and gRPC's
UNSENT = ("timeouts", "abandoned")  # attempts that may have ended before a request left


@dataclass(frozen=True)
class Place:
    """Where a job's services and files are."""

    key: str
    url: str
    redis: str
    postgres: str
    store: str
    folder: str
    sail: str = ""

    def path(self, run: int, began: float, ns: Any, task: int, beside: str = "") -> str:
        return f"/{self.key}{beside}/{run}/{os.getpid()}.{task}/{began}/{','.join(map(str, ns))}"


@contextlib.asynccontextmanager
async def tasks(place: Place, is_on_sail: bool) -> AsyncIterator[int]:
    """Gives a task of Sail a number, and a worker of Spark, which has one task at a time, a file for its stacks."""
    if is_on_sail:
        yield secrets.randbelow(10**9) + 1
        return
    with open(f"{place.folder}/stacks-{os.getpid()}", "w") as file:
        faulthandler.register(signal.SIGUSR1, file, chain=False)
        try:
            yield 0
        finally:
            faulthandler.unregister(signal.SIGUSR1)


def function_of(shape: Shape, place: Place, run: int) -> AsyncUDF[Any, Any]:
    """The function of a job, with its options."""
    is_on_sail = shape.is_on_sail
    resources: dict[str, Callable[[], Any]] = {"task": lambda: tasks(place, is_on_sail)}
    if shape.form == "postgres":
        resources["pool"] = lambda: asyncpg.create_pool(
            place.postgres, min_size=1, max_size=10, server_settings={"application_name": "job"}
        )
    elif shape.form != "thread":
        resources["session"] = http.session(place.url)

    async def asked(session: aiohttp.ClientSession, ns: list[int], task: int) -> list[int]:
        async with session.get(place.path(run, time.time(), ns, task)) as response:
            await http.raise_for_status(response)
            return [int(one) for one in (await response.text()).split(",")]

    async def row(n: int, session: aiohttp.ClientSession, task: int) -> int:
        return (await asked(session, [n], task))[0]

    async def batch(n: pd.Series, session: aiohttp.ClientSession, task: int) -> pd.Series:
        return pd.Series(await asked(session, n.tolist(), task))

    async def bulk(n: pd.Series, session: aiohttp.ClientSession, task: int) -> list[int | Exception]:
        async with session.get(place.path(run, time.time(), n, task)) as response:
            await http.raise_for_status(response)
            return [answer_of(status, value) for status, value in await response.json()]

    async def many(n: int, session: aiohttp.ClientSession, task: int) -> AsyncIterator[int]:
        (value,) = await asked(session, [n], task)
        yield value
        yield value

    def thread(n: int, task: int) -> int:
        seconds = 0.9 * shape.options["attempt_timeout"]
        with urllib.request.urlopen(place.url + place.path(run, time.time(), [n], task), timeout=seconds) as response:
            return int(response.read())

    async def postgres(n: pd.Series, pool: asyncpg.Pool, task: int) -> pd.Series:
        ns, began = n.tolist(), time.time()  # it may wait for a connection
        note = "INSERT INTO calls VALUES ($1, $2, $3, $4, $5)"
        async with pool.acquire() as connection:
            await connection.execute(note, place.key, run, os.getpid(), began, ns)
            number = await connection.fetchval(
                "SELECT count(*) FROM calls WHERE job = $1 AND ns[1] = $2", place.key, ns[0]
            )
            answer = shape.service.answer(ns[0], number - 1)
            seconds = {"hang": 60.0}.get(answer, shape.service.seconds)
            query = (
                "SELECT 1 / 0 AS value"
                if answer == "error"
                else "SELECT 10 * n + 7 AS value FROM unnest($1::bigint[]) n"
            )
            await connection.execute(f"SELECT pg_sleep({seconds})")
            return pd.Series([one["value"] for one in await connection.fetch(query, *[ns] * (answer != "error"))])

    class Asking(AsyncFunction):
        async def open(self, context: RuntimeContext) -> None:
            self.stack = contextlib.AsyncExitStack()
            self.task = await self.stack.enter_async_context(tasks(place, is_on_sail))
            self.session = await self.stack.enter_async_context(http.session(place.url)())

        async def async_invoke(self, value: dict[str, Any], result_future: ResultFuture) -> None:
            result_future.complete(await asked(self.session, [value["n"]], self.task))

        async def close(self) -> None:
            await self.stack.aclose()

    made = {
        "row": row,
        "batch": batch,
        "bulk": bulk,
        "many": many,
        "thread": thread,
        "postgres": postgres,
        "class": Asking(),
    }
    options = options_of(shape, place)
    if shape.form != "class":
        options["resources"] = resources
    return async_pandas_udf(made[shape.form], "long", version=place.key, **options)


def answer_of(status: int, value: int) -> int | Exception:
    return value if status == 200 else http.error_for(status, retry_after=1.0 if status == 429 else None)


def cost_of(n: int, outcome: Any) -> float:
    """What the service has billed for a call, as far as its caller can tell."""
    if isinstance(outcome, http.HTTPStatusError):
        return 0.0
    return DEAREST if isinstance(outcome, BaseException) else price_of(n)


def options_of(shape: Shape, place: Place) -> dict[str, Any]:
    """The options, with objects in the place of plain values."""
    options = dict(shape.options)
    attempts = options.pop("retry")
    if attempts > 1:
        retry_on = http.is_retryable if shape.form != "postgres" else (Exception,)
        options["retry"] = RetryStrategy.fixed_delay(attempts, 0.05, retry_on=retry_on)
    if "rate_limit" in options:
        permits, burst = options["rate_limit"]
        limit = RateLimit(permits, burst=burst)
        if "learned" in options:
            start, _ = options.pop("learned")
            limit = RateLimit.from_headers("openai", start=start, at_most=permits, per="second", burst=burst)
        options["rate_limit"] = limit
    if "breaker" in options:
        options["breaker"] = CircuitBreaker(open_for=0.5, max_open=60)
    if "max_batch_weight" in options:
        options["batch_weight"] = price_of
    if "budget" in options:
        amount, options["on_spent"] = options["budget"]
        name = place.key if shape.store in ("disk", "redis") else None
        # A number would be for a whole call in bulk.
        options["budget"] = Budget(amount, "credits", lambda n: DEAREST, cost_of, name)
    if shape.connect and shape.is_limited and not shape.is_on_sail:
        options["coordinator"] = place.redis
    if shape.store == "executor":
        options["store"] = ResultStore.executor()
    elif shape.store == "disk":
        options["store"] = ResultStore.disk(place.store, max_bytes=2**24 if shape.rows < 10_000 else 2**30)
    elif shape.store == "redis":
        options["store"] = ResultStore.redis(place.redis, prefix=place.key)
    return options


def numbers(spark: SparkSession, shape: Shape, place: Place) -> DataFrame:
    if shape.streaming:
        folder = f"{place.folder}/in"
        if not os.path.exists(folder):
            os.mkdir(folder)
            for start in range(0, shape.rows, shape.rows // 3 + 1):
                ids = range(start, min(shape.rows, start + shape.rows // 3 + 1))
                frame = pd.DataFrame({"id": ids}, dtype="int64")
                asked = (frame["id"] % shape.distinct).astype("Int64").mask(frame["id"].isin(shape.null_rows))
                frame.assign(n=asked).to_parquet(f"{folder}/{start}.parquet")
        return spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1).parquet(folder)
    n = f"id % {shape.distinct}"
    if shape.null_rows:
        n = f"IF(id % {NULL_ROWS} = {NULL_ROW}, NULL, {n})"
    return spark.range(0, shape.rows, 1, shape.partitions).selectExpr("id", f"{n} AS n")


def enriched(spark: SparkSession, df: DataFrame, shape: Shape, function: AsyncUDF[Any, Any]) -> Any:
    """The rows with their results, as a DataFrame or a chain."""
    ordered = shape.is_ordered
    if shape.entry == "column":
        return df.withColumn("r", function("n"))
    if shape.entry == "sql":
        function.register(spark, "asked")
        df.createOrReplaceTempView("numbers")
        return spark.sql("SELECT id, n, asked(n) AS r FROM numbers")
    if shape.entry == "table function":
        function.register(spark, "asked_of")
        df.createOrReplaceTempView("numbers")
        return spark.sql("SELECT * FROM asked_of(TABLE(numbers), 'n')")
    if shape.entry == "operator":
        return (ordered_wait if ordered else unordered_wait)(df, function, "n", as_="r")
    stream = AsyncStream(df).filter(lambda row: row["id"] >= 0)
    stream = (stream.ordered_wait if ordered else stream.unordered_wait)(function, "n", as_="r")
    return stream.map(lambda row: row)


def as_plain(result: Any, shape: Shape) -> DataFrame:
    """id, n, value, and the type of the error."""
    df = result.to_df() if isinstance(result, AsyncStream) else result
    has_errors = shape.options["on_error"] == "capture"
    if has_errors and "r" in df.columns:
        df = df.selectExpr("id", "n", "r.value", "r.error")
    error = "error.type" if has_errors else "CAST(NULL AS string)"
    return df.toDF("id", "n", "value", *["error"] * has_errors).selectExpr("id", "n", "value", f"{error} AS error")


def run_once(spark: SparkSession, shape: Shape, place: Place, run: int) -> None:
    """Runs the query once; its rows and dead letters are in files then."""
    folder = Path(place.folder)
    function = function_of(shape, place, run)

    def save(frame: pd.DataFrame, name: str) -> None:
        frame.attrs.clear()  # Spark Connect puts figures there that no file takes
        frame.to_parquet(folder / f"{name}.parquet")

    def write(result: Any, to: str) -> None:
        letters = None
        if shape.options["on_error"] == "dead_letter":
            with result:
                rows = as_plain(result, shape).toPandas()
                letters = result.side_output(DEAD_LETTERS).selectExpr("id", "n", "error.type AS error").toPandas()
        else:
            df = as_plain(result, shape)
            rows = (df.where("value IS NULL OR value >= 0").limit(shape.limit) if shape.limit else df).toPandas()
        save(rows, f"rows-{to}")
        if letters is not None:
            save(letters, f"letters-{to}")

    def written(letters: pd.DataFrame, to: str) -> None:
        """A sink has no rows: those that are not among the dead letters are written."""
        ids = pd.Series(range(shape.rows))
        ids = ids[~ids.isin(letters["id"])]
        n = (ids % shape.distinct).astype("Int64").mask(ids.isin(shape.null_rows))
        rows = pd.DataFrame({"id": ids, "n": n, "value": n.map(result_of, na_action="ignore"), "error": None})
        save(rows, f"rows-{to}")

    def kept(letters: DataFrame, to: str) -> pd.DataFrame:
        frame = letters.selectExpr("id", "n", "error.type AS error").toPandas()
        save(frame, f"letters-{to}")
        return frame

    if shape.entry == "sink" and not shape.streaming:
        report = async_sink(numbers(spark, shape, place), function, "n")
        letters = kept(report.dead_letters, str(run))
        told = (report.failed, report.written + report.reused + report.skipped)
        if told != (len(letters), shape.rows - len(letters)):
            raise RuntimeError(f"{report} with {len(letters)} dead letters of {shape.rows} rows")
        written(letters, str(run))
        return
    if not shape.streaming:
        write(enriched(spark, numbers(spark, shape, place), shape, function), str(run))
        return
    source = numbers(spark, shape, place)
    checkpoint = f"{folder}/checkpoint-{run}"
    if shape.entry == "sink":
        sink = stream_sink(function, "n", dead_letters=lambda df, batch: kept(df, f"{run}-{batch}"))
        source.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).trigger(
            availableNow=True
        ).start().awaitTermination()
        if CANCELLED.is_set():
            raise RuntimeError("the query was cancelled")
        files = [*folder.glob(f"letters-{run}-*.parquet")]
        written(pd.concat(map(pd.read_parquet, files)) if files else pd.DataFrame({"id": []}), str(run))
        return
    if shape.options["on_error"] == "dead_letter":
        writer = source.writeStream.foreachBatch(
            lambda df, batch: write(enriched(spark, df, shape, function), f"{run}-{batch}")
        )
    else:
        writer = (
            as_plain(enriched(spark, source, shape, function), shape)
            .writeStream.format("parquet")
            .option("path", f"{folder}/sink-{run}")
        )
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    if CANCELLED.is_set():
        raise RuntimeError("the query was cancelled")
    if shape.options["on_error"] != "dead_letter":
        save(spark.read.parquet(f"{folder}/sink-{run}").toPandas(), f"rows-{run}")


def listen(spark: SparkSession, shape: Shape) -> None:
    """Cancels the query when it is told to; ends this process with the one that has started it."""
    for _ in sys.stdin:
        CANCELLED.set()
        if shape.connect or shape.is_on_sail:
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()
        if shape.is_on_sail:
            continue
        for query in spark.streams.active:
            query.stop()
    os._exit(1)


def figures(run: Any) -> dict[str, int]:
    """What the monitor has counted: rows and dead letters of tasks that count, calls of all tasks."""
    functions = [one for one in run.metrics["functions"] if not one["name"].endswith("neighbour")]
    everything = [*functions, *(one["failed_attempts"] for one in functions)]
    told = {name: sum(one[name] for one in functions) for name in ("rows", "dead_letters", "unpaid")}
    return told | {name: sum(one[name] for one in everything) for name in ("attempts", *UNSENT)}


def clean_workers(spark: SparkSession, tasks: int, seconds: float = 15.0, before: Collection[str] = ()) -> list[str]:
    """What is left over in workers and was not before, after a time for those that are still stopping."""
    end = time.monotonic() + seconds
    while True:
        try:
            left = [f"{one} in worker {pid}" for pid, all_of in leftovers(spark, tasks).items() for one in all_of]
            left = [one for one in left if one not in before and not OTHERS.match(one)]
        except Exception as error:  # a cancel that comes late is of this look
            if not re.search(CANCELLED_SAYS, str(error)) or time.monotonic() > end:
                raise
            continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    folder = Path(sys.argv[1])
    shape, place = pickle.loads((folder / "job").read_bytes())
    with session_of(shape, place) as spark:
        threading.Thread(target=listen, args=(spark, shape), daemon=True).start()
        before = clean_workers(spark, 2, 0.0) if shape.is_on_sail else ()  # the engine's own, in its process
        runs = runs_of(spark, shape, place)
        left = clean_workers(spark, 4 if shape.cluster else 2, before=before)
        if not shape.is_on_sail:
            spark.stop()
    threads = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for one in threads:
        one.join(5.0)  # Spark Connect ends its own, and does not wait for them
    of_driver = [f"thread {one.name}" for one in threads if one.is_alive()]
    left += [one for one in of_driver if not (shape.is_on_sail and OTHERS.match(one))]
    (folder / "outcome.part").write_bytes(pickle.dumps((runs, left)))
    (folder / "outcome.part").rename(folder / "outcome")


def beside(spark: SparkSession, kind: str, place: Place, run: int) -> Beside:
    """Runs another query on the server; what became of it."""

    async def neighbour(n: int, session: aiohttp.ClientSession) -> int:
        if kind == "fails" and n == BESIDE_ROWS // 2:
            raise ValueError("the neighbour fails")
        async with session.get(place.path(run, time.time(), [n], 0, f"-{kind}")) as response:
            return int(await response.text())

    options = {"resources": {"session": http.session(place.url)}, "retry": RetryStrategy.fixed_delay(5, 0.1)}
    function = async_pandas_udf(neighbour, "long", capacity=5, **options)
    rows = BESIDE_ROWS * (1 if kind in ("ends", "fails") else 100)
    df = ordered_wait(spark.range(0, rows, 1, 2), function, "id", as_="r")
    began, error, found, is_over = time.time(), "", [], threading.Event()

    def interrupt() -> None:
        while not is_over.wait(1.0):
            with contextlib.suppress(Exception):  # the server is gone
                spark.interruptTag(kind)

    try:
        if kind == "is cancelled":
            spark.addTag(kind)
            threading.Thread(target=interrupt).start()
        found = (df.limit(5) if kind == "stops" else df).collect()
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
    finally:
        is_over.set()
    return Beside(kind, run, began, time.time(), error, [(row.id, row.r) for row in found])


def runs_of(spark: SparkSession, shape: Shape, place: Place) -> list[Run]:
    runs = []
    for run in range(1, shape.runs + 1):
        with concurrent.futures.ThreadPoolExecutor(len(shape.beside) or 1) as threads:
            neighbours = [threads.submit(beside, spark, kind, place, run) for kind in shape.beside]
            runs.append(a_run(spark, shape, place, run))
            runs[-1].beside = [one.result() for one in neighbours]
        if runs[-1].error is not None:
            break
    return runs


def a_run(spark: SparkSession, shape: Shape, place: Place, run: int) -> Run:
    error = None
    began = time.time()
    with monitor(spark) as watched:
        try:
            run_once(spark, shape, place, run)
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
    return Run(run, began, time.time(), error, figures(watched))


def session_of(shape: Shape, place: Place) -> contextlib.AbstractContextManager[SparkSession]:
    if shape.is_on_sail:
        return over_sail(place) if shape.connect else sail_session()
    return over_connect(shape, place) if shape.connect else contextlib.nullcontext(session(shape, place))


@contextlib.contextmanager
def over_sail(place: Place) -> Iterator[SparkSession]:
    """A session of a server that others have started; if that dies, this process ends as one that was killed."""
    spark = at(place.sail)
    try:
        yield spark
        spark.stop()
    except BaseException:
        host, _, port = place.sail.removeprefix("sc://").rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            raise
        os._exit(1)


def at(address: str) -> SparkSession:
    """A session that gives up soon when its server is gone, and not after ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # needs grpc

    spark = SparkSession.builder.remote(address).create()
    spark.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=1000)])
    return spark


def session(shape: Shape, place: Place) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings_of(shape, place).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def over_connect(shape: Shape, place: Place) -> Iterator[SparkSession]:
    """A session of a Spark Connect server, which lives as long as the block.

    If the server dies, this process ends as soon as the query has failed, as one that was killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"spark.connect.grpc.binding.port": str(port)} | settings_of(shape, place)
    server = subprocess.Popen(
        [
            f"{os.path.dirname(pyspark.__file__)}/bin/spark-submit",
            *("--class", CONNECT_SERVER),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]
    )
    try:
        wait_for(server, port)
        yield at(f"sc://127.0.0.1:{port}")
    except BaseException:
        if server.poll() is not None:
            os._exit(1)
        raise
    finally:
        server.terminate()
        server.wait()


def wait_for(server: subprocess.Popen, port: int, seconds: float = 120.0) -> None:
    """Until the server takes connections."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the Spark Connect server does not start")
        time.sleep(0.1)


def settings_of(shape: Shape, place: Place) -> dict[str, str]:
    folder = place.folder
    return {
        "spark.master": "local-cluster[2,2,1024]" if shape.cluster else "local[2,4]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{folder}/spark",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(shape.batch),
        "spark.python.task.killTimeout": "100ms",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }


if __name__ == "__main__":
    main()
