"""P27 to P29: what a worker of the operator form costs beside that of a plain `mapInArrow`, before it does anything.

Each task has a worker of its own, which Spark's daemon forks. The plain one passes batches on, or makes one call on a
loop of its own. What is told is the memory that is resident when the last row has come, the CPU time of what is
imported, and how long the first call takes to begin: from when Spark makes its row, for a worker that has just begun.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import uvloop
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait

from .._harness import Case, Sample, Settings, System, Target
from .._meter import resident
from .._spark import local_spark, noop

__all__ = ("P27", "P28", "P29")

FRESH = {"spark.python.worker.reuse": "false"}
ROWS = 10_000
OPERATOR = "asyncudf._spark.chain_task"  # what a worker unpickles for an operator


@contextlib.contextmanager
def with_byte_code() -> Iterator[SparkSession]:
    # Where Python writes no byte code, as in a container, it would compile this package anew, and no other.
    with tempfile.TemporaryDirectory() as cache:
        writes = {"spark.executorEnv.PYTHONPYCACHEPREFIX": cache, "spark.executorEnv.PYTHONDONTWRITEBYTECODE": ""}
        with local_spark(FRESH | writes) as session:
            yield session


@contextlib.contextmanager
def memory(settings: Settings) -> Iterator[list[System]]:
    with with_byte_code() as session, tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "resident")
        forms = {"operator": partial(operator, told), "plain mapInArrow": partial(plain, told)}
        yield [System(name, partial(held, session, told, form)) for name, form in forms.items()]


def held(session: SparkSession, told: Path, form: Callable[[DataFrame], DataFrame]) -> Sample:
    noop(form(session.range(ROWS, numPartitions=1)))
    return Sample({"MB": float(told.read_text())})


def operator(told: Path, df: DataFrame) -> DataFrame:
    def tell() -> None:
        told.write_text(str(resident()))

    @contextlib.asynccontextmanager
    async def until_the_end() -> AsyncIterator[None]:
        yield
        tell()

    @async_pandas_udf("x double, y string", resources={"end": until_the_end})
    async def weather(row: int, end: None) -> dict[str, object]:
        return {"x": row / 2, "y": "cloudy"}

    return ordered_wait(df, weather, "id")


def plain(told: Path, df: DataFrame) -> DataFrame:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        told.write_text(str(resident()))  # as the operator: when Arrow has written what Spark gets

    return df.mapInArrow(same, df.schema)


@contextlib.contextmanager
def imports(settings: Settings) -> Iterator[list[System]]:
    with with_byte_code() as session:
        modules = {"operator": OPERATOR, "pandas": "pandas"}
        yield [System(name, partial(imported, session, module)) for name, module in modules.items()]


def imported(session: SparkSession, module: str) -> Sample:
    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start = time.process_time()
        import_module(module)
        taken = array.array("d", [time.process_time() - start])
        for _ in batches:
            column = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(taken)])
            yield pa.RecordBatch.from_arrays([column], ["s"])

    [row] = session.range(1, numPartitions=1).mapInArrow(load, "s double").collect()
    return Sample({"ms of CPU": row.s * 1e3})


@contextlib.contextmanager
def starts(settings: Settings) -> Iterator[list[System]]:
    with with_byte_code() as session:
        forms = {"operator": operator_of_one_call, "plain mapInArrow": plain_of_one_call}
        yield [System(name, partial(started, session, form)) for name, form in forms.items()]


def started(session: SparkSession, form: Callable[[DataFrame], DataFrame]) -> Sample:
    made = sf.expr("cast(reflect('java.lang.System', 'nanoTime') AS bigint) AS made")  # on Linux the monotonic clock
    row = form(session.range(1, numPartitions=1).select(made)).first()
    assert row is not None
    return Sample({"ms": (row.called - row.made) / 1e6, "ms of CPU": row.used * 1e3})


def operator_of_one_call(df: DataFrame) -> DataFrame:
    @async_pandas_udf("called bigint, used double")
    async def call(made: int) -> dict[str, object]:
        return {"called": time.monotonic_ns(), "used": time.process_time()}

    return ordered_wait(df, call, "made")


def plain_of_one_call(df: DataFrame) -> DataFrame:
    async def call(made: int) -> dict[str, object]:
        return {"made": made, "called": time.monotonic_ns(), "used": time.process_time()}

    def calls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for batch in batches:
                yield pa.RecordBatch.from_pylist([runner.run(call(made)) for made in batch.column("made").to_pylist()])

    return df.mapInArrow(calls, "made bigint, called bigint, used double")


P27 = Case(
    "P27",
    "memory of a worker of the operator form",
    memory,
    (Target("MB", "operator", most=1.12, against="plain mapInArrow"),),
    minutes=0.5,
)
P28 = Case(
    "P28",
    "import in a worker of the operator form",
    imports,
    (Target("ms of CPU", "operator", most=0.68, against="pandas"),),
    minutes=0.5,
)
P29 = Case(
    "P29",
    "from the first row to its call, in a worker of the operator form",
    starts,
    tuple(Target(time, "operator", most=1.5, against="plain mapInArrow") for time in ("ms", "ms of CPU")),
    minutes=0.5,
)
