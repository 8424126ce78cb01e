"""Calls of given latencies, or HTTP requests, made in several ways, each timed from the first call to the last result.

The ways: a plain asyncio program; ours; the best program that we could write by hand in a Spark function; and the usual
`asyncio.gather`. All run on uvloop, make the same calls with the same client, and return when each call began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import uvloop
from pyspark.sql import Column, DataFrame, SparkSession

from asyncudf import AsyncUDF, async_pandas_udf, ordered_wait, unordered_wait

from ._harness import Sample, Settings, System
from ._meter import Processes, driver_of, metered, workers_of
from ._peers import of_requests, peer_systems
from ._spark import arrow_column, batches_of, configured, seconds_of_calls, sized
from ._work import BATCH, CAPACITY, bare, run, seconds_at_best, settle_collector
from .peers._requests import Service
from .peers._workload import Workload

__all__ = ("TIMEOUT", "Calls", "asynchronous", "gathered", "handwritten", "per_row")

NOTHING: Mapping[str, float] = {}
TIMEOUT = 60.0  # seconds; a deadline for every row
Values = Callable[[Workload, float], dict[str, float]]  # of the calls and the seconds that they took


def per_call(workload: Workload, seconds: float) -> dict[str, float]:
    """The ideal: so many callers that are never idle, to the end of the last call."""
    rows = workload.latencies
    return {
        "calls/s": len(rows) / seconds,
        "% of the ideal": 100 * seconds_at_best(rows, workload.capacity) / seconds,
    }


def per_request(workload: Workload, seconds: float) -> dict[str, float]:
    return {"requests/s": len(workload.latencies) / seconds}


def per_row(workload: Workload, seconds: float) -> dict[str, float]:
    return {"us/row": seconds / len(workload.latencies) * 1e6}


class Calls:
    """A table of latencies in Spark's memory, and the ways to make its calls, `capacity` at a time.

    A call of latency 0 returns at once, without giving way to the event loop. With an address a call is a request, and
    its latency says what is expected.
    """

    def __init__(
        self,
        session: SparkSession,
        latencies: Sequence[float],
        capacity: int = CAPACITY,
        *,
        url: str = "",
        values: Values | None = None,
        **client: Any,
    ) -> None:
        self._workload = Workload(latencies, capacity, TIMEOUT, url=url)
        self._values = values or (per_request if url else per_call)
        self._session = session
        self._service = partial(Service, url, capacity, **client)
        with configured(session, batches_of(BATCH)):
            self._table = session.createDataFrame(pa.table({"latency": latencies})).coalesce(1).cache()
            self._table.count()

    def bare(self) -> Sample:
        """In a plain asyncio program."""
        make = self._service

        async def main() -> float:
            async with make() as service:
                return await bare(service.call, self._workload.latencies, self._workload.capacity)

        settle_collector()
        with metered() as used:
            seconds = run(main())
        return self._sample(seconds, used["cpu"], {"cpu": used["cpu"]})

    def column(self) -> Sample:
        """As a column of an async function."""
        return self._through(self._table.select(self._function()("latency").alias("call")))

    def ordered(self, **options: Any) -> Sample:
        return self._through(ordered_wait(self._table, self._function(), "latency", **options))

    def unordered(self) -> Sample:
        return self._through(unordered_wait(self._table, self._function(), "latency"))

    def of_column(self, column: Callable[[str], Column]) -> Sample:
        """Through a column that returns when the calls began."""
        return self._through(self._table.select(column("latency").alias("call")))

    def handwritten(self) -> Sample:
        return self.of_column(handwritten(self._workload.capacity, self._service))

    def gather(self) -> Sample:
        return self.of_column(gathered(self._workload.capacity, self._service))

    def peers(self, settings: Settings, names: Sequence[str], *, room: int = 100) -> list[System]:
        """Those that were asked for."""
        return peer_systems(settings, names, self._workload, self._values, room=room)

    def _function(self) -> AsyncUDF[..., Any]:
        return asynchronous(self._workload.capacity, self._service)

    def _through(self, results: DataFrame) -> Sample:
        rows, workers = len(self._workload.latencies), workers_of(self._session)
        if not self._workload.url:
            return self._sample(seconds_of_calls(results, rows))
        before = workers.cpu()
        with Processes(driver_of(self._session)).watched() as used:
            seconds = seconds_of_calls(results, rows)
        return self._sample(seconds, workers.cpu() - before, used)

    def _sample(self, seconds: float, cpu: float = 0.0, used: Mapping[str, float] = NOTHING) -> Sample:
        """Of requests with the CPU of the task, and with what all processes have used."""
        values = self._values(self._workload, seconds)
        return Sample(values | of_requests(used, len(self._workload.latencies), cpu) if self._workload.url else values)


# The functions are made inside others, so that they travel to the worker by value.


def asynchronous(capacity: int, make: Callable[[], Service]) -> AsyncUDF[..., Any]:
    """Ours."""

    @async_pandas_udf(capacity=capacity, timeout=TIMEOUT, resources={"service": make})
    async def call(latency: float, service: Service) -> float:
        return await service.call(latency)

    return call


def handwritten(capacity: int, make: Callable[[], Service]) -> Callable[[str], Column]:
    """The best that we found without this project: tasks that take the next row of the partition each.

    It waits for nothing between Spark's batches and keeps all results of the partition until the last call is done. It
    has no deadlines, retries or reports.
    """

    def every(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        rows = (latency for batch in batches for latency in batch.to_pylist())
        results: list[float] = []

        async def pull(service: Service) -> None:
            for latency in rows:
                place = len(results)
                results.append(0.0)  # takes the place, so that the results are in the order of the rows
                results[place] = await service.call(latency)

        async def main() -> None:
            async with make() as service:
                await asyncio.gather(*(pull(service) for _ in range(capacity)))

        run(main())
        yield pa.array(results, pa.float64())

    return arrow_column(every, "double")


def gathered(capacity: int, make: Callable[[], Service]) -> Callable[[str], Column]:
    """`asyncio.gather` over each Arrow batch of 10,000 rows, under a semaphore."""

    def every(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        limit = asyncio.Semaphore(capacity)

        async def one(service: Service, latency: float) -> float:
            async with limit:
                return await service.call(latency)

        async def all_of(service: Service, latencies: list[float]) -> list[float]:
            return await asyncio.gather(*(one(service, latency) for latency in latencies))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            service = make()
            for batch in sized(batches, BATCH):
                yield pa.array(runner.run(all_of(service, batch.to_pylist())))
            runner.run(service.close())

    return arrow_column(every, "double")
