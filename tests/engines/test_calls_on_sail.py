"""How often Sail calls a function in queries of many shapes: calls_on_sail.md beside this file, line by line.

It fails when Sail calls more often, or less: then the page, or what is warned of, has to change.
"""

from __future__ import annotations

import logging
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from asyncudf import ResultStore, async_pandas_udf, ordered_wait

pytest.importorskip("pysail", reason="Sail is not installed: scripts/test --sail")
TABLE = Path(__file__).with_name("calls_on_sail.md")
ONCE, TWICE = (
    re.findall(r"^\| `(.*)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", part, re.MULTILINE)
    for part in TABLE.read_text("utf-8").split("## The query reads it twice")
)
ROWS = 20
FORMS = ("column", "store", "deterministic", "operator")
OPTIONS = {"column": {}, "store": {"store": ResultStore.executor()}, "deterministic": {"deterministic": True}}
called: Any = sys.modules.setdefault("called_by_sail", types.ModuleType("called_by_sail"))


async def look(key: int) -> dict[str, Any]:
    from called_by_sail import keys  # type: ignore[import-not-found]

    keys.append(key)
    return {"a": float(key), "b": f"b{key % 4}", "n": [1, 2]}


def form(name: str, query: str) -> Callable[[DataFrame], DataFrame]:
    """Adds the function's results to a DataFrame; what another query has stored does not count."""
    f = async_pandas_udf(look, "a double, b string, n array<int>", version=query, **OPTIONS.get(name, {}))
    if name == "operator":
        return lambda df: ordered_wait(df, f, "key", as_="r")
    return lambda df: df.withColumn("r", f("key"))


def calls(spark: Any, query: str, name: str) -> list[int]:
    """The keys that the function was called for."""
    df = spark.range(0, ROWS, 1, 1).selectExpr("id AS key", "id % 3 AS part")
    call = form(name, query)
    w = call(df)
    df.createOrReplaceTempView("df")
    w.createOrReplaceTempView("w")
    known = {"df": df, "w": w, "call": call, "sf": sf, "sql": spark.sql, "by_part": Window.partitionBy("part")}
    called.keys = []
    found = eval(query, known)
    for _ in range(1 + query.endswith(".cache()")):
        assert found.collect()
    return called.keys  # type: ignore[no-any-return]


@pytest.mark.parametrize("line", ONCE + TWICE, ids=lambda line: line[0])
def test_sail_calls_as_often_as_the_table_says(spark: Any, line: tuple[str, ...]) -> None:
    query, *told = line
    counted = {name: calls(spark, query, name) for name in FORMS}
    assert [str(len(keys)) for keys in counted.values()] == told
    assert len(counted["store"]) == len({*counted["store"]}), "this is why nothing is warned of"
    assert line in TWICE or len(counted["operator"]) == len({*counted["operator"]})


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_may_call_twice_for_a_row_is_warned_of(
    spark: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Unless it is allowed to."""
    form(name, "a warning")(spark.range(1).withColumnRenamed("id", "key"))
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and one.name == "asyncudf"]
    calls_twice = any(int(line[1 + FORMS.index(name)]) > ROWS for line in ONCE)
    assert len(told) == (calls_twice and name != "deterministic")
