"""The types of Spark, of Arrow and of DDL texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as spark

from .._errors.exceptions import FunctionError, OptionError
from .._errors.safe import safe_repr
from .._functions.annotations import UnknownTypeError
from .._functions.side_outputs import OutputTag
from ._compat import TimeType, VariantType, from_ddl, inside, setting, to_arrow
from .objects import with_objects


def arrow_type(declared: spark.DataType, who: str) -> pa.DataType:
    """Arrow's type for one of Spark's, with an `ObjectType` where Arrow does not say all of it.

    Raises:
        FunctionError: there is none; names the way out.
    """
    try:
        return with_objects(to_arrow(declared), declared)
    except (TypeError, ValueError) as error:
        way_out = next((text for kind, text in _INSTEAD if kind in map(type, inside(declared))), "declare another type")
        raise FunctionError(
            f"{who} is declared as {declared.simpleString()}, which Spark takes from no Python function; {way_out}"
        ) from error


_INSTEAD = (
    (spark.CharType, "declare string"),
    (spark.VarcharType, "declare string"),
    (spark.YearMonthIntervalType, "declare int, the number of months, and cast: CAST(n AS INTERVAL MONTH)"),
)


def parsed(ddl: str) -> spark.DataType:
    """The type that a DDL text declares; Spark reads it, or this module where the thread has no session.

    Raises:
        OptionError: it is not a text.
        FunctionError: there is no session at all, and only Spark's own parser knows the type.
    """
    if not isinstance(ddl, str):
        raise OptionError(f"a type is DDL such as 'temp double, sky string' or a DataType, not {safe_repr(ddl)}")
    if SparkSession.getActiveSession() is not None:
        return from_ddl(ddl)
    try:
        return parsed_offline(ddl, timestamp_type())
    except UnknownTypeError:
        if active_session() is not None:
            return from_ddl(ddl)
    raise FunctionError(f"{ddl!r} is no type that can be read without a Spark session; make one first, or correct it")


def active_session() -> SparkSession | None:
    try:
        return SparkSession.active()  # finds it also in a thread that has not used it yet
    except PySparkException:
        return None


def timestamp_type() -> str:
    """What `timestamp` means in the DDL of the session: with time zone (the default) or `timestamp_ntz`."""
    session = active_session()
    is_ntz = session is not None and setting(session, "spark.sql.timestampType") == "TIMESTAMP_NTZ"
    return "timestamp_ntz" if is_ntz else "timestamp"


def parsed_offline(ddl: str, timestamp: str = "timestamp") -> spark.DataType:
    """The type that a DDL text declares, read without a session; `timestamp` is the type that this word means.

    Raises:
        UnknownTypeError: only Spark's own parser knows it.
    """
    field = {"name": "result", "type": to_json(ddl, timestamp), "nullable": True, "metadata": {}}
    return spark.StructType.fromJson({"type": "struct", "fields": [field]})["result"].dataType


def side_output_type(tag: OutputTag, timestamp: str = "timestamp") -> pa.DataType:
    """The Arrow type of a side output's rows, on an executor; `timestamp` is what this word means on the driver.

    Raises:
        FunctionError: the schema is a text that only Spark's own parser knows.
    """
    schema = tag.schema
    if not isinstance(schema, spark.DataType):
        try:
            schema = parsed_offline(schema, timestamp)
        except UnknownTypeError:
            raise FunctionError(f"the schema of {tag!r} cannot be read on an executor; give a StructType") from None
    return arrow_type(schema, f"side output {tag.name!r}")


# pyspark.sql.types reads JSON without a JVM, and DDL only with one. This parser knows the common part of DDL, and reads
# that as Spark does. The rest is left to Spark's parser, where there is a session.
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|'(?:[^'\\]|\\.)*'|[<>(),:])")
_NAMES = {
    "boolean": "boolean", "tinyint": "byte", "byte": "byte", "smallint": "short", "short": "short",
    "int": "integer", "integer": "integer", "bigint": "long", "long": "long", "float": "float", "real": "float",
    "double": "double", "string": "string", "binary": "binary", "date": "date",
    "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz", "void": "void",
}  # fmt: skip
if issubclass(VariantType, spark.DataType):
    _NAMES["variant"] = "variant"
_UNITS = ("year", "month"), ("day", "hour", "minute", "second")


def to_json(ddl: str, timestamp: str = "timestamp") -> Any:
    """The JSON form of a DDL text, as in `pyspark.sql.types.DataType.jsonValue`.

    Args:
        ddl: the text.
        timestamp: the type that `timestamp` means in it, "timestamp" or "timestamp_ntz".

    Raises:
        UnknownTypeError: it is not DDL, or a part of DDL that only Spark's parser knows.

    >>> to_json("array<int>")
    {'type': 'array', 'elementType': 'integer', 'containsNull': True}
    """
    # "temp double, sky string" is a struct without struct<>.
    for parse in (_type, _struct):
        try:
            tokens = _Tokens(ddl, timestamp)
            parsed = parse(tokens)
        except (StopIteration, KeyError, ValueError, UnknownTypeError):
            continue
        if tokens.done:
            return parsed
    raise UnknownTypeError(f"{ddl!r} is not understood")


class _Tokens(Iterator[str]):
    """The tokens of a DDL text, in order."""

    def __init__(self, text: str, timestamp: str) -> None:
        self.timestamp = timestamp
        self._tokens = []
        position, text = 0, text.strip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise UnknownTypeError(f"{text!r} is not understood")
            self._tokens.append(match[1])
            position = match.end()
        self._position = 0

    def __next__(self) -> str:
        if self.done:
            raise StopIteration
        self._position += 1
        return self._tokens[self._position - 1]

    @property
    def done(self) -> bool:
        return self._position == len(self._tokens)

    def take(self, token: str) -> bool:
        """Consume the next token if it is this one; returns whether it was."""
        if not self.done and self._tokens[self._position].lower() == token:
            self._position += 1
            return True
        return False

    def need(self, token: str) -> None:
        """Consume the next token, which must be this one."""
        if not self.take(token):
            raise UnknownTypeError(f"{token!r} is missing")


def _type(tokens: _Tokens) -> Any:
    """Parse a type; a KeyError or StopIteration if there is none."""
    name = next(tokens).lower()
    if name == "array":
        tokens.need("<")
        element = _type(tokens)
        tokens.need(">")
        return {"type": "array", "elementType": element, "containsNull": True}
    if name == "map":
        tokens.need("<")
        key = _type(tokens)
        tokens.need(",")
        value = _type(tokens)
        tokens.need(">")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if name == "struct":
        tokens.need("<")
        fields = _struct(tokens)
        tokens.need(">")
        return fields
    if name in ("decimal", "dec", "numeric"):
        precision, scale = "10", "0"
        if tokens.take("("):
            precision = next(tokens)
            scale = next(tokens) if tokens.take(",") else "0"
            tokens.need(")")
        return f"decimal({int(precision)},{int(scale)})"
    if name in ("char", "character", "varchar"):
        tokens.need("(")
        length = int(next(tokens))
        tokens.need(")")
        return f"{'varchar' if name == 'varchar' else 'char'}({length})"
    if name == "time" and issubclass(TimeType, spark.DataType):
        digits = 6
        if tokens.take("("):
            digits = int(next(tokens))
            tokens.need(")")
        if digits > 6:
            raise UnknownTypeError(f"time({digits}) is not understood")
        return f"time({digits})"
    if name == "interval":
        first = next(tokens).lower()
        units = next((units for units in _UNITS if first in units), ())
        last = next(tokens).lower() if tokens.take("to") else first
        if last not in units[units.index(first) :]:
            raise UnknownTypeError(f"interval {first} to {last} is not understood")
        return f"interval {first}" + (f" to {last}" if last != first else "")
    return tokens.timestamp if name == "timestamp" else _NAMES[name]


def _struct(tokens: _Tokens) -> Any:
    fields = []
    while True:
        name = next(tokens)
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        tokens.take(":")
        inner = _type(tokens)
        nullable = not tokens.take("not")
        if not nullable:
            tokens.need("null")
        if tokens.take("comment"):
            next(tokens)
        fields.append({"name": name, "type": inner, "nullable": nullable, "metadata": {}})
        if not tokens.take(","):
            break
    return {"type": "struct", "fields": fields}
