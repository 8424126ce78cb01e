"""PAYLOAD: memory and throughput by the size of a result, from 100 bytes to 100 kB, with an instant function.

`arrow udf` is a loop over Spark's own Arrow batches that calls a plain function. Spark's Arrow batches have 1,000
rows here, not 10,000: a hundred megabytes of the largest results is enough for one batch.

HELD: the memory while the first row is slow and results of 100 kB wait for it, by `max_buffered_bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._meter import Meter
from .._spark import arrow_column, local_spark

__all__ = ("HELD", "PAYLOAD")

SIZES = (100, 1_000, 10_000, 100_000)  # bytes
TOTAL = 200_000_000  # bytes in a run
CONF = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000", "spark.python.worker.reuse": "false"}
AnyColumn = Callable[[str], Column]


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark(CONF) as session, tempfile.TemporaryDirectory() as folder:
        run = partial(query, session, settings.rows(TOTAL), Meter(folder, "payload"))
        yield [
            *(System("column", partial(run, our_column, size), at=size) for size in SIZES),
            *(System("arrow udf", partial(run, plain_column, size), "reference", at=size) for size in SIZES),
        ]


def our_column(size: int, meter: Meter) -> AnyColumn:
    @async_pandas_udf(resources={"meter": meter.resource})
    async def call(x: int, meter: Any) -> bytes:
        return b"x" * size

    return call


def plain_column(size: int, meter: Meter) -> AnyColumn:
    def call(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with meter.measure():
            for batch in batches:
                yield pa.array([b"x" * size for _ in batch.to_pylist()], pa.binary())

    return arrow_column(call, "binary")


def query(
    session: SparkSession, total: int, meter: Meter, column: Callable[[int, Meter], AnyColumn], size: int
) -> Sample:
    rows = max(1, total // size)
    df = session.range(rows, numPartitions=1).select(column(size, meter)("id").alias("x"))
    answer = df.agg(sf.sum(sf.length("x"))).first()
    assert answer is not None
    assert answer[0] == rows * size
    used = meter.read()
    return Sample({"MB/s": rows * size / 1e6 / used["seconds"], "peak MB": used["peak"]})


PAYLOAD = Case(
    "PAYLOAD",
    "memory and throughput, by the size of a result",
    systems,
    repetitions=3,
    axis="bytes in a result",
    plots=("MB/s", "peak MB"),
)


HELD_ROWS, HELD_SIZE = 8_000, 100_000
SLOW = 3.0  # seconds
LIMITS = {"no limit": None, "256 MiB": 256 * 2**20, "32 MiB": 32 * 2**20}


@contextlib.contextmanager
def behind_a_slow_row(settings: Settings) -> Iterator[list[System]]:
    with local_spark(CONF) as session, tempfile.TemporaryDirectory() as folder:
        run = partial(held, session, settings.rows(HELD_ROWS), Meter(folder, "held"))
        yield [System(name, partial(run, limit)) for name, limit in LIMITS.items()]


def held(session: SparkSession, rows: int, meter: Meter, limit: int | None) -> Sample:
    @async_pandas_udf(resources={"meter": meter.resource}, max_buffered_bytes=limit)
    async def call(x: int, meter: Any) -> bytes:
        await asyncio.sleep(0.001 if x else SLOW)
        return b"x" * HELD_SIZE

    df = ordered_wait(session.range(rows, numPartitions=1), call, "id")
    answer = df.agg(sf.sum(sf.length("call"))).first()
    assert answer is not None
    assert answer[0] == rows * HELD_SIZE
    used = meter.read()
    return Sample({"peak MB": used["peak"], "seconds": used["seconds"]})


HELD = Case(
    "HELD",
    "the peak memory while 800 MB of results wait for a slow row, by max_buffered_bytes",
    behind_a_slow_row,
    targets=(Target("peak MB", "256 MiB", against="no limit"),),
    repetitions=3,
    plots=("peak MB", "seconds"),
)
