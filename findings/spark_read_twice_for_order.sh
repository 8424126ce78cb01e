#!/usr/bin/env bash
# pyspark 4.3.0 with pyarrow 26.0.1 on Java 17, run on 2026-11-29.
# Expected: one action reads its DataFrame once, and a checkpoint more so: it is there to cut the lineage.
# Seen: orderBy and repartitionByRange run a mapInArrow below them twice for each row, as Spark first samples the values
#   to find the bounds of its partitions; rdd.zipWithIndex twice, to count the partitions; rdd.sortBy three times; and
#   checkpoint(eager=False) twice, once for the action and once for the file. orderBy with a limit, sortWithinPartitions
#   and an eager checkpoint run it once.
# Matters: sorting the answers of a service before they are written asks the service for each row twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python"
timeout -k 10 240 "$PYSPARK_PYTHON" - "$folder" 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

ROWS = 100
seen = Path(sys.argv[1], "seen")
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setCheckpointDir(str(Path(sys.argv[1], "checkpoints")))


def counted(batches):
    for batch in batches:
        with seen.open("a") as file:
            file.write("." * batch.num_rows)
        yield batch


def rows_read(read):
    seen.write_text("")
    assert len(read(spark.range(0, ROWS, 1, 2).mapInArrow(counted, "id long"))) in (3, ROWS)
    return len(seen.read_text()) / ROWS


got = {
    "orderBy": rows_read(lambda df: df.orderBy("id").collect()),
    "repartitionByRange": rows_read(lambda df: df.repartitionByRange(2, "id").collect()),
    "rdd.zipWithIndex": rows_read(lambda df: df.rdd.zipWithIndex().collect()),
    "rdd.sortBy": rows_read(lambda df: df.rdd.sortBy(lambda row: row[0]).collect()),
    "checkpoint(eager=False)": rows_read(lambda df: df.checkpoint(eager=False).collect()),
    "orderBy, limit": rows_read(lambda df: df.orderBy("id").limit(3).collect()),
    "sortWithinPartitions": rows_read(lambda df: df.sortWithinPartitions("id").collect()),
    "checkpoint()": rows_read(lambda df: df.checkpoint().collect()),
}
spark.stop()
print(f"pyspark {pyspark.__version__}: times that each row is read: {got}")
sys.exit(list(got.values()) != [2, 2, 2, 3, 2, 1, 1, 1])
PYTHON
