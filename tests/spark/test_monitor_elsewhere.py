"""monitor where the driver and the executors are apart: a cluster of processes, Spark Connect, a driver that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HEAD = """
import asyncio, json, os, sys, time
from pyspark.sql import SparkSession
import asyncudf

@asyncudf.async_pandas_udf(capacity=10)
async def waits(id: int) -> int:
    await asyncio.sleep(0.01)
    return id

def session(builder):
    return builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
"""


def ran(program: str, *, status: int = 0) -> list[Any]:
    """What a program prints as JSON, one value in a line."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "ignore", "-c", HEAD + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


JOB = """
with asyncudf.monitor(spark) as run:
    spark.range(0, 400, 1, 2).select(waits("id")).collect()
    asyncudf.unordered_wait(spark.range(0, 400, 1, 2), waits).collect()
    during = run.metrics
print(json.dumps(run.metrics))
print(json.dumps([row.asDict(True)["rows"] for row in run.to_df().collect()]))
spark.range(0, 400, 1, 2).select(waits("id")).collect()
print(json.dumps([one["rows"] for one in run.metrics["functions"]]))
spark.stop()
"""


def check(printed: list[Any]) -> None:
    metrics, of_tasks, afterwards = printed
    assert [(one["rows"], one["calls"]) for one in metrics["functions"]] == [(400, 400), (400, 400)]
    assert [one["tasks"]["succeeded"] for one in metrics["functions"]] == [2, 2]
    assert [one["entry_point"] for one in metrics["functions"]] == ["column", "operator"]
    for function in metrics["functions"]:
        for task in function["per_task"]:
            assert sum(task["time"].values()) == pytest.approx(task["seconds"], abs=1e-3)
    assert sum(of_tasks) == 800
    assert afterwards == [400, 400]


def test_on_a_cluster() -> None:
    """Executors in processes of their own tell the driver over the network that Spark itself uses."""
    check(ran('spark = session(SparkSession.builder.master("local-cluster[2,1,1024]"))' + JOB))


def test_with_spark_connect() -> None:
    """Tasks tell what they did when they have ended; nothing else of the session is changed."""
    pytest.importorskip("grpc", reason="Spark Connect is not installed")
    program = 'spark = session(SparkSession.builder.remote("local[2]"))\n'
    logging = "spark.sql.pyspark.worker.logging.enabled"
    told = f'print(json.dumps([spark.conf.get("{logging}", None), spark.conf.get("spark.asyncudf.monitor", None)]))\n'
    printed = ran(program + told + JOB.replace("spark.stop()", told + "spark.stop()"))
    assert printed[0] == printed[-1]
    check(printed[1:-1])


def test_a_driver_that_is_killed(tmp_path: Path, until: Any, alive: Any) -> None:
    """Workers that told it how far they are end like all others."""
    program = """
with asyncudf.monitor(session(SparkSession.builder.master("local[1]"))) as run:
    @asyncudf.async_pandas_udf(capacity=10)
    async def told(id: int) -> int:
        open(PATH, "w").write(str(os.getpid()))
        await asyncio.sleep(0.05)
        return id
    run._spark.range(0, 1000000, 1, 1).select(told("id")).write.format("noop").mode("overwrite").save()
"""
    path = tmp_path / "pid"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", HEAD + program.replace("PATH", repr(str(path)))]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as driver:
        try:
            until(lambda: path.exists() and path.read_text(), "a call")
            worker = int(path.read_text())
        finally:
            os.kill(driver.pid, signal.SIGKILL)
    until(lambda: not alive(worker), "the worker has ended")
