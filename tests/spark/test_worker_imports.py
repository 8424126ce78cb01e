"""A worker of an operator holds no pandas, unless a function of vectors or a type asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.spark

# One task at a time, so that all queries run in one worker. It is asked afterwards, by a plain function.
PROGRAM = """
import array, json
import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from asyncudf import AsyncStream, RetryStrategy, async_pandas_udf, ordered_wait

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.sql(
    "SELECT id, IF(id % 2 = 0, 'a', NULL) AS text, id * 1.5D AS x, DATE'2026-01-02' AS day, "
    "TIMESTAMP'2026-01-02 03:04:05' AS t, array(DATE'2026-01-02', NULL) AS days, map('k', id) AS m "
    "FROM range(0, 4, 1, 1)"
)

def told(batches):
    import os, sys
    for batch in batches:
        flags = [os.getpid(), "asyncudf" in sys.modules, "tenacity" in sys.modules, "pandas" in sys.modules]
        yield pa.RecordBatch.from_arrays(
            [pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(array.array("q", flags))])], ["n"]
        )

def worker():
    pid, *libraries = [row.n for row in spark.range(1).mapInArrow(told, "n long").collect()]
    names = ("asyncudf", "tenacity", "pandas")
    return pid, [name for name, is_there in zip(names, libraries) if is_there]

async def same(value):
    return value

failed = []

async def once(value):
    if value not in failed:
        failed.append(value)
        raise ConnectionError("busy")
    return value

async def refused(value):
    raise ValueError("no")

@async_pandas_udf("long")
async def of_series(values: pd.Series) -> pd.Series:
    return values

TYPES = {
    "id": "long", "text": "string", "x": "double", "day": "date", "t": "timestamp", "days": "array<date>",
    "m": "map<string,long>",
}
for column, data_type in TYPES.items():
    results = ordered_wait(rows, async_pandas_udf(data_type)(same), column).collect()
    assert [row[-1] for row in results] == [row[column] for row in results], results
said = {"types": worker()}

@async_pandas_udf("a long, b array<string>")
async def struct(value):
    return {"a": value, "b": [None, "x"]}

ordered_wait(rows, struct, "id").collect()
said["a struct"] = worker()
ordered_wait(rows, async_pandas_udf("long", on_error="null")(refused), "id").collect()
ordered_wait(rows, async_pandas_udf("long", on_error="capture")(refused), "id").collect()
ordered_wait(rows, async_pandas_udf("string", on_null_input="null")(same), "text").collect()
said["errors and NULL"] = worker()
stream = AsyncStream(rows).unordered_wait(async_pandas_udf("y long", on_error="dead_letter")(refused), "id")
stream.filter(lambda row: row["y"]).to_df().collect()
said["a chain"] = worker()
ordered_wait(rows, async_pandas_udf("long", retry=RetryStrategy.fixed_delay(2, 0.0))(once), "id").collect()
said["retries"] = worker()
ordered_wait(rows, of_series, "id").collect()
said["vectors"] = worker()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert not done.returncode, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_ran_in_one_worker(said: dict[str, Any]) -> None:
    assert len({pid for pid, _ in said.values()}) == 1


@pytest.mark.parametrize("what", ["types", "a struct", "errors and NULL", "a chain"])
def test_an_operator_needs_neither_pandas_nor_tenacity(said: dict[str, Any], what: str) -> None:
    assert said[what][1] == ["asyncudf"]


def test_retries_bring_tenacity_alone(said: dict[str, Any]) -> None:
    assert said["retries"][1] == ["asyncudf", "tenacity"]


def test_a_function_of_vectors_brings_pandas(said: dict[str, Any]) -> None:
    assert "pandas" in said["vectors"][1]
