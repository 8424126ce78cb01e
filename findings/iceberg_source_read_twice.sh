#!/usr/bin/env bash
# pyspark 3.5.9 with Iceberg 1.10.2 (the JAR in snowpark-connect-deps-iceberg 1.0.2), run on 2026-11-29.
# Expected: one write reads its source once, so a function in the source's mapInArrow gets each row once.
# Seen: twice, without a word, in a MERGE with copy-on-write (what a new table has) and in an append to a table with WRITE
#   ORDERED BY. Once in a MERGE with merge-on-read, in one with the first setting below off, in an append to a table
#   without an order, and in one with `write.distribution-mode` none or hash.
# Matters: a function that calls a paid service pays twice; if its answers change, the two readings do not agree.
# Source: rowLevelOperationGroupFilter reads the source once more, to find the files that the MERGE touches; an ordered
#   write samples its source to find the ranges of a range partitioning, then reads it again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 900 "$folder/venv/bin/pip" install --quiet --no-compile \
  pyspark==3.5.9 snowpark-connect-deps-iceberg==1.0.2 pyarrow==19.0.1 pandas==2.3.3 numpy==1.26.4 setuptools==80.9.0
cd "$folder"
timeout -k 10 400 "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import os
import sys
from pathlib import Path

os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
import pyspark
import snowpark_connect_deps_iceberg
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 50
FOLDER = Path(sys.argv[1])
CALLS = f"{FOLDER}/calls"  # this file gets a byte a row
Path(CALLS).touch()
(JAR,) = Path(snowpark_connect_deps_iceberg.__path__[0]).glob("jars/iceberg-spark-runtime-3.5_2.12-1.10.2.jar")
GROUP_FILTER = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
SETTINGS = {
    "spark.jars": JAR,
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": f"{FOLDER}/warehouse",
}


def answers(batches):
    for batch in batches:
        with open(CALLS, "ab") as file:
            file.write(b"." * batch.num_rows)
        yield batch


def table(number, *properties):
    name = f"ice.db.t{number}"
    spark.sql(f"CREATE TABLE {name} (id bigint, p bigint) USING iceberg")
    spark.sql(f"INSERT INTO {name} SELECT id, 0L FROM range(40)")
    for property in properties:
        spark.sql(f"ALTER TABLE {name} {property}")
    return name


def calls(write, name):
    before = os.path.getsize(CALLS)
    write(name)
    return os.path.getsize(CALLS) - before


def merge(name):
    changes = "WHEN MATCHED THEN UPDATE SET p = s.p WHEN NOT MATCHED THEN INSERT *"
    spark.sql(f"MERGE INTO {name} t USING s ON t.id = s.id {changes}")


def merge_without_filter(name):
    spark.conf.set(GROUP_FILTER, "false")
    merge(name)


def append(name):
    source.writeTo(name).append()


spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
keys = spark.range(10, 10 + ROWS, 1, 2).withColumn("p", sf.lit(1).cast("bigint"))
source = keys.mapInArrow(answers, "id bigint, p bigint")
source.createOrReplaceTempView("s")
ORDERED = "WRITE ORDERED BY id"
got = {
    "MERGE, copy-on-write": calls(merge, table(1)),
    "MERGE, merge-on-read": calls(merge, table(2, "SET TBLPROPERTIES ('write.merge.mode'='merge-on-read')")),
    f"MERGE, copy-on-write, {GROUP_FILTER}=false": calls(merge_without_filter, table(3)),
    "append": calls(append, table(4)),
    f"append, {ORDERED}": calls(append, table(5, ORDERED)),
    f"append, {ORDERED}, distribution none": calls(
        append, table(6, ORDERED, "SET TBLPROPERTIES ('write.distribution-mode'='none')")
    ),
    f"append, {ORDERED}, distribution hash": calls(
        append, table(7, ORDERED, "SET TBLPROPERTIES ('write.distribution-mode'='hash')")
    ),
}
spark.stop()
print(f"pyspark {pyspark.__version__}, {JAR.name}: rows that the function gets, {ROWS} in the source")
for what, count in got.items():
    print(f"{what}: {count}")
sys.exit(list(got.values()) != [2 * ROWS, ROWS, ROWS, ROWS, 2 * ROWS, ROWS, ROWS])
PYTHON
