"""Values that are not made of others, such as moments and decimals, against their declared type."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from .._errors.type_mismatch import TypeMismatchError

__all__ = ("Fit", "is_bool", "is_missing", "plain_fit")


MAX_DIGITS = 1000  # before or behind the point: no declared decimal has as many


Fit = Callable[[Any], Any]


def plain_fit(arrow_type: pa.DataType, path: str) -> Fit:
    """A function that turns a value of a type without parts into one that Arrow takes, or raises TypeMismatchError."""
    for matches, accepts, convert in _PLAIN:
        if matches(arrow_type):
            return _fit(arrow_type, path, accepts, convert)
    return _fit(arrow_type, path, lambda _: True, _keep)


def _fit(arrow_type: pa.DataType, path: str, accepts: Callable[[Any], bool], convert: Fit) -> Fit:
    # Of these types whatever is accepted fits; of others Arrow is asked, value by value, as it knows its limits best.
    exact_types = (bool, bytes, datetime.date, datetime.datetime, datetime.time)

    def fit(value: Any) -> Any:
        if not accepts(value):
            raise TypeMismatchError(path, value, f"declared {_spoken(arrow_type)}")
        try:
            exact = convert(value)
            if type(exact) not in exact_types:
                pa.scalar(exact, type=arrow_type)  # decimals that do not fit, long durations, types of the future
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise TypeMismatchError(path, value, f"declared {_spoken(arrow_type)}", f": {error}") from None
        return exact

    return fit


def _spoken(arrow_type: pa.DataType) -> str:
    """The type in a message; of a timestamp what to give for it, which the name alone does not tell."""
    if pa.types.is_timestamp(arrow_type):
        return (
            "timestamp (give a time-zone-aware datetime)" if arrow_type.tz else "timestamp_ntz (give a naive datetime)"
        )
    return str(arrow_type)


def _keep(value: Any) -> Any:
    return value


def _is_datetime(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and not is_missing(value)  # NaT is one and has no zone to ask for


def _is_aware(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is not None


def _is_naive(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is None


def _in_microseconds(value: Any) -> Any:
    """The value itself; raises ValueError if it is finer than that."""
    # pandas' Timestamp and Timedelta have nanoseconds, which Arrow would cut off.
    if type(value) in (datetime.datetime, datetime.timedelta):
        return value
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError("it has nanoseconds, and Spark keeps microseconds; round it with .round('us')")
    return value


def _aware(value: Any) -> Any:
    """The same moment, in a zone that Arrow reads exactly."""
    value = _in_microseconds(value)
    if value.tzinfo is datetime.UTC:
        return value
    # Arrow leaves the microseconds of an offset out. And it has moments before the year 1 and after 9999, which nobody
    # could read.
    is_at_an_end = value.year in (datetime.MINYEAR, datetime.MAXYEAR)
    if not value.utcoffset().microseconds and not is_at_an_end:
        return value
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError("in UTC it is not in the years 1 to 9999") from None


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime.time) and value.tzinfo is None


def is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_decimal(value: Any) -> bool:
    return isinstance(value, decimal.Decimal) or (isinstance(value, int) and not isinstance(value, bool))


def _decimal(value: Any) -> Any:
    """The number, unless it is so long that Arrow would not survive it."""
    if isinstance(value, decimal.Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_DIGITS:
        raise ValueError("it has more digits than any decimal")
    return value


def _is_any_binary(arrow_type: pa.DataType) -> bool:
    return pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)  # type: ignore[no-any-return]


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


# Arrow type, what is accepted for it, and what makes of that a value which Arrow takes as it is. The first that matches
# counts: a timestamp with a zone stands before one without.
_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], bool], Fit]] = (
    (pa.types.is_boolean, is_bool, bool),
    (lambda arrow_type: pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None, _is_aware, _aware),
    (pa.types.is_timestamp, _is_naive, _in_microseconds),
    (pa.types.is_date, _is_date, _keep),
    (pa.types.is_time, _is_time, _keep),
    (pa.types.is_duration, _is_a(datetime.timedelta), _in_microseconds),
    (pa.types.is_decimal, _is_decimal, _decimal),
    (_is_any_binary, _is_a(bytes, bytearray, memoryview), bytes),
)


def is_missing(value: Any) -> bool:
    """pd.NaT and pd.NA, without importing pandas."""
    return type(value).__name__ in ("NaTType", "NAType")
