#!/usr/bin/env bash
# pysail 0.7.2 with pyspark-client 4.2.0, run on 2026-11-30.
# Expected: orderBy(rand(seed)) shuffles the rows, and with limit(n) draws n of them, as on Spark.
# Seen: all rows keep the order they came in, whatever the seed, and the limit gives the first ones. It is the same for
#   the column r of withColumn("r", rand(seed)) in orderBy("r"), which is not in the order of the numbers it shows. The
#   plan has no sort. An ORDER BY rand() in SQL shuffles, and so does orderBy(hash(...)).
# Matters: a trial of some hundred calls is often drawn in this way, before a job pays for all rows. Here it asks for the
#   oldest rows alone, and says nothing of the others.
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

ROWS = 20
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
df = spark.range(0, ROWS, 1, 1)


def ids(frame):
    return [row.id for row in frame.collect()]


drawn = [ids(df.orderBy(sf.rand(seed)).limit(4)) for seed in (1, 2, 3)]
shuffled = [ids(df.orderBy(sf.rand(seed))) for seed in (1, 2, 3)]
numbered = df.withColumn("r", sf.rand(7)).orderBy("r").collect()
numbers = [row.r for row in numbered]
in_sql = ids(spark.sql(f"SELECT id FROM range(0, {ROWS}, 1, 1) ORDER BY rand()"))
by_hash = ids(df.orderBy(sf.hash("id")))
spark.stop()
server.stop()
as_it_was = [*range(ROWS)]
print(f"pysail {pysail.__version__}; ids 0 to {ROWS - 1}")
print("orderBy(rand(seed)).limit(4), seeds 1, 2, 3:", drawn)
print("orderBy(rand(seed)) keeps the order, seeds 1, 2, 3:", [one == as_it_was for one in shuffled])
print("orderBy('r'), where r is rand(7):", [(row.id, round(row.r, 2)) for row in numbered[:4]], "...")
print("ORDER BY rand() in SQL:", in_sql)
print("orderBy(hash(id)):", by_hash)
keeps = drawn == [[0, 1, 2, 3]] * 3 and shuffled == [as_it_was] * 3
keeps = keeps and [row.id for row in numbered] == as_it_was and numbers != sorted(numbers)
sys.exit(not (keeps and in_sql != as_it_was and by_hash != as_it_was))
PYTHON
