#!/usr/bin/env bash
# pyspark 4.3.0 with pandas 2.3.3, run on 2026-11-29.
# Expected: a frame with more columns than the declared fields is refused, wherever the column too many stands.
# Seen: pandas_udf drops it without a word. mapInPandas drops it if it stands last, and if it stands first calls a declared
#   column missing that is there. The same by position (columns 0, 1, 2, as str.split(expand=True) makes them): dropped.
#   Too few columns are an error in both.
# Matters: a text from a service that has one separator more loses its last part in the table, and the job is green.
# Source: verify_pandas_result in pyspark/worker.py compares only as many of the frame's names as there are fields; for
#   pandas_udf each field is taken from the frame by name or position, and nothing else is looked at.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 900 "$folder/venv/bin/pip" install --quiet --no-compile pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
cd "$folder"
timeout -k 10 300 "$folder/venv/bin/python" - <<'PYTHON'
import os
import sys

os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
import pandas as pd
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
SCHEMA = "a string, b string"


def column(text, names):
    df = spark.createDataFrame([(text,)], "leg string")

    @sf.pandas_udf(SCHEMA)
    def split(leg: pd.Series) -> pd.DataFrame:
        parts = leg.str.split("-", expand=True)
        return parts.set_axis(list(names)[: parts.shape[1]], axis=1) if names else parts

    return df.select(split("leg").alias("s")).select("s.*")


def mapped(text, names):
    def split(frames):
        for frame in frames:
            parts = frame.leg.str.split("-", expand=True)
            yield parts.set_axis(list(names)[: parts.shape[1]], axis=1) if names else parts

    return spark.createDataFrame([(text,)], "leg string").mapInPandas(split, SCHEMA)


def outcome(df):
    try:
        return tuple(df.first())
    except PySparkException:
        return "refused"


print(f"pyspark {pyspark.__version__}: what {SCHEMA!r} takes of the columns x, y, z, and of x alone")
seen = {}
for form in (column, mapped):
    for names in ("abc", "cab", ""):
        seen[form.__name__, names] = three, one = outcome(form("x-y-z", names)), outcome(form("x", names))
        what = "pandas_udf" if form is column else "mapInPandas"
        print(f"{what}, columns named {', '.join(names or '012')}: {three}, {one}")
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # Java ends, before its folder is gone
java.wait(60)
by_name = [three for (_, names), (three, _) in seen.items() if names]
by_position = [three for (_, names), (three, _) in seen.items() if not names]
few = {one for _, one in seen.values()}
FIRST, LAST = ("x", "y"), ("y", "z")
sys.exit((by_name, by_position, few) != ([FIRST, LAST, FIRST, "refused"], [FIRST, FIRST], {"refused"}))
PYTHON
