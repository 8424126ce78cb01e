"""The doors through which a query uses a function: each gives a DataFrame's rows with the column `result`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, ordered_wait, unordered_wait
from tests.kit.sail import HAS_SAIL

__all__ = ("DOORS", "IN_ORDER", "through")


def column(df: DataFrame, function: Any, *names: str) -> DataFrame:
    return df.select("*", function(*names).alias("result"))


def sql(df: DataFrame, function: Any, *names: str) -> DataFrame:
    df.createOrReplaceTempView("rows_at_the_door")
    function.register(df.sparkSession, "at_the_door")
    return df.sparkSession.sql(f"SELECT *, at_the_door({', '.join(names)}) AS result FROM rows_at_the_door")


def table(df: DataFrame, function: Any, *names: str) -> DataFrame:
    df.createOrReplaceTempView("rows_at_the_door")
    function.with_options(output_mode="unordered").register(df.sparkSession, "table_at_the_door")
    columns = ", ".join(f"'{name}'" for name in names)
    rows = df.sparkSession.sql(f"SELECT * FROM table_at_the_door(TABLE(rows_at_the_door), {columns})")
    results = rows.columns[len(df.columns) :]  # the fields of a struct are columns
    result = sf.col(results[0]) if len(results) == 1 else sf.struct(*results)
    return rows.select(*df.columns, result.alias("result"))


def ordered(df: DataFrame, function: Any, *names: str) -> DataFrame:
    return ordered_wait(df, function, *names, as_="result")


def unordered(df: DataFrame, function: Any, *names: str) -> DataFrame:
    return unordered_wait(df, function, *names, as_="result")


def chain(df: DataFrame, function: Any, *names: str) -> DataFrame:
    return AsyncStream(df).filter(lambda row: True).ordered_wait(function, *names, as_="result").to_df()


Door = Callable[..., DataFrame]
DOORS: dict[str, Door] = {
    "column": column,
    "SQL function": sql,
    "table function": table,
    "ordered_wait": ordered,
    "unordered_wait": unordered,
    "chain": chain,
}

# Those whose rows stay in order in each partition: Sail promises it for no column.
IN_ORDER = (ordered, chain) if HAS_SAIL else (column, sql, ordered, chain)


def through(*names: str) -> pytest.MarkDecorator:
    """Runs a test at each of these doors, or at all, as its parameter `door`."""
    chosen = names or tuple(DOORS)
    return pytest.mark.parametrize("door", [DOORS[name] for name in chosen], ids=chosen)
