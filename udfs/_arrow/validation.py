"""Checks results against their declared type, so that Arrow never changes one silently."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import operator
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from .._errors.type_mismatch import TypeMismatchError, fields_mismatch, mismatch_error, uncheckable
from .._functions.annotations import is_model
from .._functions.options import ExtraFields
from .objects import ObjectType, fields_of, stored_type

Fit = Callable[[Any], Any]
Dropped = Callable[[str, Collection[Any]], None]

NO_ROW = "a row is a mapping of the columns; give one, or leave the row out: with filter, flat_map or without output()"


class Extra(NamedTuple):
    """What becomes of fields of structs that are not declared, and who is told of those that are dropped."""

    fields: ExtraFields | None = None
    dropped: Dropped = lambda path, names: None


def validator(
    function: str,
    arrow_type: pa.DataType,
    *,
    extra_fields: ExtraFields | None = None,
    row: bool = False,
    dropped: Dropped = lambda path, names: None,
) -> Fit:
    """A function from a result to a value that Arrow takes for `arrow_type` without changing it.

    Arrow alone makes 1 of 1.5, 1.0 of True, a date of a datetime, and says nothing of a missing field. The
    function raises a ResultError with the function, the field and the value instead.

    Args:
        extra_fields: what happens to fields of structs that are not declared; None: an error that names no option.
        row: a struct is a whole row, which cannot be None.
        dropped: is called for each struct that loses fields, with its path and the names of all its fields.
    """
    # The declared type is read once, here. The function is made of functions, one for each field, so that per row only
    # the value is looked at.
    extra = Extra(extra_fields, dropped)
    fit = _nullable(arrow_type, "", extra, not (row and pa.types.is_struct(arrow_type)))

    def checked(value: Any) -> Any:
        try:
            return fit(value)
        except TypeMismatchError as mismatch:
            if isinstance(known := mismatch.value, TypeMismatchError):  # of a vector's value
                mismatch = TypeMismatchError(mismatch.path, known.value, known.problem)
            raise mismatch_error(function, mismatch, value) from None
        except Exception as error:  # in code of the value's class, such as __index__ or items
            raise mismatch_error(function, uncheckable(value, arrow_type, error), value) from error

    return _quick(arrow_type, checked)


def _quick(arrow_type: pa.DataType, checked: Fit) -> Fit:
    """As `checked`, at a lower cost for values that are exactly of the declared type: it runs for each row."""
    for is_of, cls in _EXACT:
        if is_of(arrow_type):
            return lambda value: value if type(value) is cls else checked(value)
    if pa.types.is_integer(arrow_type):
        high = 2 ** (arrow_type.bit_width - 1) - 1
        low = -high - 1
        return lambda value: value if type(value) is int and low <= value <= high else checked(value)
    if pa.types.is_float32(arrow_type):
        limit = _LIMITS[32]
        return lambda value: value if type(value) is float and -limit < value < limit else checked(value)
    if pa.types.is_string(arrow_type):

        def text(value: Any) -> Any:
            try:
                return value if type(value) is str and (value.isascii() or value.encode()) else checked(value)
            except UnicodeEncodeError:  # half of a surrogate pair
                return checked(value)

        return text
    if pa.types.is_timestamp(arrow_type):
        zone = datetime.UTC if arrow_type.tz else None
        return lambda v: v if type(v) is datetime.datetime and v.tzinfo is zone else checked(v)
    if pa.types.is_duration(arrow_type):
        longest = datetime.timedelta(days=10**6)  # Arrow's own end depends on the unit
        return lambda v: v if type(v) is datetime.timedelta and -longest < v < longest else checked(v)
    if pa.types.is_decimal(arrow_type):
        step, whole = decimal.Decimal(1).scaleb(-arrow_type.scale), arrow_type.precision - arrow_type.scale
        return lambda v: (
            v if type(v) is decimal.Decimal and v.same_quantum(step) and v.adjusted() < whole else checked(v)
        )
    return checked


def _nullable(arrow_type: pa.DataType, path: str, extra: Extra, nullable: bool) -> Fit:
    """A function for values of a type and for missing ones, which become None or raise."""
    fit = _fit(arrow_type, path, extra)

    # _is_missing only if the value does not fit: it reads the name of the type, which costs more.
    def checked(value: Any) -> Any:
        if value is not None:
            try:
                return fit(value)
            except TypeMismatchError:
                if isinstance(value, enum.Enum):
                    return checked(value.value)
                if not _is_missing(value):
                    raise
        if nullable:
            return None
        raise TypeMismatchError(path, None, f"declared {arrow_type}, not null" if path else NO_ROW)

    return _quick(arrow_type, checked)


def _fit(arrow_type: pa.DataType, path: str, extra: Extra) -> Fit:
    """A function for values of a type that are not None; messages name them by `path`."""
    if isinstance(arrow_type, ObjectType):
        return _object(arrow_type, path)
    if pa.types.is_integer(arrow_type):
        return _integer(arrow_type, path)
    if pa.types.is_floating(arrow_type):
        return _float(arrow_type, path)
    if pa.types.is_struct(arrow_type):
        return _struct(arrow_type, path, extra)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return _list(arrow_type, path, extra)
    if pa.types.is_map(arrow_type):
        return _map(arrow_type, path, extra)
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return _string(arrow_type, path)
    return _plain(arrow_type, path)


def _object(arrow_type: ObjectType, path: str) -> Fit:
    form, fit_stored = arrow_type.form, _fit(arrow_type.storage_type, path, Extra())

    def fit(value: Any) -> Any:
        try:
            return fit_stored(form.written(value))
        except TypeMismatchError:  # speaks of a type that nobody has declared
            detail = ""
        except Exception as error:  # in the user's code too
            detail = f": {error}"
        raise TypeMismatchError(path, value, f"declared {form.name} (give {form.wanted})", detail)

    return fit


def _integer(arrow_type: pa.DataType, path: str) -> Fit:
    high = 2 ** (arrow_type.bit_width - 1) - 1
    low = -high - 1

    def fit(value: Any) -> int:
        if type(value) is not int:
            value = _as_int(value, arrow_type, path)
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise TypeMismatchError(path, value, f"declared {arrow_type}, which ends at {high}")

    return fit


def _as_int(value: Any, arrow_type: pa.DataType, path: str) -> int:
    # operator.index and not int(), which takes 1.5 and "1". A bool is an index too, but most likely a mistake.
    if not _is_bool(value):
        try:
            return operator.index(value)  # numpy's integers, IntEnum
        except TypeError:
            pass
    raise TypeMismatchError(path, value, f"declared {arrow_type}")


# The smallest numbers that become infinity: half a step above the largest finite one.
_LIMITS = {16: 65520.0, 32: 2.0**128 - 2.0**103, 64: math.inf}


def _float(arrow_type: pa.DataType, path: str) -> Fit:
    exact = 2 ** {16: 11, 32: 24, 64: 53}[arrow_type.bit_width]  # whole numbers up to here are kept exactly
    limit = _LIMITS[arrow_type.bit_width]

    def fit(value: Any) -> float:
        if isinstance(value, float) or (type(value).__module__ == "numpy" and type(value).__name__.startswith("float")):
            number = float(value)
            if -limit < number < limit or not abs(value) < math.inf:  # a nan, or infinity itself
                return number
            raise TypeMismatchError(path, value, f"declared {arrow_type}, which is infinity from {limit:g} on")
        number = _as_int(value, arrow_type, path)
        if abs(number) > exact:
            raise TypeMismatchError(
                path, value, f"declared {arrow_type}, which keeps whole numbers exactly up to {exact} only"
            )
        return float(number)

    return fit


def _string(arrow_type: pa.DataType, path: str) -> Fit:
    def fit(value: Any) -> str:
        if not issubclass(type(value), str):
            raise TypeMismatchError(path, value, "declared string")
        text = value if type(value) is str else str.__str__(value)  # methods of a subclass may do anything
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise TypeMismatchError(path, value, f"no Unicode text: {error.reason}") from None
        return text

    return fit


def _list(arrow_type: pa.DataType, path: str, extra: Extra) -> Fit:
    item = f"{path}[]"
    fit_item = _nullable(arrow_type.value_type, item, extra, arrow_type.value_field.nullable)
    floats = pa.types.is_floating(arrow_type.value_type)
    limit = _LIMITS[arrow_type.value_type.bit_width] if floats else math.inf

    def fit(value: Any) -> list[Any]:
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            items = value.tolist()
            # Of times that are finer than microseconds, numpy makes plain numbers.
            is_time = value.dtype.kind in "mM" and isinstance(items, list)
            value = list(value) if is_time and (value.ndim > 1 or int in map(type, items)) else items
        if not isinstance(value, (list, tuple)):
            raise TypeMismatchError(path, value, "declared array (give a list)")
        # An embedding is not checked item by item: no number in it is larger than the length of the vector.
        if floats and set(map(type, value)) == {float} and (limit == math.inf or math.hypot(*value) < limit):
            return list(value)
        return [fit_item(item) for item in value]

    return fit


def _map(arrow_type: pa.DataType, path: str, extra: Extra) -> Fit:
    start = f"{path} " if path else ""
    fit_key = _as_stored(_nullable(arrow_type.key_type, f"{start}key", extra, False), arrow_type.key_type)
    fit_item = _nullable(arrow_type.item_type, f"{start}value", extra, arrow_type.item_field.nullable)
    # The lists and dicts of arrays and structs are not.
    is_hashable = not pa.types.is_nested(stored_type(arrow_type.key_type))

    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeMismatchError(path, value, "declared map (give a dict)")
        items = [(fit_key(key), fit_item(item)) for key, item in value.items()]
        return _once_each(items, value, path) if is_hashable else items

    return fit


def _as_stored(fit: Fit, arrow_type: pa.DataType) -> Fit:
    """Floating-point keys as Arrow keeps them: two keys that differ may be equal there."""
    if not pa.types.is_floating(arrow_type):
        return fit
    width = struct.Struct({16: "e", 32: "f", 64: "d"}[arrow_type.bit_width])

    def stored(value: Any) -> float:
        (key,) = width.unpack(width.pack(fit(value)))
        return key if key == key else math.nan  # two nans are equal keys only if they are one object

    return stored


def _once_each(items: Sequence[tuple[Any, Any]], value: Any, path: str) -> dict[Any, Any]:
    found = dict(items)
    if len(found) < len(items):  # some mappings repeat keys, and so does a Row of a join
        raise TypeMismatchError(path, value, "it has a key more than once; give one value for each")
    return found


def _struct(arrow_type: pa.DataType, path: str, extra: Extra) -> Fit:
    fields = fields_of(arrow_type)
    names = [field.name for field in fields]
    prefix = f"{path}." if path else ""
    fits = {field.name: _nullable(field.type, f"{prefix}{field.name}", extra, field.nullable) for field in fields}
    known, dropped, may_drop = frozenset(names), extra.dropped, extra.fields is ExtraFields.ERROR
    drops = extra.fields is ExtraFields.DROP

    def fit(value: Any) -> dict[str, Any]:
        given = value if type(value) is dict else _as_mapping(value, names, path)
        if given.keys() != known:
            if not (drops and given.keys() > known):
                raise fields_mismatch(path, value, given.keys(), names, may_drop=may_drop)
            dropped(path, given.keys() - known)
        return {name: fit_field(given[name]) for name, fit_field in fits.items()}

    return fit


def _as_mapping(value: Any, names: Sequence[str], path: str) -> Mapping[str, Any]:
    """The fields of a value for a struct, by their names; a plain tuple has them in their declared order."""
    if isinstance(value, Mapping):
        return _once_each(list(value.items()), value, path)
    if is_model(type(value)):
        return _of_model(value, names)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not `dataclasses.fields`, which finds no field of a class that Spark 3.5 has pickled by value.
        fields: Iterable[Any] = value.__dataclass_fields__.values()
        return {field.name: getattr(value, field.name) for field in fields if field._field_type.name == "_FIELD"}
    if isinstance(value, tuple):
        own = getattr(value, "_fields", None) or getattr(value, "__fields__", None)  # NamedTuple, pyspark's Row
        if own or len(value) == len(names):
            return _once_each(list(zip(own or names, value, strict=True)), value, path)
    if hasattr(value, "keys") and hasattr(type(value), "__getitem__"):  # a row of asyncpg or sqlite3: no Mappings
        row: Any = value
        return _once_each([(name, row[name]) for name in row.keys()], value, path)  # noqa: SIM118 - they iterate values
    problem = f"declared struct<{', '.join(names)}> (give a dict, a dataclass or a NamedTuple)"
    raise TypeMismatchError(path, value, problem)


def _of_model(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a model of Pydantic: its own, and what else it serializes as, where the declared type names it."""
    # Not `model_dump`, which makes other values of some, unless a serializer of the user's says what the fields are.
    cls, found = type(value), dict(getattr(value, "__pydantic_extra__", None) or {})
    own, computed = cls.model_fields, cls.model_computed_fields
    for name, field in (*own.items(), *computed.items()):
        alias = getattr(field, "serialization_alias", None) or field.alias
        if alias in own or alias in computed:  # that name is another field's
            alias = None
        shown = next((one for one in (name, alias) if one in names), None)
        if shown is not None:
            found[shown] = getattr(value, name)
        elif name in own and not field.exclude:
            found[name] = getattr(value, name)
    if not found.keys() >= set(names) and cls.__pydantic_decorators__.model_serializers:
        serialized = value.model_dump()
        return serialized if type(serialized) is dict else found
    return found


# Values without parts, such as moments and decimals.

MAX_DIGITS = 1000  # before or behind the point; no declared decimal has so many


def _plain(arrow_type: pa.DataType, path: str) -> Fit:
    """A function for values of a type without parts."""
    known = ((accepts, convert) for matches, accepts, convert in _PLAIN if matches(arrow_type))
    accepts, convert = next(known, (_is_a(object), _keep))
    # Every accepted value of these types fits. Of other types Arrow checks each value: it knows its limits best.
    exact_types = (bool, bytes, datetime.date, datetime.datetime, datetime.time)

    def fit(value: Any) -> Any:
        if not accepts(value):
            raise TypeMismatchError(path, value, f"declared {_described(arrow_type)}")
        try:
            exact = convert(value)
            if type(exact) not in exact_types:
                pa.scalar(exact, type=arrow_type)  # too large decimals, too long durations, types that Arrow adds later
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            why = _why(value, arrow_type) or error
            raise TypeMismatchError(path, value, f"declared {_described(arrow_type)}", f": {why}") from None
        return exact

    return fit


def _why(value: Any, arrow_type: pa.DataType) -> str:
    """Why a number does not fit a decimal, in clearer words than Arrow's (rescaling, first elements); else empty."""
    if isinstance(value, int) and value.bit_length() < MAX_DIGITS:
        value = decimal.Decimal(value)
    if not (pa.types.is_decimal(arrow_type) and isinstance(value, decimal.Decimal) and value.is_finite()):
        return ""
    most, digits = arrow_type.precision - arrow_type.scale, value.adjusted() + 1
    if digits > most:
        return f"it has {digits} digits before the point, and the type {most}"
    return f"it has more digits behind the point than the {arrow_type.scale} of the type; round it, or declare more"


def _described(arrow_type: pa.DataType) -> str:
    """The type for a message; of a timestamp also what to give for it, which its name does not say."""
    if pa.types.is_timestamp(arrow_type):
        aware, naive = "timestamp (give a time-zone-aware datetime)", "timestamp_ntz (give a naive datetime)"
        return aware if arrow_type.tz else naive
    return str(arrow_type)


def _keep(value: Any) -> Any:
    return value


def _is_datetime(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and not _is_missing(value)  # NaT is one, without a zone


def _is_aware(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is not None


def _is_naive(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is None


def _in_microseconds(value: Any) -> Any:
    """The value, a moment as a plain datetime. ValueError for one finer than microseconds, or after the year 9999."""
    # pandas' Timestamp and Timedelta have nanoseconds, which Arrow cuts off.
    if type(value) in (datetime.datetime, datetime.timedelta):
        return value
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError("it has nanoseconds, and Spark keeps microseconds; round it with .round('us')")
    if isinstance(value, datetime.timedelta):
        return value
    # Subclasses calculate as they like, and pandas' Timestamp of the year 12000 is one of 1972 for Arrow.
    day = datetime.date(value.year, value.month, value.day)
    time = datetime.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    return datetime.datetime.combine(day, time)


def in_utc(value: Any) -> Any:
    """The same moment in UTC, which Arrow reads exactly. Raises ValueError if it is not in the years 1 to 9999."""
    value = _in_microseconds(value)
    if value.tzinfo is datetime.UTC:
        return value
    # Arrow ignores the microseconds of an offset; the whole offset where PYARROW_IGNORE_TIMEZONE is set, as by
    # `import pyspark.pandas`. And it has moments before the year 1 and after 9999, which Python cannot read.
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError("in UTC it is not in the years 1 to 9999") from None


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime.time) and value.tzinfo is None


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_decimal(value: Any) -> bool:
    return isinstance(value, decimal.Decimal) or (isinstance(value, int) and not isinstance(value, bool))


def _decimal(value: Any) -> Any:
    """The number. Raises ValueError for one that is so long that Arrow crashes."""
    if isinstance(value, decimal.Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_DIGITS:
        raise ValueError("it has more digits than any decimal")
    return value


def _is_any_binary(arrow_type: pa.DataType) -> bool:
    return pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)  # type: ignore[no-any-return]


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


# Arrow type, the check of a value for it, and the conversion to a value that Arrow takes as it is. The first match
# counts: a timestamp with a zone stands before one without.
_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], bool], Fit]] = (
    (pa.types.is_boolean, _is_bool, bool),
    (lambda arrow_type: pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None, _is_aware, in_utc),
    (pa.types.is_timestamp, _is_naive, _in_microseconds),
    (pa.types.is_date, _is_date, _keep),
    (pa.types.is_time, _is_time, _keep),
    (pa.types.is_duration, _is_a(datetime.timedelta), _in_microseconds),
    (pa.types.is_decimal, _is_decimal, _decimal),
    (_is_any_binary, _is_a(bytes, bytearray, memoryview), bytes),
)


# Every value of the class fits as it is.
_EXACT: Sequence[tuple[Callable[[pa.DataType], bool], type]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_float64, float),
    (pa.types.is_date32, datetime.date),
    (_is_any_binary, bytes),
)


def _is_missing(value: Any) -> bool:
    """pd.NaT and pd.NA, without importing pandas."""
    return type(value).__name__ in ("NaTType", "NAType")
