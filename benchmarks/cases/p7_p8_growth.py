"""P7 and P8: memory and time per row, from ten thousand rows to ten million.

One call in a hundred takes a millisecond, the others return at once: so the queue is in use, and the engine is busy
all the time. All figures are the worker's own, from the opening of the task to its close. For P7 every task has a
Python worker of its own, as the peak is that of a process; for P8 the worker is warm.

P8 has two times: the worker's CPU time, and by the clock, which also counts its waiting for Spark. A processor that has
had a rest is faster for some seconds, so a small table is run up to twenty times in a row, and its mean is taken.
`plain loop` is a loop over Spark's Arrow batches that calls a plain function.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._meter import Meter
from .._spark import local_spark
from .._work import CAPACITY

__all__ = ("P7", "P8")

LONG = 3_000_000  # rows that keep the processor busy for a while
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
WAITS = {"ordered_wait": ordered_wait, "unordered_wait": unordered_wait}


@contextlib.contextmanager
def systems(settings: Settings, *, reuse: bool) -> Iterator[list[System]]:
    conf = {"spark.python.worker.reuse": str(reuse).lower()}
    with local_spark(conf) as session, tempfile.TemporaryDirectory() as folder:
        meter = Meter(folder, "task")
        sizes = settings.sizes(SIZES)
        yield [
            *(
                System(name, partial(task, session, size, wait, meter, reuse), at=size)
                for name, wait in WAITS.items()
                for size in sizes
            ),
            *(
                System("plain loop", partial(plain_loop, session, size, meter, reuse), "reference", size)
                for size in sizes
            ),
        ]


def task(session: SparkSession, rows: int, wait: Callable[..., DataFrame], meter: Meter, warm: bool) -> Sample:
    @async_pandas_udf(capacity=CAPACITY, resources={"meter": meter.resource})
    async def call(x: int, meter: Any) -> int:
        if x % 100 == 0:
            await asyncio.sleep(0.001)
        return x

    return used_by(wait(session.range(rows, numPartitions=1), call, "id"), rows, meter, warm)


def plain_loop(session: SparkSession, rows: int, meter: Meter, warm: bool) -> Sample:
    def call(x: int) -> int:
        return x

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with meter.measure():
            for batch in batches:
                results = [call(x) for x in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(results)], ["id", "call"])

    df = session.range(rows, numPartitions=1).mapInArrow(run, "id bigint, call bigint")
    return used_by(df, rows, meter, warm)


def used_by(df: DataFrame, rows: int, meter: Meter, warm: bool) -> Sample:
    used = []
    for _ in range(max(1, min(20, LONG // rows)) if warm else 1):
        done = df.agg({"call": "count"}).first()
        assert done is not None
        assert done[0] == rows
        used.append(meter.read())
    if not warm:
        return Sample({"peak MB": used[0]["peak"]})
    wall, cpu = (statistics.mean(run[name] for run in used) / rows * 1e6 for name in ("seconds", "cpu"))
    return Sample({"us/row": wall, "CPU us/row": cpu})


def growth(quantity: str, *, worst: bool = False) -> tuple[Target, ...]:
    """Ten million rows need at most a tenth more than a hundred thousand."""
    return tuple(Target(quantity, f"{name} at 10,000,000", 1.1, f"{name} at 100,000", worst=worst) for name in WAITS)


P7 = Case(
    "P7",
    "the peak memory of the Python worker, by rows",
    partial(systems, reuse=False),
    growth("peak MB", worst=True),
    repetitions=2,  # a peak varies little
    axis="rows",
    plots=("peak MB",),
)
P8 = Case(
    "P8",
    "the time per row, by rows",
    partial(systems, reuse=True),
    (*growth("us/row"), *growth("CPU us/row")),
    repetitions=3,
    axis="rows",
    plots=("us/row", "CPU us/row"),
)
