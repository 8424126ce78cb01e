"""P25: a bulk sink, 500 rows in a call, of which the service refuses 1% once and 0.1% for good.

Beside it a loop as people write it: `gather` over the calls of an Arrow batch with a semaphore, and those rows again
that were refused. The service is in the worker: it answers after 50 ms, with a status for each row. There is no store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from asyncudf import RetryStrategy, RuntimeContext, async_sink, http

from .._harness import Case, Sample, Settings, System, Target
from .._spark import local_spark

__all__ = ("P25",)

ROWS = 1_000_000
BATCH, IN_FLIGHT, SECONDS, ATTEMPTS = 500, 20, 0.05, 4
CREATED, REFUSED, BAD = 201, 503, 400


async def statuses_of(ids: Sequence[int], attempt: int) -> list[int]:
    """What the service answers for these rows: each row is refused, or bad, by its number."""
    await asyncio.sleep(SECONDS)
    return [BAD if n % 1000 == 7 else REFUSED if n % 100 == 3 and attempt == 1 else CREATED for n in ids]


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        rows = settings.rows(ROWS)
        df = session.range(0, rows, 1, 1).cache()
        df.count()
        yield [
            System("async_sink", partial(sink, df, rows)),
            System("gather loop", partial(loop, df, rows)),
        ]


async def bulk(n: pa.Array, context: RuntimeContext) -> list[Exception | None]:
    found = await statuses_of(n.to_pylist(), context.attempt_number)
    return [None if status == CREATED else http.error_for(status) for status in found]


def sink(df: DataFrame, rows: int) -> Sample:
    begun = time.time()
    report = async_sink(
        df, bulk, "id", batch_size=BATCH, capacity=IN_FLIGHT, max_failures=None,
        retry=RetryStrategy.fixed_delay(ATTEMPTS, 0.05, retry_on=http.is_retryable),
    )  # fmt: skip
    assert (report.written, report.failed) == (rows - bad_of(rows), bad_of(rows))
    return Sample({"rows/s": rows / (time.time() - begun)})


def loop(df: DataFrame, rows: int) -> Sample:
    begun = time.time()
    failed = df.mapInArrow(_write, "id long").count()
    assert failed == bad_of(rows)
    return Sample({"rows/s": rows / (time.time() - begun)})


def bad_of(rows: int) -> int:
    return len(range(7, rows, 1000))


def _write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    async def call(ids: list[int], free: asyncio.Semaphore) -> list[int]:
        bad: list[int] = []
        for attempt in range(1, ATTEMPTS + 1):
            async with free:
                found = await statuses_of(ids, attempt)
            bad += [n for n, status in zip(ids, found, strict=True) if status == BAD]
            ids = [n for n, status in zip(ids, found, strict=True) if status == REFUSED]
            if not ids:
                break
            await asyncio.sleep(0.05)
        return bad + ids

    async def all_of(ids: list[int]) -> list[list[int]]:
        free = asyncio.Semaphore(IN_FLIGHT)
        return await asyncio.gather(*(call(ids[at : at + BATCH], free) for at in range(0, len(ids), BATCH)))

    with asyncio.Runner() as runner:
        for batch in batches:
            failed = runner.run(all_of(batch.column(0).to_pylist()))
            yield pa.record_batch([pa.array([n for part in failed for n in part], pa.int64())], ["id"])


P25 = Case(
    "P25",
    "a bulk sink: a million rows in calls of 500, 1% refused once, 0.1% for good",
    systems,
    (Target("rows/s", "async_sink", least=0.95, against="gather loop"),),
    minutes=2.0,
)
