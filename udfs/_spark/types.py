"""The types of Spark, of Arrow and of DDL texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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

T = TypeVar("T")


def arrow_type(declared: spark.DataType, who: str) -> pa.DataType:
    """Arrow's type for one of Spark's, with an `ObjectType` where it says too little; FunctionError without one."""
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
    return "timestamp_ntz" if is_ntz else "timestamp_ltz"


# pyspark.sql.types reads DDL only with a JVM. This parser knows the common part of DDL, and reads that as Spark does.
# The rest is left to Spark's parser, where there is a session.
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|'[^'\\]*'|[<>(),:])")
_NAMES: dict[str, type[spark.DataType]] = {
    "boolean": spark.BooleanType, "tinyint": spark.ByteType, "byte": spark.ByteType,
    "smallint": spark.ShortType, "short": spark.ShortType, "int": spark.IntegerType, "integer": spark.IntegerType,
    "bigint": spark.LongType, "long": spark.LongType, "float": spark.FloatType, "real": spark.FloatType,
    "double": spark.DoubleType, "string": spark.StringType, "binary": spark.BinaryType, "date": spark.DateType,
    "timestamp_ltz": spark.TimestampType, "timestamp_ntz": spark.TimestampNTZType, "void": spark.NullType,
}  # fmt: skip
_WITH_NUMBERS: dict[str, type[spark.DataType]] = {  # in parentheses, as decimal(10, 2); none is more than the first
    "decimal": spark.DecimalType, "dec": spark.DecimalType, "numeric": spark.DecimalType,
    "char": spark.CharType, "character": spark.CharType, "varchar": spark.VarcharType,
}  # fmt: skip
if issubclass(VariantType, spark.DataType):
    _NAMES["variant"] = VariantType
if issubclass(TimeType, spark.DataType):
    _WITH_NUMBERS["time"] = TimeType
_INTERVALS: Sequence[tuple[Any, tuple[str, ...]]] = (
    (spark.YearMonthIntervalType, ("year", "month")),
    (spark.DayTimeIntervalType, ("day", "hour", "minute", "second")),
)


def side_output_type(tag: OutputTag, timestamp: str = "timestamp_ltz") -> pa.DataType:
    """The Arrow type of a side output's rows, on an executor; `timestamp` is what this word means on the driver."""
    schema = tag.schema
    if not isinstance(schema, spark.DataType):
        try:
            schema = parsed_offline(schema, timestamp)
        except UnknownTypeError:
            raise FunctionError(f"the schema of {tag!r} cannot be read on an executor; give a StructType") from None
    return arrow_type(schema, f"side output {tag.name!r}")


def parsed_offline(ddl: str, timestamp: str = "timestamp_ltz") -> spark.DataType:
    """The type that a DDL text declares, read without a session; UnknownTypeError if only Spark's parser knows it."""
    # "temp double, sky string" is a struct without struct<>.
    for parse in (_type, _struct):
        try:
            tokens = _Tokens(ddl, timestamp)
            found: spark.DataType = parse(tokens)
        except (LookupError, TypeError, ValueError):
            continue
        if not tokens.left:
            return found
    raise UnknownTypeError(f"{ddl!r} is not understood")


class _Tokens:
    def __init__(self, text: str, timestamp: str) -> None:
        if _TOKEN.sub("", text).strip():
            raise ValueError(text)
        self.timestamp = timestamp
        self.left: list[str] = _TOKEN.findall(text)[::-1]

    def next(self) -> str:
        return self.left.pop()

    def take(self, token: str) -> bool:
        is_next = bool(self.left) and self.left[-1].lower() == token
        if is_next:
            self.left.pop()
        return is_next

    def need(self, token: str) -> None:
        if not self.take(token):
            raise ValueError(token)

    def several(self, read: Callable[[_Tokens], T], end: str = "") -> list[T]:
        """What is read between commas, to an `end` if there is one."""
        found = [read(self)]
        while self.take(","):
            found.append(read(self))
        if end:
            self.need(end)
        return found


def _type(tokens: _Tokens) -> spark.DataType:
    """Parse a type; one of the errors that `parsed_offline` catches if there is none."""
    name = tokens.next().lower()
    if name in ("array", "map", "struct"):
        tokens.need("<")
        if name == "struct":
            return spark.StructType(tokens.several(_field, ">"))
        *keys, value = tokens.several(_type, ">")
        if len(keys) != (name == "map"):
            raise ValueError(name)
        return spark.MapType(keys[0], value) if keys else spark.ArrayType(value)
    for interval, units in _INTERVALS if name == "interval" else ():
        if (unit := tokens.left[-1].lower()) in units:
            first = last = units.index(unit)
            tokens.next()
            if tokens.take("to"):
                last = units.index(tokens.next().lower(), first + 1)
            return interval(first, last)  # type: ignore[no-any-return]
    if name in _WITH_NUMBERS:
        numbers = tokens.several(lambda tokens: int(tokens.next()), ")") if tokens.take("(") else []
        if numbers and max(numbers) > (6 if name == "time" else numbers[0]):  # digits
            raise ValueError(numbers)
        return _WITH_NUMBERS[name](*numbers)
    return _NAMES[tokens.timestamp if name == "timestamp" else name]()


def _struct(tokens: _Tokens) -> spark.StructType:
    return spark.StructType(tokens.several(_field))


def _field(tokens: _Tokens) -> spark.StructField:
    name = tokens.next()
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    elif not name.isidentifier():
        raise ValueError(name)
    tokens.take(":")
    data_type, metadata = _type(tokens), None
    if is_not := tokens.take("not"):
        tokens.need("null")
    if tokens.take("comment"):
        text = tokens.next()
        if not text.startswith("'"):
            raise ValueError(text)
        metadata = {"comment": text[1:-1]}
    return spark.StructField(name, data_type, not is_not, metadata)
