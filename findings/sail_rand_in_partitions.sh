#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0, run on 2026-11-30.
# Expected: rand(), and a sample, have other numbers in each partition, as on Spark, where the number of the partition is
#   a part of the seed.
# Seen: all partitions have the same numbers, with a seed and without one. sample(0.5) and where(rand() < 0.5) take the
#   rows at the same places of each partition.
# Matters: rows that are written by day have a partition for each day. A sample of them has the same hours of all days, and
#   a delay or a key made by rand() falls together for as many rows as there are partitions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

PARTITIONS, EACH = 4, 8
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
df = spark.range(0, PARTITIONS * EACH, 1, PARTITIONS)


def numbers(column):
    rows = sorted(df.select("id", column.alias("r")).collect())
    return [[row.r for row in rows[start : start + EACH]] for start in range(0, len(rows), EACH)]


def places(frame):
    """The places of the rows in their partitions."""
    ids = sorted(row.id for row in frame.collect())
    return [[i % EACH for i in ids if i // EACH == partition] for partition in range(PARTITIONS)]


got = {
    "rand(7)": numbers(sf.rand(7)),
    "rand()": numbers(sf.rand()),
    "randn(7)": numbers(sf.randn(7)),
    "sample(0.5, seed=7)": places(df.sample(0.5, seed=7)),
    "sample(0.5)": places(df.sample(0.5)),
    "where(rand() < 0.5)": places(df.where(sf.rand() < 0.5)),
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}; {PARTITIONS} partitions of {EACH} rows")
for what, parts in got.items():
    print(f"{what}: the same in all partitions: {parts == parts[:1] * PARTITIONS}; {[round(one, 2) for one in parts[0]]}")
sys.exit(any(parts != parts[:1] * PARTITIONS for parts in got.values()))
PYTHON
