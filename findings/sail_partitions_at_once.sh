#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: as many tasks at a time as there are cores, whatever runs in them, as on Spark: it is what people count with
#   when they bound the connections to a service by connections of a task times cores.
# Seen: a pandas UDF runs in as many partitions at a time as DEFAULT_PARALLELISM says; mapInArrow runs in all 16 at once.
# Matters: a service that takes 2 connections from 2 cores gets 16 from the same program written with mapInArrow.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
SAIL_EXECUTION__DEFAULT_PARALLELISM=2 timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import sys
import threading
import types

import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

PARTITIONS = 16
# Functions run in this process: they find what they share by the name of a module.
shared = sys.modules["shared"] = types.ModuleType("shared")


def in_mapInArrow(batches):
    import shared

    shared.enter()
    yield from batches


def most_at_once(read):
    """How many partitions have begun before the first of them may go on, which waits for all others for two seconds."""
    begun, changed = [], threading.Condition()

    def enter():
        with changed:
            begun.append(1)
            changed.notify_all()
            changed.wait_for(lambda: len(begun) == PARTITIONS, timeout=2)
            first.append(len(begun)) if not first else None

    first = []
    shared.enter = enter
    read()
    return first[0]


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()


@sf.pandas_udf("long")
def in_pandas_udf(ids):
    import shared

    shared.enter()
    return ids


df = spark.range(0, PARTITIONS, 1, PARTITIONS)
got = {
    "mapInArrow": most_at_once(lambda: df.mapInArrow(in_mapInArrow, "id long").collect()),
    "pandas UDF": most_at_once(lambda: df.select(in_pandas_udf("id")).collect()),
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}: partitions at once, of {PARTITIONS}: {got}")
sys.exit(not (got["mapInArrow"] == PARTITIONS and got["pandas UDF"] <= 2))
PYTHON
