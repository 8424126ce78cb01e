"""An async callable class in Ray Data, on one actor. Counted is the time from the first call to the
arrival of the last result at the driver.

As documented `map` calls it for each row; how many are in flight at once, 16 usually, an environment variable says. At
its best it gets batches, of which Ray has four in flight: they have a hundred times the capacity of rows or more, and a
semaphore bounds the calls.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

BATCHES = 4  # in flight
CALLS = "RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY"


class Call:
    def __init__(self, url: str, connections: int) -> None:
        self.service = Service(url, connections)

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"started": await call(self.service, row["latency"])}


class Calls:
    """Makes the calls of a batch, under a semaphore that all batches share."""

    def __init__(self, url: str, bound: int) -> None:
        self.service = Service(url, bound)
        self.limit = asyncio.Semaphore(bound)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"started": await asyncio.gather(*map(self.call, batch["latency"]))}

    async def call(self, latency: float) -> float:
        async with self.limit:
            return await call(self.service, latency)


async def call(service: Service, latency: float) -> float:
    started = time.time()
    if latency:
        await service.answer(latency)
    return started


def measure(workload: Workload, best: bool) -> Measurement:
    capacity = workload.capacity
    size = capacity * workload.room // BATCHES
    client = (workload.url, capacity)
    os.environ[CALLS] = str(capacity)
    ray = importlib.import_module("ray")  # reads its environment now
    importlib.import_module("ray.data")
    ray.init(include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.from_arrow(pa.table({"latency": list(workload.latencies)}))
    actor = ray.data.ActorPoolStrategy(size=1)
    if best:
        results = rows.map_batches(Calls, fn_constructor_args=client, compute=actor, batch_size=size)
        how = f"{BATCHES} batches of {size:,} rows in flight, a semaphore of {capacity}"
    else:
        results, how = rows.map(Call, fn_constructor_args=client, compute=actor), f"map, {capacity} rows in flight"
    starts = [start for batch in results.iter_batches(batch_format="numpy") for start in batch["started"].tolist()]
    last = time.time()
    ray.shutdown()
    return Measurement(last - min(starts), len(starts), ray.__version__, f"no modes; no timeout; {how}")


if __name__ == "__main__":
    serve(measure)
