"""P2 and P2b: an instant async function as a column on one core, beside what Spark users do today and the peers.

P2 is a whole query, planning included, that sums the column; the session and the worker are warm. `arrow udf` is
Spark's own Arrow-optimized Python UDF on the plain function, `gather` is `asyncio.gather` over each Arrow batch.

P2b is for the peers, whose start-up cannot be told from their planning: for all systems it counts the time from the
start of the first call to the arrival of the last result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

from .._calls import Calls
from .._harness import BEST_PEER, Case, Sample, Settings, System, Target
from .._peers import peer_systems
from .._spark import arrow_column, local_spark, seconds_of_column
from .._work import LOOPS

__all__ = ("P2", "P2B")

ROWS = 1_000_000


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    with local_spark() as session:
        run = partial(query, session, rows)
        yield [
            System("column", partial(run, our_column())),
            System("arrow udf", partial(run, sf.udf(lambda x: x, "bigint", useArrow=True)), "reference"),
            System("gather", partial(run, gather_column()), "reference"),
        ]


@contextlib.contextmanager
def from_first_call(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, [0.0] * settings.rows(ROWS), values=per_row)
        yield [
            System("column", calls.column),
            System("ordered_wait", partial(calls.operator, ordered_wait)),
            System("unordered_wait", partial(calls.operator, unordered_wait)),
            System("gather", calls.gather, "reference"),
            *peer_systems(settings, calls.latencies, "ordered", per_row),
        ]


# The functions are made inside others, so that they travel to the worker by value.


def our_column() -> Callable[..., Column]:
    @async_pandas_udf
    async def call(x: int) -> int:
        return x

    return call


def gather_column() -> Callable[[str], Column]:
    def gathered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def call(x: int) -> int:
            return x

        async def all_of(values: list[int]) -> list[int]:
            return await asyncio.gather(*map(call, values))

        for batch in batches:
            yield pa.array(asyncio.run(all_of(batch.to_pylist())), pa.int64())

    return arrow_column(gathered, "bigint")


def query(session: SparkSession, rows: int, column: Callable[[str], Column]) -> Sample:
    return Sample({"us/row": seconds_of_column(session, rows, column) / rows * 1e6})


def per_row(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    return {"us/row": seconds / len(latencies) * 1e6}


P2 = Case(
    "P2",
    "a whole query on one core, an instant function as a column",
    systems,
    targets=(
        Target("us/row", "column", 3.0, against="arrow udf"),
        Target("us/row", "column", 0.25, against="gather"),
    ),
    plots=("us/row",),
    loop=LOOPS,
)
P2B = Case(
    "P2b",
    "an instant function, from the start of the first call to the last result",
    from_first_call,
    targets=(
        Target("us/row", "column", against="gather"),
        Target("us/row", "ordered_wait", against="gather"),
        Target("us/row", "column", against=BEST_PEER),
    ),
    repetitions=3,
    plots=("us/row",),
    loop=LOOPS,
)
