"""The Arrow types of what is kept of an error."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from .._errors.records import ERROR_FIELDS

__all__ = ("capture_type", "error_type")


def capture_type(value: pa.DataType) -> pa.DataType:
    """The type of a result under `on_error="capture"`."""
    return pa.struct([("value", value), ("error", error_type(ERROR_FIELDS))])


def error_type(fields: Mapping[str, str]) -> pa.DataType:
    """The type of the record of an error."""
    # Spark's types are made of the same fields in `_spark`: this room knows Arrow only.
    types = {"string": pa.string(), "integer": pa.int32(), "double": pa.float64()}
    return pa.struct([(name, types[ddl]) for name, ddl in fields.items()])
