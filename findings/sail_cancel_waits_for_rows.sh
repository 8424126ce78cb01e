#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0, run on 2026-11-30.
# Expected: after spark.interruptAll() a Python function in mapInArrow is not asked for its next batch, as on Spark.
# Seen: that holds for a function whose batches have rows. One whose batches are empty is asked for all of them: Sail drops
#   them, and looks whether the query is still wanted when it has rows to hand on. The client gets its error when the
#   function is done.
# Matters: a function that writes rows to a service and yields nothing until its end, or only what has failed, writes all of
#   them after its query was cancelled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import concurrent.futures
import sys
import threading
import types

import pyarrow as pa
import pysail
from pysail.spark import SparkConnectServer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

STEPS, CANCELLED_AT = 300, 20
seen = sys.modules["seen"] = types.ModuleType("seen")  # functions run in this process, and find it by its name
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()


def steps_after_cancel(rows_each):
    seen.steps, seen.begun, seen.over = 0, threading.Event(), threading.Event()

    def stepwise(batches):
        import time

        import seen

        try:
            for batch in batches:
                for _ in range(STEPS):
                    seen.steps += 1
                    if seen.steps == CANCELLED_AT:
                        seen.begun.set()
                    time.sleep(0.01)  # stands for a request
                    yield batch.slice(0, rows_each)
        finally:
            seen.over.set()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        query = thread.submit(spark.range(0, 1, 1, 1).mapInArrow(stepwise, "id long").collect)
        assert seen.begun.wait(30)
        spark.interruptAll()
        failed = isinstance(query.exception(30), PySparkException)
    assert seen.over.wait(30)
    return seen.steps, failed


got = {"one row in each batch": steps_after_cancel(1), "empty batches": steps_after_cancel(0)}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}; {STEPS} steps, cancelled at {CANCELLED_AT}")
for what, (steps, failed) in got.items():
    print(f"{what}: {steps} steps were made; the query failed: {failed}")
(some, _), (every, _) = got.values()
sys.exit(not (some < STEPS // 2 and every == STEPS))
PYTHON
