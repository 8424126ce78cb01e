"""The types of Spark, of Arrow and of DDL texts."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as spark

from .._errors.exceptions import FunctionError, OptionError
from .._functions.annotations import UnknownTypeError
from .._functions.side_outputs import OutputTag
from .._text.safe import safe_repr
from ._compat import from_ddl, to_arrow
from .ddl import to_json

__all__ = ("arrow_type", "parsed", "parsed_offline", "side_output_type", "timestamp_type")


def arrow_type(declared: spark.DataType, who: str) -> pa.DataType:
    """Arrow's type for one of Spark's; raises FunctionError if there is none."""
    try:
        return to_arrow(declared)
    except TypeError as error:
        raise FunctionError(f"{who} is declared as {declared}, which Arrow does not know") from error


def parsed(ddl: str) -> spark.DataType:
    """The type that a text declares; read by Spark, or where this thread has no session by ourselves.

    Raises:
        OptionError: it is no text.
        FunctionError: there is no session at all, and only Spark's own parser knows it.
    """
    if not isinstance(ddl, str):
        raise OptionError(f"a type is DDL such as 'temp double, sky string' or a DataType, not {safe_repr(ddl)}")
    if SparkSession.getActiveSession() is not None:
        return from_ddl(ddl)
    try:
        return parsed_offline(ddl, timestamp_type())
    except UnknownTypeError:
        if _session() is not None:
            return from_ddl(ddl)
    raise FunctionError(f"{ddl!r} is no type that can be read without a Spark session; make one first, or correct it")


def _session() -> SparkSession | None:
    try:
        return SparkSession.active()  # also in a thread that has not used it yet
    except PySparkException:
        return None


def timestamp_type() -> str:
    """What `timestamp` means in the DDL of the session: with time zone (the default) or `timestamp_ntz`."""
    session = _session()
    is_ntz = session is not None and session.conf.get("spark.sql.timestampType", None) == "TIMESTAMP_NTZ"
    return "timestamp_ntz" if is_ntz else "timestamp"


def parsed_offline(ddl: str, timestamp: str = "timestamp") -> spark.DataType:
    """The type that a text declares, read without a session; `timestamp` is what that word means.

    Raises:
        UnknownTypeError: only Spark's own parser knows it.
    """
    field = {"name": "result", "type": to_json(ddl, timestamp), "nullable": True, "metadata": {}}
    return spark.StructType.fromJson({"type": "struct", "fields": [field]})["result"].dataType


def side_output_type(tag: OutputTag, timestamp: str = "timestamp") -> pa.DataType:
    """The Arrow type of a side output's rows, on an executor; `timestamp` is what that word means on the driver.

    Raises:
        FunctionError: its schema is a text that only Spark's own parser knows.
    """
    schema = tag.schema
    if not isinstance(schema, spark.DataType):
        try:
            schema = parsed_offline(schema, timestamp)
        except UnknownTypeError:
            raise FunctionError(f"the schema of {tag!r} cannot be read on an executor; give a StructType") from None
    return arrow_type(schema, f"side output {tag.name!r}")
