"""Batches of pandas, as Spark gives them to an iterator of Series: rows of Python values, and results back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from .._errors.exceptions import AsyncUDFError
from .rows import values_of


def is_batch(columns: Sequence[Any]) -> bool:
    return bool(columns) and all(isinstance(one, (pd.Series, pd.DataFrame)) for one in columns)


def bytes_of(column: Any) -> int:
    used = column.memory_usage(index=False, deep=True)
    return int(used if isinstance(column, pd.Series) else used.sum())


def values_of_series(column: Any, what: str, is_whole: bool) -> list[Any]:
    """The values of a Series, or of a DataFrame as dicts; None where one is missing.

    `is_whole`: floats are whole numbers that pandas has made floats, as beside a NULL; else an AsyncUDFError.
    """
    found: list[Any] = column.astype(object).where(column.notna(), None)
    if isinstance(column, pd.DataFrame):
        return [_plain(row) for row in found.to_dict("records")]  # type: ignore[attr-defined]
    values = [_plain(value) for value in found]
    if not (is_whole and column.dtype.kind == "f"):
        return values
    try:
        return [None if value is None else _whole(value) for value in values]
    except ValueError as error:
        raise AsyncUDFError(f"{what} is annotated int, and is a column of floats that has {error}") from None


def _whole(value: float) -> int:
    if not value.is_integer():  # nor is inf
        raise ValueError(value)
    return int(value)


def _plain(value: Any) -> Any:
    """A value as in a column: made of lists, dicts, and classes of the standard library."""
    match value:
        case _ if value is pd.NaT or value is pd.NA:  # in a list; that of a column is None
            return None
        case pd.Timestamp():
            return value.to_pydatetime(warn=False)
        case pd.Timedelta():
            return value.to_pytimedelta()
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case tuple() if names := getattr(value, "__fields__", None):  # a Row of Spark
            return {name: _plain(item) for name, item in zip(names, value, strict=True)}
        case _ if hasattr(value, "tolist"):  # NumPy's
            if (unit := str(getattr(value, "dtype", ""))).endswith("[ns]"):  # for which Python has no class
                value = value.astype(unit.replace("[ns]", "[us]"))
            return _plain(value.tolist())
        case _:
            return value


def as_pandas(array: pa.Array) -> Any:
    """A Series, or a DataFrame for a struct. Values of other nested types are lists and dicts, as Spark takes them."""
    if not pa.types.is_struct(array.type):
        return _series(array)
    return pd.DataFrame({field.name: _series(part) for field, part in zip(array.type, array.flatten(), strict=True)})


def _series(array: pa.Array) -> Any:
    """Whole numbers stay whole beside a NULL, and a moment in a list keeps its zone."""
    if pa.types.is_nested(array.type):
        return pd.Series(values_of(array), dtype=object)
    return array.to_pandas(integer_object_nulls=True)
