"""An async callable class over batches in Ray Data, on one actor. Counted is the time from the first call to the
arrival of the last result at the driver.

Ray has four batches in flight. As documented each is gathered, so they have a quarter of the capacity each. At its best
they have a hundred times as many rows, and a semaphore bounds the calls. (Its setting for single rows in flight is
slower than both.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import ray
import ray.data

from benchmarks.peers._workload import Measurement, Workload, serve

BATCHES = 4  # in flight
ROOM = 100  # how many times the capacity the rows in flight are


class Calls:
    """Makes the calls of a batch, under a semaphore that all batches share if there is a bound."""

    def __init__(self, bound: int | None) -> None:
        self.limit = contextlib.nullcontext() if bound is None else asyncio.Semaphore(bound)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"started": await asyncio.gather(*map(self.call, batch["latency"]))}

    async def call(self, latency: float) -> float:
        async with self.limit:
            started = time.time()
            if latency:
                await asyncio.sleep(latency)
            return started


def measure(workload: Workload, best: bool) -> Measurement:
    bound = workload.capacity if best else None
    size = workload.capacity * (ROOM if best else 1) // BATCHES
    ray.init(include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.from_arrow(pa.table({"latency": list(workload.latencies)}))
    actor = ray.data.ActorPoolStrategy(size=1)
    results = rows.map_batches(Calls, fn_constructor_args=(bound,), compute=actor, batch_size=size)
    starts = [start for batch in results.iter_batches(batch_format="numpy") for start in batch["started"].tolist()]
    last = time.time()
    ray.shutdown()
    note = f"no modes; no timeout; {BATCHES} batches of {size:,} rows in flight"
    note += f", a semaphore of {bound}" if bound else ""
    return Measurement(last - min(starts), len(starts), ray.__version__, note)


if __name__ == "__main__":
    serve(measure)
