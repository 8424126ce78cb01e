"""A Pathway UDF over a table that is there from the start, and a subscriber that counts. Counted is the time from the
first call to the last result at the subscriber.

`async_executor` ends each batch of rows before the next one; at its best Pathway has `fully_async_executor`, which does
not, and whose results follow their rows.
"""

from __future__ import annotations

import time
from typing import Any

import pathway as pw

from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve


class Row(pw.Schema):
    latency: float


def measure(workload: Workload, best: bool) -> Measurement:
    service = Service(workload.url, workload.capacity)
    executor = pw.udfs.fully_async_executor if best else pw.udfs.async_executor

    @pw.udf(executor=executor(capacity=workload.capacity, timeout=workload.timeout))
    async def call(latency: float) -> float:
        started = time.time()
        if latency:
            await service.answer(latency)
        return started

    starts: list[float] = []
    last = 0.0

    def arrive(row: dict[str, Any], **_: object) -> None:
        nonlocal last
        starts.append(row["started"])
        last = time.time()

    table = pw.debug.table_from_rows(Row, [(latency,) for latency in workload.latencies])
    results = table.select(started=call(table.latency))
    pw.io.subscribe(results.await_futures() if best else results, on_change=arrive)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    name = f"{executor.__name__}(capacity={workload.capacity})"
    note = f"no modes: a result has its row's key; {name}"
    return Measurement(last - min(starts), len(starts), pw.__version__, note)


if __name__ == "__main__":
    serve(measure)
