#!/usr/bin/env bash
# apache-flink 2.3.0, run on 2026-11-29.
# Expected: an `async def` under @udf in the Table API gives each row the answer to its own argument.
# Seen: without an error rows get the answer for a later row of their bundle: x * 2 over 1 to 6 is 10 or 12 for most;
#   which rows are wrong changes from run to run. With a bundle size of 1 the answers are right.
# Matters: to move an enrichment between Flink and Spark one compares the two, and Flink's column is the wrong one. Its
#   AsyncDataStream has no such fault.
# Source: FLINK-39532.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 900 "$folder/venv/bin/pip" install --quiet --no-compile apache-flink==2.3.0
cd "$folder"
timeout -k 10 300 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import importlib.metadata
import sys

from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.expressions import col
from pyflink.table.udf import udf

environment = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
environment.get_config().set("parallelism.default", "1")
environment.get_config().set("python.executable", sys.executable)


@udf(result_type=DataTypes.BIGINT())
async def twice(x):
    await asyncio.sleep(0.01)
    return x * 2


def answers(bundle_size=None):
    if bundle_size:
        environment.get_config().set("python.fn-execution.bundle.size", bundle_size)
    row = DataTypes.ROW([DataTypes.FIELD("x", DataTypes.BIGINT())])
    table = environment.from_elements([(x,) for x in range(1, 7)], row)
    with table.select(col("x"), twice(col("x"))).execute().collect() as rows:
        return dict(sorted(tuple(row) for row in rows))


got = {"as it is": answers(), "python.fn-execution.bundle.size 1": answers("1")}
print(f"apache-flink {importlib.metadata.version('apache-flink')}: x and what `async def twice(x)` gives")
for what, rows in got.items():
    print(f"{what}: {rows}")
RIGHT = {x: 2 * x for x in range(1, 7)}
as_it_is, one_by_one = got.values()
of_later_rows = [x for x, answer in as_it_is.items() if answer in RIGHT.values() and answer > RIGHT[x]]
print(f"rows with the answer for a later row: {of_later_rows}")
sys.exit(not of_later_rows or one_by_one != RIGHT)
PYTHON
