"""An async `@daft.func` over a DataFrame in memory. Counted is the time from the first call to the end of `collect`.

`max_concurrency` counts batches, and a batch (131,072 rows) is gathered whole. Only batches of one row keep to the
capacity; where calls return at once and none is ever in flight, Daft's own batches are measured, as they are faster.
"""

from __future__ import annotations

import asyncio
import time

import daft

from benchmarks.peers._workload import Measurement, Workload, serve


def measure(workload: Workload) -> Measurement:
    @daft.func(max_concurrency=workload.capacity)
    async def call(latency: float) -> float:
        started = time.time()
        if latency:
            await asyncio.sleep(latency)
        return started

    frame = daft.from_pydict({"latency": list(workload.latencies)})
    instant = not any(workload.latencies)
    rows = frame if instant else frame.into_batches(1)
    results = rows.select(call(rows["latency"]).alias("started")).collect()
    last = time.time()
    starts = results.to_pydict()["started"]
    note = "its own batches, no limit of calls" if instant else "batches of one row"
    return Measurement(last - min(starts), len(starts), daft.__version__, f"unordered only; no timeout; {note}")


if __name__ == "__main__":
    serve(measure)
