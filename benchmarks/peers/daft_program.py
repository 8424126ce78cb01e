"""An async batch method of a `@daft.cls`, on uvloop. Counted is the time from the first call to the end of `collect`.

Daft's `max_concurrency` bounds batches and not calls, so a semaphore bounds the calls of all batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import daft
import uvloop

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

uvloop.install()  # Daft makes its loop when it first needs one
BATCHES = 4  # in flight


class Client:
    def __init__(self, url: str, bound: int) -> None:
        self.service = Service(url, bound)
        self.limit = asyncio.Semaphore(bound)

    @daft.method.batch(return_dtype=daft.DataType.float64())
    async def call(self, latencies: daft.Series) -> list[float]:
        return await asyncio.gather(*map(self.one, latencies.to_pylist()))

    async def one(self, latency: float) -> float:
        async with self.limit:
            return await self.service.call(latency)


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    client = daft.cls(Client, max_concurrency=BATCHES)(workload.url, workload.capacity)
    note = "no timeout; async batch method, its own batches, a semaphore, uvloop"

    def measure(latencies: Sequence[float]) -> Measurement:
        rows = daft.from_pydict({"latency": list(latencies)})
        results = rows.select(client.call(rows["latency"]).alias("started")).collect()
        last = time.time()
        starts = results.to_pydict()["started"]
        return Measurement(last - min(starts), len(starts), daft.__version__, note)

    return measure


if __name__ == "__main__":
    serve(make)
