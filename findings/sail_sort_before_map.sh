#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: a function given to mapInArrow or mapInPandas directly after orderBy or sortWithinPartitions reads the rows
#   sorted, as it does on Spark, where this is the usual way to go through the rows of a key in order.
# Seen: it reads them unsorted, without a word: the plan has no sort. Collected without a function the same frame is
#   sorted, and so it is for the function if a limit stands between, even one that all rows fit in.
# Matters: a job that calls a service for the changes of an account in order, or sums up a session row by row, gives
#   other answers on Sail, and only comparing values shows it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import pyarrow as pa
import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def order_seen(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"seen": [str(batch.column("k").to_pylist())]})


def order_seen_by_pandas(frames):
    for frame in frames:
        yield frame.assign(seen=str(frame.k.tolist()))[["seen"]].head(1)


def seen(df):
    return [row.seen for row in df.mapInArrow(order_seen, "seen string").collect()]


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
df = spark.range(0, 8, 1, 1).select(((sf.col("id") * 5) % 8).alias("k"))
got = {
    "orderBy, collected": [str([row.k for row in df.orderBy("k").collect()])],
    "orderBy, limit(100), mapInArrow": seen(df.orderBy("k").limit(100)),
    "orderBy, mapInArrow": seen(df.orderBy("k")),
    "sortWithinPartitions, mapInArrow": seen(df.sortWithinPartitions("k")),
    "orderBy, mapInPandas": [r.seen for r in df.orderBy("k").mapInPandas(order_seen_by_pandas, "seen string").collect()],
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}")
for what, rows in got.items():
    print(f"{what}: {rows}")
SORTED, AS_THEY_WERE = ["[0, 1, 2, 3, 4, 5, 6, 7]"], ["[0, 5, 2, 7, 4, 1, 6, 3]"]
sys.exit(list(got.values()) != [SORTED, SORTED, AS_THEY_WERE, AS_THEY_WERE, AS_THEY_WERE])
PYTHON
