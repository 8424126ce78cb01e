#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: a query with limit(5) reads a batch or two more than it needs, with a filter in between as without one.
# Seen: with a filter between mapInArrow and limit(5) that 63 of 64 rows pass, the function makes more than 8,000 rows
#   before the query ends, where it makes 64 rows at a time; without the filter a few of these batches.
# Matters: whoever looks at five rows of a function that pays for each row pays for thousands.
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

# Functions run in this process: they find what they share by the name of a module.
shared = sys.modules["shared"] = types.ModuleType("shared")


def in_small_batches(batches):
    import time

    import shared

    for batch in batches:
        for start in range(0, batch.num_rows, 64):
            part = batch.slice(start, 64)
            time.sleep(0.002)  # a service's time for 64 rows
            shared.made += part.num_rows
            yield part


def rows_made(query):
    shared.made = 0
    assert len(query.collect()) == 5
    return shared.made


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
made = spark.range(0, 100_000, 1, 1).mapInArrow(in_small_batches, "id long")
alone, filtered = rows_made(made.limit(5)), rows_made(made.where("id % 64 > 0").limit(5))
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}: rows that the function made for limit(5): {alone}; with a filter between: {filtered}")
sys.exit(not (alone < 2_000 and filtered > 8_000))
PYTHON
