#!/usr/bin/env bash
# pyspark 4.3.0, run on 2026-11-29.
# Expected: after `df.persist()` and an action that fills the cache, later actions on `df` read the cache.
# Seen: if `df` was collected once before persist(), then collect(), toPandas(), toArrow() and rdd on that same object run
#   the function again each time, while `df.is_cached` is True and `df.select("*")` or a write of `df` read the cache.
#   Persisted before its first action the same frame is served from the cache in all of them.
# Matters: in a notebook one looks at a frame first and persists it then. Each later look pays its calls again.
# Source: a Dataset keeps the physical plan of its first action (a lazy value of its QueryExecution) and persist() does
#   not replace it; what makes a new Dataset is planned anew, and finds the cache.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 900 "$folder/venv/bin/pip" install --quiet --no-compile pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
cd "$folder"
timeout -k 10 300 "$folder/venv/bin/python" - "$folder/calls" <<'PYTHON'
import os
import sys

os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
import pyspark
from pyspark.sql import SparkSession

ROWS = 50
CALLS = sys.argv[1]  # this file gets a byte a row
open(CALLS, "wb").close()


def answers(batches):
    for batch in batches:
        with open(CALLS, "ab") as file:
            file.write(b"." * batch.num_rows)
        yield batch


def calls(action):
    before = os.path.getsize(CALLS)
    action()
    return os.path.getsize(CALLS) - before


def after_persist(df):
    df.persist().count()  # count() plans anew, and fills the cache
    actions = {
        "collect()": df.collect,
        "toPandas()": df.toPandas,
        "toArrow()": df.toArrow,
        "rdd.count()": lambda: df.rdd.count(),
        'select("*").collect()': df.select("*").collect,
        "write to noop": lambda: df.write.format("noop").mode("overwrite").save(),
    }
    seen = {name: calls(action) for name, action in actions.items()}
    return seen, df.is_cached


settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
fresh, collected = (spark.range(0, ROWS, 1, 1).mapInArrow(answers, "id long") for _ in range(2))
collected.collect()
results = {"persisted before its first action": after_persist(fresh), "persisted after a collect()": after_persist(collected)}
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # Java ends, before its folder is gone
java.wait(60)
print(f"pyspark {pyspark.__version__}: rows that the function gets, {ROWS} in the frame")
for what, (seen, is_cached) in results.items():
    print(f"{what} (is_cached {is_cached}): " + ", ".join(f"{name} {count}" for name, count in seen.items()))
(first, _), (second, is_cached) = results.values()
sys.exit(list(first.values()) != [0] * 6 or list(second.values()) != [ROWS] * 4 + [0, 0] or not is_cached)
PYTHON
