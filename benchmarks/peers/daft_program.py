"""An async method of a `@daft.cls` over a DataFrame in memory. Counted is the time from the first call to the end of
`collect`.

`max_concurrency` counts batches, and a batch (131,072 rows) is gathered whole: only batches of one row keep to the
capacity. At its best Daft has its own batches, and a semaphore bounds the calls. Where calls return at once and none is
ever in flight, nothing needs a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import daft

from benchmarks.peers._workload import Measurement, Workload, serve


class Client:
    """Makes calls, under a semaphore if they have a bound."""

    def __init__(self, bound: int | None) -> None:
        self.limit = contextlib.nullcontext() if bound is None else asyncio.Semaphore(bound)

    async def call(self, latency: float) -> float:
        async with self.limit:
            started = time.time()
            if latency:
                await asyncio.sleep(latency)
            return started


def measure(workload: Workload, best: bool) -> Measurement:
    instant = not any(workload.latencies)
    bound = workload.capacity if best and not instant else None
    client = daft.cls(Client, max_concurrency=workload.capacity)(bound)
    frame = daft.from_pydict({"latency": list(workload.latencies)})
    rows = frame if instant or best else frame.into_batches(1)
    results = rows.select(client.call(rows["latency"]).alias("started")).collect()
    last = time.time()
    starts = results.to_pydict()["started"]
    batches = "its own batches" if instant or best else "batches of one row"
    limit = f"a semaphore of {bound}" if bound else f"max_concurrency={workload.capacity}"
    return Measurement(last - min(starts), len(starts), daft.__version__, f"no timeout; {batches}, {limit}")


if __name__ == "__main__":
    serve(measure)
