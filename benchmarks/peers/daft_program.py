"""An async method of a `@daft.cls` over a DataFrame in memory. Counted is the time from the first call to the end of
`collect`.

Its documentation has `max_concurrency` bound the calls of an async method. Each run looks first, with a thousand calls
that do not count, how many are in flight with that alone: as it bounds batches, and a batch is gathered whole, all of
them. To keep to the capacity it gets batches of one row then. At its best Daft has its own batches, and a semaphore
bounds the calls. Where calls return at once and none is ever in flight, nothing needs a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import daft

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

PROBE = 1_000  # calls of 20 ms


class Client:
    """Makes calls, under a semaphore if they have a bound."""

    def __init__(self, bound: int | None, url: str, connections: int) -> None:
        self.service = Service(url, connections)
        self.limit = contextlib.nullcontext() if bound is None else asyncio.Semaphore(bound)
        self.running = self.most = 0

    async def call(self, latency: float) -> float:
        async with self.limit:
            started = time.time()
            if latency:
                await self.service.answer(latency)
            return started

    async def in_flight(self, latency: float) -> int:
        """The most that there have been."""
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(latency)
        self.running -= 1
        return self.most


def most_in_flight(capacity: int) -> int:
    """With `max_concurrency` alone."""
    client = daft.cls(Client, max_concurrency=capacity)(None, "", capacity)
    frame = daft.from_pydict({"latency": [0.02] * PROBE})
    seen = frame.select(client.in_flight(frame["latency"]).alias("most")).to_pydict()["most"]
    return int(max(seen))


def measure(workload: Workload, best: bool) -> Measurement:
    instant = not any(workload.latencies)
    bound = workload.capacity if best and not instant else None
    alone = most_in_flight(workload.capacity)
    unbatched = alone > workload.capacity and not (instant or best)
    client = daft.cls(Client, max_concurrency=workload.capacity)(bound, workload.url, workload.capacity)
    frame = daft.from_pydict({"latency": list(workload.latencies)})
    rows = frame.into_batches(1) if unbatched else frame
    results = rows.select(client.call(rows["latency"]).alias("started")).collect()
    last = time.time()
    starts = results.to_pydict()["started"]
    batches = "batches of one row" if unbatched else "its own batches"
    limit = f"a semaphore of {bound}" if bound else f"max_concurrency={workload.capacity}"
    seen = f" (which alone had {alone:,} of {PROBE:,} calls in flight)" if unbatched else ""
    return Measurement(last - min(starts), len(starts), daft.__version__, f"no timeout; {batches}, {limit}{seen}")


if __name__ == "__main__":
    serve(measure)
