"""A Pathway UDF on `async_executor` over a table that is there from the start, and a subscriber that counts. Counted is
the time from the first call to the last row at the subscriber.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pathway as pw

from benchmarks.peers._workload import Measurement, Workload, serve


class Row(pw.Schema):
    latency: float


def measure(workload: Workload) -> Measurement:
    @pw.udf(executor=pw.udfs.async_executor(capacity=workload.capacity, timeout=workload.timeout))
    async def call(latency: float) -> float:
        started = time.time()
        if latency:
            await asyncio.sleep(latency)
        return started

    starts: list[float] = []
    last = 0.0

    def arrive(row: dict[str, Any], **_: object) -> None:
        nonlocal last
        starts.append(row["started"])
        last = time.time()

    table = pw.debug.table_from_rows(Row, [(latency,) for latency in workload.latencies])
    pw.io.subscribe(table.select(started=call(table.latency)), on_change=arrive)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return Measurement(last - min(starts), len(starts), pw.__version__, "no modes: a result has its row's key")


if __name__ == "__main__":
    serve(measure)
