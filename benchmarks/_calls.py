"""Calls of given latencies, made in several ways, each timed from the start of the first to the last result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import AsyncUDF, async_pandas_udf

from ._harness import Sample
from ._peers import TIMEOUT, Values
from ._spark import arrow_column, batches_of, configured, seconds_of_calls, sized
from ._work import BATCH, CAPACITY, Loop, bare, rates, run, settle_collector
from .peers._requests import Service

__all__ = ("Calls", "gathered")


class Calls:
    """A table of latencies in Spark's memory, and the ways to make its calls, `capacity` at a time.

    A call of latency 0 returns at once, without giving way to the event loop.
    """

    def __init__(
        self,
        session: SparkSession,
        latencies: Sequence[float],
        capacity: int = CAPACITY,
        values: Values | None = None,
        batch_rows: int = BATCH,
        note: str = "",
    ) -> None:
        self.latencies = latencies
        self._note = note
        self._capacity = capacity
        self._values = values or partial(rates, capacity=capacity)
        self._session = session
        self._batch_rows = batch_rows
        with configured(session, batches_of(batch_rows)):
            table = session.createDataFrame(pa.table({"latency": latencies})).coalesce(1)
            # Spark would take a plan that it has cached before, with its batches: this one is like no other.
            self._table = table.where(sf.col("latency") > -batch_rows).cache()
            self._table.count()

    def fifth(self) -> Calls:
        """The first fifth of the calls, for what is slow."""
        few = self.latencies[: max(1, len(self.latencies) // 5)]
        return Calls(
            self._session, few, self._capacity, self._values, note=f"{len(few):,} calls, a fifth of the others'"
        )

    def in_batches_of(self, rows: int) -> Calls:
        """The same calls; Spark hands over so many rows at once."""
        return Calls(self._session, self.latencies, self._capacity, self._values, rows)

    def bare(self, loop: Loop = asyncio.new_event_loop) -> Sample:
        """In a plain asyncio program."""

        async def call(latency: float) -> float:
            start = time.time()
            if latency:
                await asyncio.sleep(latency)
            return start

        settle_collector()
        return self._sample(run(bare(call, self.latencies, self._capacity), loop))

    def column(self) -> Sample:
        """As a column of an async function."""
        return self._through(lambda df: df.select(self._function()("latency").alias("call")))

    def operator(self, wait: Callable[..., DataFrame], **options: Any) -> Sample:
        """Through `ordered_wait` or `unordered_wait`."""
        return self._through(lambda df: wait(df, self._function(), "latency", **options))

    def gather(self) -> Sample:
        """With a gather for each Arrow batch, under a semaphore."""
        return self._through(lambda df: df.select(gathered(self._capacity, self._batch_rows)("latency").alias("call")))

    def _function(self) -> AsyncUDF[[float], Any]:
        @async_pandas_udf(capacity=self._capacity, timeout=TIMEOUT)
        async def call(latency: float) -> float:
            start = time.time()
            if latency:
                await asyncio.sleep(latency)
            return start

        return call

    def _through(self, plan: Callable[[DataFrame], DataFrame]) -> Sample:
        return self._sample(seconds_of_calls(plan(self._table), len(self.latencies)))

    def _sample(self, seconds: float) -> Sample:
        return Sample(self._values(self.latencies, seconds), note=self._note)


def gathered(capacity: int, batch_rows: int, url: str = "") -> Callable[[str], Column]:
    """`asyncio.gather` over each Arrow batch, under a semaphore; the batches must have so many rows.

    A call waits, or makes a request to the address.
    """

    def every(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def one(latency: float, limit: asyncio.Semaphore, service: Service) -> float:
            async with limit:
                start = time.time()
                if latency:
                    await service.answer(latency)
                return start

        async def all_of(latencies: list[float]) -> list[float]:
            limit = asyncio.Semaphore(capacity)
            async with Service(url, capacity) as service:
                return await asyncio.gather(*(one(latency, limit, service) for latency in latencies))

        for batch in sized(batches, batch_rows):
            yield pa.array(asyncio.run(all_of(batch.to_pylist())))

    return arrow_column(every, "double")
