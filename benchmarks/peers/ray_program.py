"""An async callable class in Ray Data's `map_batches`, on one actor and uvloop. Counted is the time from the first call
to the arrival of the last result at the driver.

Ray has four batches in flight: they have a hundred times the capacity of rows or more, and a semaphore bounds the
calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pyarrow as pa
import ray
import ray.data

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

BATCHES = 4  # in flight; Ray's default


class Calls:
    """Makes the calls of a batch, under a semaphore that all batches share."""

    def __init__(self, url: str, bound: int) -> None:
        self.service = Service(url, bound)
        self.limit = asyncio.Semaphore(bound)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        starts = await asyncio.gather(*map(self.call, batch["latency"].tolist()))
        yield {"started": starts, "loop": [loop] * len(starts)}

    async def call(self, latency: float) -> float:
        async with self.limit:
            return await self.service.call(latency)


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    size = workload.capacity * workload.room // BATCHES
    ray.init(include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    client = {"fn_constructor_args": (workload.url, workload.capacity), "compute": ray.data.ActorPoolStrategy(size=1)}
    note = f"no modes; no timeout; {BATCHES} batches in flight, a semaphore"

    def measure(latencies: Sequence[float]) -> Measurement:
        rows = ray.data.from_arrow(pa.table({"latency": list(latencies)}))
        results = rows.map_batches(Calls, batch_size=size, **client)
        batches = list(results.iter_batches(batch_format="numpy", batch_size=None))
        last = time.time()
        starts = [start for batch in batches for start in batch["started"].tolist()]
        return Measurement(last - min(starts), len(starts), ray.__version__, f"{note}, {batches[0]['loop'][0]}")

    return measure


if __name__ == "__main__":
    serve(make)
