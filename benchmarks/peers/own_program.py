"""Programs like those of the peers, for whole jobs: ours, the two usual ways in Spark, and a plain asyncio program.

Counted is the time from the start of the first call to the end of the action. `asyncudf`, the name of the way, and
where Spark runs (`master`) come as arguments and with the workload.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

from pyspark.sql import Column
from pyspark.sql import functions as sf

from benchmarks._calls import asynchronous, call_of, gathered, handwritten
from benchmarks._spark import spark
from benchmarks._work import bare, run
from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

WAYS: dict[str, Callable[..., Callable[..., Column]]] = {
    "asyncudf": asynchronous,
    "handwritten": handwritten,
    "gather": gathered,
}


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    name = sys.argv[2]
    service = partial(Service, workload.url, workload.capacity)
    if name == "bare":
        return partial(plain, workload.capacity, service)
    session = spark(master=workload.master)
    tasks = session.sparkContext.defaultParallelism

    def measure(latencies: Sequence[float]) -> Measurement:
        """All latencies are alike, so that the rows need not travel."""
        call = WAYS[name](workload.capacity, service)
        rows = session.range(0, len(latencies), 1, tasks).select(sf.lit(latencies[0]).alias("latency"))
        row = rows.select(call("latency").alias("started")).agg(sf.min("started"), sf.count("started")).first()
        assert row is not None
        return Measurement(time.time() - row[0], row[1], version("pyspark"), f"{tasks} tasks on {workload.master}")

    return measure


def plain(capacity: int, make_service: Callable[[], Service], latencies: Sequence[float]) -> Measurement:
    async def main() -> float:
        async with make_service() as service:
            return await bare(partial(call_of, service), latencies, capacity)

    return Measurement(run(main()), len(latencies), version("uvloop"))


if __name__ == "__main__":
    serve(make)
