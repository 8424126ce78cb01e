#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: describe() and summary() read their DataFrame once and compute all figures of it, as on Spark.
# Seen: describe() runs a mapInArrow below it five times for each row and summary() eight times: once for each figure.
#   tail(2) runs it twice. summary("count") and a single agg() of the same figures run it once.
# Matters: the first look at the results of a service asks the service for all of them five more times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import sys
import types

import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 100
# Functions run in this process: they find what they share by the name of a module.
seen = sys.modules["seen"] = types.ModuleType("seen")


def counted(batches):
    import seen

    for batch in batches:
        seen.rows.append(batch.num_rows)
        yield batch


def rows_read(read):
    seen.rows = []  # of several threads
    read()
    return sum(seen.rows) / ROWS


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
df = spark.range(0, ROWS, 1, 1).mapInArrow(counted, "id long")
figures = [figure("id") for figure in (sf.count, sf.mean, sf.stddev, sf.min, sf.max)]
got = {
    "describe()": rows_read(lambda: df.describe().collect()),
    "summary()": rows_read(lambda: df.summary().collect()),
    "tail(2)": rows_read(lambda: df.tail(2)),
    "summary('count')": rows_read(lambda: df.summary("count").collect()),
    "agg(...)": rows_read(lambda: df.agg(*figures).collect()),
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}: times that each row is read: {got}")
sys.exit(list(got.values()) != [5, 8, 2, 1, 1])
PYTHON
