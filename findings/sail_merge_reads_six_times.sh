#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0 and pyarrow 26.0.1, run on 2026-11-29.
# Expected: a MERGE into a Delta table reads its source once, or twice where it looks for the files to rewrite first.
# Seen: a MERGE with a WHEN MATCHED or a WHEN NOT MATCHED BY SOURCE clause runs a mapInArrow in its source six times for
#   each row, one that only inserts twice. persist() changes nothing, as Sail keeps nothing; an append runs it once.
# Matters: the usual way to update a table from a service asks that service for each row six times, and pays for it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile pysail==0.7.2 pyspark-client==4.2.0 pandas==2.3.3 pyarrow==26.0.1
timeout -k 10 120 "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
import types

import pysail
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

MERGES = {
    "update": "WHEN MATCHED THEN UPDATE SET *",
    "update and insert": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "delete": "WHEN MATCHED THEN DELETE",
    "delete by source": "WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "insert": "WHEN NOT MATCHED THEN INSERT *",
}
ROWS = 100
# Functions run in this process: they find what they share by the name of a module.
seen = sys.modules["seen"] = types.ModuleType("seen")


def counted(batches):
    import seen

    for batch in batches:
        seen.rows.append(batch.num_rows)
        yield batch


def rows_read(write):
    seen.rows = []  # of several threads
    write()
    return sum(seen.rows) / ROWS


server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
source = spark.range(0, ROWS, 1, 2).mapInArrow(counted, "id long")
source.createOrReplaceTempView("source")
source.persist().createOrReplaceTempView("kept")


def merge(number, clauses, view):
    table = f"target_{number}_{view}"
    spark.sql(f"CREATE TABLE {table} USING delta LOCATION '{sys.argv[1]}/{table}' AS SELECT id FROM range(50)")
    return rows_read(lambda: spark.sql(f"MERGE INTO {table} t USING {view} s ON t.id = s.id {clauses}").collect())


got = {what: merge(number, clauses, "source") for number, (what, clauses) in enumerate(MERGES.items())}
got["update, persisted"] = merge(len(got), MERGES["update"], "kept")
got["append"] = rows_read(lambda: source.write.format("delta").mode("append").save(f"{sys.argv[1]}/appended"))
spark.stop()
server.stop()
print(f"pysail {pysail.__version__}: times that a MERGE reads each row of its source: {got}")
updates = [got.pop(what) for what in ("update", "update and insert", "delete", "delete by source", "update, persisted")]
sys.exit(not (set(updates) == {6} and got == {"insert": 2, "append": 1}))
PYTHON
