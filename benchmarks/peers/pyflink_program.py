"""PyFlink's async operator, and a flat map behind it, which counts rows in a Python worker; the one row that it gives
out is the time.

At the end of a bundle (1,000 rows or a second, unless set) PyFlink waits for all calls in flight: here one bundle has
them all. In order the operator has fifty times the capacity or more, with a semaphore that bounds the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import uvloop
from pyflink.common import Configuration, Time, Types
from pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    FlatMapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

BUNDLE = {"python.fn-execution.bundle.size": "100000", "python.fn-execution.bundle.time": "100000"}  # rows; ms


class Call(AsyncFunction):
    """A call, under a semaphore if there is a bound. PyFlink makes its event loop after `open`."""

    def __init__(self, bound: int | None, url: str, connections: int) -> None:
        self.bound = bound
        self.service = Service(url, connections)
        self.limit: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()

    def open(self, runtime_context: RuntimeContext) -> None:
        uvloop.install()
        if self.bound is not None:
            self.limit = asyncio.Semaphore(self.bound)

    async def async_invoke(self, value: float) -> list[float]:
        async with self.limit:
            return [await self.service.call(value)]


class Arrivals(FlatMapFunction):
    """Swallows the starts of the calls; at the last one it gives the seconds since the first."""

    def __init__(self, rows: int) -> None:
        self.rows, self.arrived, self.first = rows, 0, float("inf")

    def flat_map(self, value: float) -> Iterator[float]:
        self.arrived += 1
        self.first = min(self.first, value)
        if self.arrived == self.rows:
            yield time.time() - self.first


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    ordered = workload.mode == "ordered"
    capacity = workload.room // 2 * workload.capacity if ordered else workload.capacity
    call = Call(workload.capacity if ordered else None, workload.url, workload.capacity)
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    timeout = Time.milliseconds(int(workload.timeout * 1000))
    note = f"{capacity // workload.capacity} times the calls in flight, a semaphore, bundles of 100,000 rows, uvloop"

    def measure(latencies: Sequence[float]) -> Measurement:
        environment = StreamExecutionEnvironment.get_execution_environment(_configuration(BUNDLE))
        environment.set_parallelism(1)
        environment.set_python_executable(sys.executable)
        rows = environment.from_collection(list(latencies), type_info=Types.DOUBLE())
        results = wait(rows, call, timeout, capacity, Types.DOUBLE())
        arrivals = results.flat_map(Arrivals(len(latencies)), Types.DOUBLE())
        with arrivals.execute_and_collect() as collected:
            [seconds] = list(collected)
        return Measurement(seconds, len(latencies), version("apache-flink"), note)

    return measure


def _configuration(settings: dict[str, str]) -> Configuration:
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    return configuration


if __name__ == "__main__":
    serve(make)
