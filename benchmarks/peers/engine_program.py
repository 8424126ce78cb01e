"""Our operator on an engine: `sail`, in this process, or `connect`, a server of Spark Connect that this process starts.

All latencies are alike, so that the rows need not travel. Counted is the whole query: its plan goes to the engine, and
each engine has its own way to its functions.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from asyncudf import ordered_wait
from benchmarks._calls import asynchronous
from benchmarks.peers._requests import Service
from benchmarks.peers._workload import Measurement, Workload, serve

QUIET = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def make(workload: Workload) -> Callable[[Sequence[float]], Measurement]:
    engine = sys.argv[2]
    session, version = sail() if engine == "sail" else connect(workload.tasks)
    function = asynchronous(workload.capacity, partial(Service, "", workload.capacity))

    def measure(latencies: Sequence[float]) -> Measurement:
        rows = session.range(0, len(latencies), 1, workload.tasks).select(sf.lit(latencies[0]).alias("latency"))
        start = time.perf_counter()
        (answer,) = ordered_wait(rows, function, "latency", as_="began").agg(sf.count("began")).collect()
        return Measurement(time.perf_counter() - start, answer[0], version, f"tasks: {workload.tasks}")

    return measure


def sail() -> tuple[Any, str]:
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    atexit.register(server.stop)  # and it ends when nobody has it any more
    host, port = server.listening_address
    client = f"{importlib.metadata.version('pysail')}, client {importlib.metadata.version('pyspark-client')}"
    return SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate(), client


def connect(tasks: int) -> tuple[Any, str]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else its workers take the python3 on PATH
    builder = SparkSession.builder.remote(f"local[{tasks}]").config(map=QUIET)
    return builder.getOrCreate(), importlib.metadata.version("pyspark")


if __name__ == "__main__":
    serve(make)
