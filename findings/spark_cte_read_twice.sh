#!/usr/bin/env bash
# pyspark 4.3.0, run on 2026-11-29.
# Expected: `WITH c AS (...)` read twice gives the same rows twice; and telling Spark that a Python function is
#   deterministic, which is what it assumes, can only save calls.
# Seen: the CTE runs once only if the function was declared with asNondeterministic(). Otherwise, and with mapInArrow
#   always, it runs once for each reading: of 50 rows joined with themselves none has the same answer on both sides.
# Matters: mapInArrow, the usual way to call a service for whole batches, has no such declaration to make.
# Source: a CTE with a nondeterministic expression is kept as one and computed once, any other one is inlined; the
#   function of mapInArrow does not count as a nondeterministic expression.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 900 "$folder/venv/bin/pip" install --quiet --no-compile pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
cd "$folder"
timeout -k 10 400 "$folder/venv/bin/python" - "$folder/calls" <<'PYTHON'
import os
import random
import sys

os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 50
CALLS = sys.argv[1]  # this file gets a byte a row
open(CALLS, "wb").close()


def answer(key):
    with open(CALLS, "ab") as file:
        file.write(b".")
    return random.random()


def answers(batches):
    for batch in batches:
        keys = batch.column("id")
        yield pa.RecordBatch.from_pydict({"id": keys, "r": [answer(key) for key in keys]})


def run(view, df):
    df.createOrReplaceTempView(view)
    before = os.path.getsize(CALLS)
    query = f"WITH c AS (SELECT * FROM {view}) SELECT count_if(a.r <> b.r) FROM c a JOIN c b USING (id)"
    different = spark.sql(query).first()[0]
    return os.path.getsize(CALLS) - before, different


settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": 1}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
keys = spark.range(0, ROWS, 1, 1)
udf = sf.udf(answer, "double")
got = {
    "udf": run("as_it_is", keys.withColumn("r", udf("id"))),
    "mapInArrow": run("mapped", keys.mapInArrow(answers, "id bigint, r double")),
    "udf with asNondeterministic()": run("declared", keys.withColumn("r", udf.asNondeterministic()("id"))),
}
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # Java ends, before its folder is gone
java.wait(60)
print(f"pyspark {pyspark.__version__}: a CTE of {ROWS} rows joined with itself")
for what, (calls, different) in got.items():
    print(f"{what}: {calls} calls, {different} rows with two different answers")
sys.exit(list(got.values()) != [(2 * ROWS, ROWS), (2 * ROWS, ROWS), (ROWS, 0)])
PYTHON
