"""A blocked loop is told where the executors write their errors."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
    import time
    from pyspark.sql import SparkSession
    from asyncudf import ordered_wait

    async def weather(id: int) -> int:
        time.sleep(0.5)
        return id

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    print(ordered_wait(spark.range(0, 5, 1, 1), weather).count())
    spark.stop()
"""


def test_a_blocked_loop_is_told_on_the_error_stream_of_the_executor():
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ran.stdout == "5\n"
    assert ran.stderr.count("weather has blocked the event loop for more than 1 s") == 1
    assert "in weather" in ran.stderr
    assert ran.stderr.count("the event loop was blocked for ") == 1
