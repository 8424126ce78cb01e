"""Programs like those of the peers, for whole jobs: ours, the two usual ways in Spark, and a plain asyncio program.

Counted is the time from the start of the first call to the end of the action. The argument is the name of the way;
where Spark runs (`master`) comes with the workload. The plain program does not import Spark.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks._work import bare, run
from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

WAYS = {"asyncudf": "asynchronous", "handwritten": "handwritten", "gather": "gathered"}  # functions of _calls.py


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    name = sys.argv[2]
    service = partial(Service, workload.url, workload.capacity)
    if name == "bare":
        return partial(plain, workload.capacity, service)
    sf: Any = importlib.import_module("pyspark.sql.functions")
    way = getattr(importlib.import_module("benchmarks._calls"), WAYS[name])
    session = importlib.import_module("benchmarks._spark").spark(master=workload.master)

    def measure(latencies: Sequence[float]) -> Measurement:
        """All latencies are alike, so that the rows need not travel."""
        call = way(workload.capacity, service)
        rows = session.range(0, len(latencies), 1, workload.tasks).select(sf.lit(latencies[0]).alias("latency"))
        row = rows.select(call("latency").alias("started")).agg(sf.min("started"), sf.count("started")).first()
        return Measurement(time.time() - row[0], row[1], "", f"tasks: {workload.tasks}; master: {workload.master}")

    return measure


def plain(capacity: int, make_service: Callable[[], Service], latencies: Sequence[float]) -> Measurement:
    async def main() -> float:
        async with make_service() as service:
            return await bare(service.call, latencies, capacity)

    return Measurement(run(main()), len(latencies), "")


if __name__ == "__main__":
    serve(make)
