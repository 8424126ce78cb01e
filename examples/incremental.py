"""Enrich a table every day, and call the service only for rows that are new or have changed.

    python examples/incremental.py [--folder FOLDER]

The table says what its rows were enriched from, so an anti-join finds what is new or has changed. Their results are
written to a folder first, and merged from there: a MERGE may read its source twice, and must not call twice. A store
keeps each answer as soon as it is there: a run that is killed goes on where it was, and a text that comes back with
another id costs nothing.

This program runs without a table format, so its merge is a join that is written anew. With Delta or Iceberg it is

    MERGE INTO enriched USING staged ON enriched.id = staged.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""

from __future__ import annotations

import asyncio
import os
import tempfile

import _session
from pyspark.sql import DataFrame, SparkSession

from asyncudf import ResultStore, async_pandas_udf, monitor

COLUMNS = "id int, text string"
DAYS = {
    "Monday": [(1, "good"), (2, "bad"), (3, "fine")],
    "Tuesday": [(1, "good"), (2, "not bad"), (3, "fine"), (4, "new")],  # one has changed, one is new
    "Wednesday": [(1, "good"), (2, "not bad"), (3, "fine"), (4, "new"), (5, "bad")],  # the store knows this text
}


@async_pandas_udf("int", capacity=50, version="1")  # another version calls for all rows that it is asked for
async def score(text: str) -> int:
    await asyncio.sleep(0.01)  # stands for a call of a service
    return len(text)


def enrich(spark: SparkSession, today: DataFrame, table: str, folder: str, day: str) -> None:
    """Bring the table up to date with the rows of today."""
    enriched = (
        spark.read.parquet(table) if os.path.exists(table) else spark.createDataFrame([], f"{COLUMNS}, score int")
    )
    # Equal in all columns that the function reads; NULL is equal to NULL.
    same = [today.id == enriched.id, today.text.eqNullSafe(enriched.text)]
    changed = today.join(enriched, same, "left_anti")
    asked = score.with_options(store=ResultStore.disk(f"{folder}/answers"))
    staged = f"{folder}/staged-{day}"
    with monitor(spark) as run:
        changed.withColumn("score", asked("text")).write.mode("overwrite").parquet(staged)  # calls the service
    results = spark.read.parquet(staged)
    merged = enriched.join(results, "id", "left_anti").unionByName(results)
    merged.write.parquet(f"{table}.new")  # a table format does this in one step, and for all who read meanwhile
    if os.path.exists(table):
        os.rename(table, f"{table}.before-{day}")
    os.rename(f"{table}.new", table)
    calls = sum(function["calls"] for function in run.metrics["functions"])
    print(f"{day}: {today.count()} rows, {results.count()} new or changed, {calls} calls", flush=True)


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--folder", help="where the table and the answers are; a temporary one unless given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(args.folder or temporary)
        spark = _session.session()
        for day, rows in DAYS.items():
            enrich(spark, spark.createDataFrame(rows, COLUMNS), f"{folder}/enriched", folder, day)
        spark.read.parquet(f"{folder}/enriched").orderBy("id").show()
        spark.stop()


if __name__ == "__main__":
    main()
