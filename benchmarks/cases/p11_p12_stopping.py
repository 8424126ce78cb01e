"""P11 and P12: how soon the calls end that nobody waits for any more, and how soon the first rows are there.

P11 has calls of 50 ms to a server that counts them, 20 in flight in each of 2 tasks. It counts those that begin after
`cancelAllJobs()`, the seconds until the last of them, and all calls of a `filter(...).limit(5)`. P12 is a
`filter(...).limit(5)` over a million rows, in seconds more than over 100 rows. The bounds hold for the worst round.
`buffered` is our column without its connection to Spark: results leave when Spark's buffer is full, and nobody looks
whether Spark still reads.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import aiohttp
from pyspark.sql import DataFrame, SparkSession

from asyncudf import AsyncStream, AsyncUDF, async_pandas_udf, ordered_wait, unordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._http_server import http_server
from .._spark import local_spark

__all__ = ("P11", "P12")

TASKS = 2
CAPACITY = 20
LATENCY = 0.05
ROWS = 8_000
FEWEST = 1_000  # rows: fewer are done before a cancel
MANY, FEW = 1_000_000, 100
SILENCE = 5.0  # seconds without a call, after which none is expected; Spark's monitor kills a worker after 4
EntryPoint = Callable[[DataFrame, AsyncUDF[..., Any]], DataFrame]


def column(df: DataFrame, call: AsyncUDF[..., Any]) -> DataFrame:
    return df.select("id", call("id").alias("call"))


def sql(df: DataFrame, call: AsyncUDF[..., Any]) -> DataFrame:
    df.createOrReplaceTempView("stopping")
    call.register(df.sparkSession, "call_in_sql")
    return df.sparkSession.sql("SELECT id, call_in_sql(id) AS call FROM stopping")


def stream(df: DataFrame, call: AsyncUDF[..., Any]) -> DataFrame:
    return AsyncStream(df).filter(lambda row: row["id"] >= 0).unordered_wait(call).to_df()


def table_function(df: DataFrame, call: AsyncUDF[..., Any]) -> DataFrame:
    df.createOrReplaceTempView("stopping")
    call.with_options(output_mode="unordered").register(df.sparkSession, "call_of_table")
    return df.sparkSession.sql("SELECT * FROM call_of_table(TABLE(stopping))")


ENTRY_POINTS: dict[str, EntryPoint] = {
    "column": column,
    "SQL function": sql,
    "ordered_wait": ordered_wait,
    "unordered_wait": unordered_wait,
    "AsyncStream": stream,
    "table function": table_function,
}


@contextlib.contextmanager
def systems(measure: Callable[..., Sample], settings: Settings) -> Iterator[list[System]]:
    # A worker for each task, so that the one of `buffered` serves nobody else.
    with local_spark({"spark.python.worker.reuse": "false"}, TASKS) as session, http_server(LATENCY) as url:
        run = partial(measure, session, Service(url), settings)
        yield [
            *(System(name, partial(run, entry_point, client(url))) for name, entry_point in ENTRY_POINTS.items()),
            System("buffered", partial(run, column, client(url, Buffered())), "reference"),
        ]


def client(url: str, *extras: Any) -> AsyncUDF[..., Any]:
    @contextlib.asynccontextmanager
    async def session() -> AsyncIterator[aiohttp.ClientSession]:
        assert extras is not None  # they travel with the function
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as opened:
            yield opened

    @async_pandas_udf(capacity=CAPACITY, resources=session)
    async def call(id: int, session: aiohttp.ClientSession) -> int:  # noqa: A002 - as Spark calls the column
        async with session.get(url) as response:
            await response.read()
        return id

    return call


class Buffered:
    """Takes the connection away from a worker that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        def hide() -> None:
            from asyncudf._spark import connection

            connection._stream_to_spark = lambda: None

        return hide, ()


class Service:
    """What the server has counted."""

    def __init__(self, url: str) -> None:
        self._url = url

    def calls(self) -> tuple[int, float]:
        """How many have begun, and when the last one did."""
        with urllib.request.urlopen(f"{self._url}calls") as answer:
            found = json.load(answer)
        return found["calls"], found["last"]

    def at_rest(self) -> tuple[int, float]:
        """The same, when no more calls are to be expected."""
        while time.time() - (found := self.calls())[1] < SILENCE:
            time.sleep(0.1)
        return found


def stopping(session: SparkSession, service: Service, settings: Settings, entry_point: EntryPoint, call: Any) -> Sample:
    rows = max(FEWEST, settings.rows(ROWS))
    df = entry_point(session.range(0, rows, 1, TASKS), call)
    return Sample({**after_a_cancel(session, service, df), **of_a_limit(service, df)})


def after_a_cancel(session: SparkSession, service: Service, df: DataFrame) -> dict[str, float]:
    before, _ = service.at_rest()
    job = threading.Thread(target=partial(cancelled, df))
    job.start()
    while job.is_alive() and service.calls()[0] - before < 10 * CAPACITY:
        time.sleep(0.01)
    session.sparkContext.cancelAllJobs()
    cancelled_at, (calls, _) = time.time(), service.calls()
    job.join()
    total, last = service.at_rest()
    return {"calls after a cancel": total - calls, "s after a cancel": max(0.0, last - cancelled_at)}


def cancelled(df: DataFrame) -> None:
    with contextlib.suppress(Exception):  # that the job was cancelled
        df.write.format("noop").mode("overwrite").save()


def of_a_limit(service: Service, df: DataFrame) -> dict[str, float]:
    before, _ = service.at_rest()
    assert len(five(df)) == 5
    return {"calls of a LIMIT": service.at_rest()[0] - before}


def five(df: DataFrame) -> list[Any]:
    return df.where("call >= 0").limit(5).collect()


def first_rows(
    session: SparkSession, service: Service, settings: Settings, entry_point: EntryPoint, call: Any
) -> Sample:
    def seconds(rows: int) -> float:
        df = entry_point(session.range(0, rows, 1, TASKS), call)
        start = time.perf_counter()
        assert len(five(df)) == 5
        return time.perf_counter() - start

    few, many = seconds(FEW), seconds(settings.rows(MANY))
    return Sample({"s": many, "s more than 100 rows": max(0.0, many - few)})


def targets(bounds: dict[str, float]) -> tuple[Target, ...]:
    return tuple(
        Target(quantity, entry_point, bound, worst=True)
        for quantity, bound in bounds.items()
        for entry_point in ENTRY_POINTS
    )


P11 = Case(
    "P11",
    "calls of 50 ms, 20 in flight in each of 2 tasks, that nobody waits for any more",
    partial(systems, stopping),
    targets({"calls after a cancel": 2 * CAPACITY * TASKS, "s after a cancel": 0.5, "calls of a LIMIT": 200}),
    repetitions=3,
)
P12 = Case(
    "P12",
    "the first five rows of a million calls of 50 ms",
    partial(systems, first_rows),
    targets({"s more than 100 rows": 1.5}),
    repetitions=3,
)
