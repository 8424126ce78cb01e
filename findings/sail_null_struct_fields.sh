#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: where a struct column `w` is NULL, `w.a` is NULL: SQL says so, and Spark does so.
# Seen: for a struct that pyarrow made of Python values, which is what a UDF returns and mapInArrow gives, `w is null` is
#   true and `w.a is null` false: the number is 0.0 and the string empty. An average over `w.a` counts the zeros in.
# Matters: a row for which a service had no answer looks like an answer of 0.0, and passes `where("w.a is not null")`.
# Source: pa.array([None, {...}], struct) marks the struct's row as NULL and its children's rows as valid; Sail reads a
#   field from the child alone. With children made NULL by the function itself the answer is right.
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

W = pa.struct([("a", pa.float64()), ("t", pa.string())])
STRUCT = "struct<a: double, t: string>"


def answers(batches):
    for batch in batches:
        values = [None if k == 1 else {"a": 2.0, "t": "x"} for k in batch.column("k").to_pylist()]
        yield pa.RecordBatch.from_arrays([batch.column("k"), pa.array(values, W)], names=["k", "w"])


def answers_with_null_children(batches):
    for batch in batches:
        known = [k != 1 for k in batch.column("k").to_pylist()]
        children = [pa.array([2.0 if k else None for k in known]), pa.array(["x" if k else None for k in known])]
        struct = pa.StructArray.from_arrays(children, fields=list(W), mask=pa.array([not k for k in known]))
        yield pa.RecordBatch.from_arrays([batch.column("k"), struct], names=["k", "w"])


def answer(k):
    return None if k == 1 else {"a": 2.0, "t": "x"}


def row_without_an_answer(df):
    row = df.where("k = 1").selectExpr("w is null", "w.a", "w.t").first()
    return (*row, df.where("w.a is not null").count(), df.selectExpr("avg(w.a)").first()[0])


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
keys = spark.range(0, 2, 1, 1).withColumnRenamed("id", "k")
got = {
    "udf": row_without_an_answer(keys.withColumn("w", sf.udf(answer, STRUCT)("k"))),
    "mapInArrow": row_without_an_answer(keys.mapInArrow(answers, f"k long, w {STRUCT}")),
    "mapInArrow, NULL children": row_without_an_answer(
        keys.mapInArrow(answers_with_null_children, f"k long, w {STRUCT}")
    ),
}
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}, pyarrow {pa.__version__}; two rows, one has a NULL struct")
for what, (is_null, a, t, passing, average) in got.items():
    print(f"{what}: w is null {is_null}, w.a {a!r}, w.t {t!r}; w.a is not null in {passing} rows; avg(w.a) {average}")
sys.exit(list(got.values()) != [(True, 0.0, "", 2, 1.0), (True, 0.0, "", 2, 1.0), (True, None, None, 1, 2.0)])
PYTHON
