"""What is alive in a Python worker that should have nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

__all__ = ("end_workers", "leftovers")


def end_workers(spark: SparkSession) -> None:
    """Ends the Python workers of a session on this machine; the next tasks get new ones. Not with Spark 3.5."""
    if spark.version < "4":  # it gives a task a worker that has ended
        return
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    workers = [worker for daemon in driver.children() for worker in daemon.children()]
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(workers)  # until their daemon has seen it too


def leftovers(spark: SparkSession, tasks: int = 2) -> dict[int, list[str]]:
    """By process id, what is left over in each worker that a new job of so many tasks gets."""
    rows = spark.range(0, 2 * tasks, 1, tasks).mapInArrow(_look_around, "pid bigint, left array<string>").collect()
    return {row.pid: row.left for row in rows}


def _look_around(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        pass
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists the folder
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    gc.collect()
    # By type, not isinstance: that asks proxies for their class, which may import half of the world.
    found = [o for o in gc.get_objects() if issubclass(type(o), (asyncio.AbstractEventLoop, asyncio.Task))]
    left = [f"thread {thread.name}" for thread in threading.enumerate() if thread is not threading.main_thread()]
    left += [f"loop {o!r}" for o in found if isinstance(o, asyncio.AbstractEventLoop) and not o.is_closed()]
    left += [f"task {o!r}" for o in found if isinstance(o, asyncio.Task) and not o.done()]
    left += [link for link in links if "eventpoll" in link]
    left += sorted({link for link in links if link.startswith("socket:")})[1:]  # one leads to the JVM
    schema = pa.schema([("pid", pa.int64()), ("left", pa.list_(pa.string()))])
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "left": [left]}, schema)
