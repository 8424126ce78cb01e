#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0, run on 2026-11-29.
# Expected: a Python function declared with asNondeterministic() is called once a row, and the value that a filter looked
#   at is the value that the query returns. Spark keeps to both.
# Seen: when a filter or a sort looks at a field of its struct, the function is called twice for each row: once for the
#   filter, once for the column. `where("s.r > 0.5")` returns rows with s.r below 0.5. A plain double is not touched,
#   nor is a filter over the whole struct.
# Matters: a struct of answer and error is how a column that calls a service reports failures, and filtering on its
#   field pays each call twice and can let a failed row pass as a good one.
# Source: the plan has the function twice in one projection, the second time as __datafusion_extracted_1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - "$folder/calls" <<'PYTHON'
import os
import random
import sys

import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 2000
CALLS = sys.argv[1]  # this file gets a byte a call
open(CALLS, "wb").close()


def answer(key):
    with open(CALLS, "ab") as file:
        file.write(b".")
    return {"r": random.random()}


def number(key):
    return answer(key)["r"]


def run(df, value):
    before = os.path.getsize(CALLS)
    values = [value(row) for row in df.collect()]
    return os.path.getsize(CALLS) - before, sum(v <= 0.5 for v in values)


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
keys = spark.range(0, ROWS, 1, 1)
structs = keys.withColumn("s", sf.udf(answer, "struct<r: double>").asNondeterministic()("id"))
numbers = keys.withColumn("r", sf.udf(number, "double").asNondeterministic()("id"))
got = {
    "double, where r > 0.5": run(numbers.where("r > 0.5"), lambda row: row.r),
    "struct, where s is not null": run(structs.where("s is not null"), lambda row: 1.0),
    "struct, orderBy s.r": run(structs.orderBy("s.r"), lambda row: 1.0),
    "struct, where s.r > 0.5": run(structs.where("s.r > 0.5"), lambda row: row.s.r),
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}, {ROWS} rows")
for what, (calls, wrong) in got.items():
    print(f"{what}: {calls} calls, {wrong} rows with a value that the filter leaves out")
(*others, (calls, wrong)) = got.values()
sys.exit(others != [(ROWS, 0), (ROWS, 0), (2 * ROWS, 0)] or calls != 2 * ROWS or wrong < 100)
PYTHON
