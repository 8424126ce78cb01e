"""The columns that users give to operators: by name, or as plain references such as `sf.col("id")` and `df.id`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from .._errors.exceptions import FunctionError
from .._policies.checks import unknown_name
from .._text.safe import safe_repr
from .types import active_session


def column_position(column: str, names: Sequence[str]) -> int:
    """The position of the column of that name, which may be in `backticks`.

    Raises:
        FunctionError: there is no such column, or several.
    """
    # Ignore case, as Spark does; if two names differ in case only, take the exact one.
    for wanted in (column, _literally(column)):
        exact = [i for i, name in enumerate(names) if name == wanted]
        found = exact or [i for i, name in enumerate(names) if name.lower() == wanted.lower()]
        if len(found) > 1:
            raise FunctionError(f"column {column!r} is there {len(found)} times; rename all but one")
        if found:
            return found[0]
    struct, _, rest = column.partition(".")
    if rest and struct.lower() in (name.lower() for name in names):
        field = column.rpartition(".")[2]
        raise FunctionError(
            f"unknown column {column!r}; for a field of {struct!r} add a column first: "
            f"df.withColumn({field!r}, sf.col({column!r}))"
        )
    raise FunctionError(unknown_name("column", column, names))


def _literally(name: str) -> str:
    """The name of a column without the backticks in which Spark reads any name literally."""
    return name[1:-1].replace("``", "`") if re.fullmatch(r"`(?:[^`]|``)+`", name) else name


def column_names(columns: Sequence[Any], schema: spark.StructType, df: DataFrame | None) -> tuple[str, ...]:
    """The names of the columns that are given.

    Args:
        schema: all columns that there are.
        df: the DataFrame that has them, if there is one: `df.id` is certain then.

    Raises:
        FunctionError: one is neither a name nor a plain reference to a column.
    """
    return tuple(column if isinstance(column, str) else _name(column, schema, df) for column in columns)


def _name(column: Any, schema: spark.StructType, df: DataFrame | None) -> str:
    name = None
    if hasattr(column, "_jc"):
        name = _classic_name(column, schema, df)
    elif type(expression := getattr(column, "_expr", None)).__name__ == "ColumnReference":
        name = _connect_name(expression, df)
    elif isinstance(column, (list, tuple)):
        raise FunctionError(f"columns are given one by one and not as {safe_repr(column)}: put a * before it")
    if name is None:
        raise FunctionError(
            f"{safe_repr(column)} is not known to be a column as it is: give the name of one, such as "
            f"{schema.names[0]!r}; something else needs a column first: withColumn"
        )
    return name


def _classic_name(column: Any, schema: spark.StructType, df: DataFrame | None) -> str | None:
    # Spark itself finds what is meant. An attribute that goes through a `select` keeps its number; all else gets one.
    try:
        session = active_session()
        if df is None:
            assert session is not None
            df = session.createDataFrame([], schema)
        (found,) = _attributes(df.select(column))
        return found.name() if any(own.exprId().equals(found.exprId()) for own in _attributes(df)) else None
    except (PySparkException, ValueError):  # there is no such column, or these are several
        return None


def _attributes(df: Any) -> list[Any]:
    output = df._jdf.queryExecution().analyzed().output()
    return [output.apply(number) for number in range(output.size())]


def _connect_name(reference: Any, df: Any) -> str | None:
    # The client knows of a reference which DataFrame it was taken from, if any.
    if reference._plan_id is not None and (df is None or df._plan._plan_id != reference._plan_id):
        return None
    name = _literally(reference._unparsed_identifier)
    return name if name != reference._unparsed_identifier or "." not in name else None
