"""P7, P8, WAITING, HELD and P24: memory, growth and the garbage collector, inside the Python worker.

P7 and P8 have a table of half a million rows and one of ten million: the peak of the worker, and its CPU time for
a row. One call in a hundred takes a millisecond, the others return at once: so the queue is in use and the worker is
busy all the time. `plain loop` calls a plain function over Spark's Arrow batches. Each task has a worker of its own.

WAITING has a first row that ends when no other call has begun for half a second: then the rows behind it take all that
`max_buffered_bytes` allows. What is told is how many rows wait, and how much the worker has grown for them.

HELD has a slow first row, and results of 100 kB that wait for it, by `max_buffered_bytes`.

P24 has a thousand calls of 20 ms in flight, and one call in a thousand takes a second: in order thousands of finished
rows wait behind it. Their results are structs, which Python's collector looks at. What is told is the share of its CPU
time in that of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._meter import Meter, resident
from .._spark import local_spark

__all__ = ("HELD", "HELD_ROWS", "HELD_SIZE", "LIMITS", "P7", "P24", "WAITING")

FRESH = {"spark.python.worker.reuse": "false"}
SMALL_BATCHES = FRESH | {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
FEW, MANY = 500_000, 10_000_000  # rows; the start of a task is little beside the first
HELD_ROWS, HELD_SIZE = 8_000, 100_000  # results and bytes in each
HEAD = 3.0  # seconds that the first row takes
LIMITS = {"no limit": None, "256 MiB": 256 * 2**20, "32 MiB": 32 * 2**20}
LIMIT_MB = 1.25 * 268.4  # the default of max_buffered_bytes; a quarter more for three input batches and the allocator
QUIET = 0.5  # seconds without a call, after which no more is expected
# Of what a row has beside its number: the bytes of a text that is passed through, and of its result, and how many rows
# are enough to fill the queue.
WAITING_ROWS = {
    "numbers": (0, 0, 900_000),
    "100 bytes passed through": (100, 0, 900_000),
    "10 kB passed through": (10_000, 0, 60_000),
    "results of 100 bytes": (0, 100, 900_000),
    "results of 10 kB": (0, 10_000, 60_000),
}
COLLECTED, IN_FLIGHT, EACH = 100_000, 1_000, 1_000  # rows, calls, and which of the rows are slow
Wait = Callable[..., DataFrame]


@contextlib.contextmanager
def growth(settings: Settings) -> Iterator[list[System]]:
    with local_spark(FRESH) as session, tempfile.TemporaryDirectory() as folder:
        meter = Meter(folder, "task")
        ways: dict[str, Callable[..., Sample]] = {"ordered_wait": task, "plain loop": plain_loop}
        yield [
            System(f"{name}, {label} rows", partial(way, session, settings.rows(rows), meter))
            for name, way in ways.items()
            for label, rows in (("few", FEW), ("many", MANY))
        ]


def task(session: SparkSession, rows: int, meter: Meter) -> Sample:
    @async_pandas_udf(resources={"meter": meter.resource})
    async def call(x: int, meter: Any) -> int:
        if x % 100 == 0:
            await asyncio.sleep(0.001)
        return x

    return used_by(ordered_wait(session.range(rows, numPartitions=1), call, "id"), rows, meter)


def plain_loop(session: SparkSession, rows: int, meter: Meter) -> Sample:
    def call(x: int) -> int:
        return x

    def every(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with meter.measure():
            for batch in batches:
                results = [call(x) for x in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(results)], ["id", "call"])

    return used_by(session.range(rows, numPartitions=1).mapInArrow(every, "id bigint, call bigint"), rows, meter)


def used_by(df: DataFrame, rows: int, meter: Meter) -> Sample:
    done = df.agg({"call": "count"}).first()
    assert done is not None
    assert done[0] == rows
    used = meter.read()
    return Sample({"peak MB": used["peak"], "CPU us/row": used["cpu"] / rows * 1e6})


@contextlib.contextmanager
def until_the_queue_is_full(settings: Settings) -> Iterator[list[System]]:
    with local_spark(SMALL_BATCHES) as session, tempfile.TemporaryDirectory() as folder:
        run = partial(full, session, Meter(folder, "full"))
        yield [
            System(name, partial(run, passed, result, rows)) for name, (passed, result, rows) in WAITING_ROWS.items()
        ]


def full(session: SparkSession, meter: Meter, passed: int, result: int, rows: int) -> Sample:
    begun = 0

    async def call(x: int, meter: dict[str, float]) -> Any:
        nonlocal begun
        if x == 0:
            before, seen = resident(), -1
            while seen < begun:
                seen = begun
                await asyncio.sleep(QUIET)
            meter |= {"rows": begun, "grown": resident() - before}
        else:
            begun += 1
            await asyncio.sleep(0)
        return "x" * result if result else x

    df = session.range(rows, numPartitions=1)
    if passed:
        df = df.withColumn("text", sf.repeat(sf.lit("x"), passed))
    udf = async_pandas_udf(call, "string" if result else "bigint", resources={"meter": meter.resource})
    answer = ordered_wait(df, udf, "id").agg({"call": "count"}).first()
    assert answer is not None
    assert answer[0] == rows
    used = meter.read()
    return Sample({"rows that wait": used["rows"], "MB for them": used["grown"], "peak MB": used["peak"]})


@contextlib.contextmanager
def behind_a_slow_row(settings: Settings) -> Iterator[list[System]]:
    with local_spark(SMALL_BATCHES) as session, tempfile.TemporaryDirectory() as folder:
        run = partial(held, session, settings.rows(HELD_ROWS), Meter(folder, "held"))
        yield [System(name, partial(run, limit)) for name, limit in LIMITS.items()]


def held(session: SparkSession, rows: int, meter: Meter, limit: int | None) -> Sample:
    @async_pandas_udf(resources={"meter": meter.resource}, max_buffered_bytes=limit)
    async def call(x: int, meter: Any) -> bytes:
        await asyncio.sleep(0.001 if x else HEAD)
        return b"x" * HELD_SIZE

    df = ordered_wait(session.range(rows, numPartitions=1), call, "id")
    answer = df.agg(sf.sum(sf.length("call"))).first()
    assert answer is not None
    assert answer[0] == rows * HELD_SIZE
    used = meter.read()
    return Sample({"peak MB": used["peak"], "seconds": used["seconds"]})


@contextlib.contextmanager
def collected(settings: Settings) -> Iterator[list[System]]:
    with local_spark(FRESH) as session, tempfile.TemporaryDirectory() as folder:
        run = partial(waiting, session, settings.rows(COLLECTED), Meter(folder, "waiting"))
        yield [
            System("ordered_wait", partial(run, ordered_wait)),
            System("unordered_wait", partial(run, unordered_wait)),
        ]


def waiting(session: SparkSession, rows: int, meter: Meter, wait: Wait) -> Sample:
    @async_pandas_udf("number bigint, text string", capacity=IN_FLIGHT, resources={"meter": meter.resource})
    async def call(x: int, meter: Any) -> dict[str, Any]:
        await asyncio.sleep(0.02 if x % EACH else 1.0)
        return {"number": x, "text": str(x)}

    answer = wait(session.range(rows, numPartitions=1), call, "id").agg({"number": "count"}).first()
    assert answer is not None
    assert answer[0] == rows
    used = meter.read()
    return Sample({"% of the CPU": 100 * used["collector"] / used["cpu"], "CPU us/row": used["cpu"] / rows * 1e6})


P7 = Case(
    "P7",
    f"a worker with {FEW:,} rows, and with {MANY:,}",
    growth,
    (
        Target("peak MB", "ordered_wait, many rows", most=1.1, against="ordered_wait, few rows"),
        Target("CPU us/row", "ordered_wait, many rows", most=1.1, against="ordered_wait, few rows", id="P8"),
    ),
    minutes=3.5,
)
WAITING = Case(
    "WAITING",
    "rows that wait for a slow row until they take the default of max_buffered_bytes, 256 MiB (268 MB)",
    until_the_queue_is_full,
    tuple(Target("MB for them", name, most=LIMIT_MB) for name in WAITING_ROWS),
    minutes=3.0,
)
HELD = Case(
    "HELD",
    "the peak memory while 800 MB of results wait for a slow row, by max_buffered_bytes",
    behind_a_slow_row,
    minutes=2.1,
)
P24 = Case(
    "P24",
    "Python's garbage collector in a worker in which thousands of rows wait",
    collected,
    (Target("% of the CPU", "ordered_wait", most=5.0), Target("% of the CPU", "unordered_wait", most=5.0)),
    minutes=1.1,
)
