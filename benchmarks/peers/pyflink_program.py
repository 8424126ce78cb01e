"""PyFlink's AsyncDataStream, one task. Counted is the time from the first `async_invoke` to the last row at the
function behind it, which counts rows in a Python worker; the one row that it gives out is the time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version

from pyflink.common import Time, Types
from pyflink.datastream import AsyncDataStream, AsyncFunction, FlatMapFunction, StreamExecutionEnvironment

from benchmarks.peers._workload import Measurement, Workload, serve


class Call(AsyncFunction):
    async def async_invoke(self, value: float) -> list[float]:
        started = time.time()
        if value:
            await asyncio.sleep(value)
        return [started]


class Arrivals(FlatMapFunction):
    """Swallows the starts of the calls; at the last one it gives the seconds since the first."""

    def __init__(self, rows: int) -> None:
        self.rows, self.arrived, self.first = rows, 0, float("inf")

    def flat_map(self, value: float) -> Iterator[float]:
        self.arrived += 1
        self.first = min(self.first, value)
        if self.arrived == self.rows:
            yield time.time() - self.first


def measure(workload: Workload) -> Measurement:
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(1)
    environment.set_python_executable(sys.executable)
    rows = environment.from_collection(list(workload.latencies), type_info=Types.DOUBLE())
    wait = AsyncDataStream.ordered_wait if workload.mode == "ordered" else AsyncDataStream.unordered_wait
    timeout = Time.milliseconds(int(workload.timeout * 1000))
    results = wait(rows, Call(), timeout, workload.capacity, Types.DOUBLE())
    arrivals = results.flat_map(Arrivals(len(workload.latencies)), Types.DOUBLE())
    with arrivals.execute_and_collect() as collected:
        [seconds] = list(collected)
    return Measurement(seconds, len(workload.latencies), version("apache-flink"))


if __name__ == "__main__":
    serve(measure)
