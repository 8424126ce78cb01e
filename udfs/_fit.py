"""Checks a result against its declared type, so that Arrow never changes it silently."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ._errors import ResultError
from ._text import short, text_of

__all__ = ("fitter",)

Fit = Callable[[Any], Any]


def fitter(function: str, kind: pa.DataType) -> Fit:
    """A function that gives back a result as a value that Arrow takes for `kind` without changing it.

    Arrow alone would make 1 of 1.5, 1.0 of True, a date of a datetime and nothing of a missing field. The
    function raises ResultError with the function, the field and the value instead.
    """
    fit = _nullable(_fit(kind, ""), kind, "", True)

    def checked(value: Any) -> Any:
        try:
            return fit(value)
        except _MisfitError as misfit:
            field = f" in field {misfit.path!r}" if misfit.path else ""
            raise ResultError(
                f"{function} returned {short(misfit.value)} ({type(misfit.value).__name__}){field}: {misfit.problem}"
            ) from None
        except Exception as error:  # of code of the value's own, such as __index__ or items
            raise ResultError(
                f"{function} returned {short(value)} ({type(value).__name__}), which cannot be checked against {kind}: "
                f"{type(error).__name__}: {text_of(error)}"
            ) from error

    return _quick(kind, checked)


def _quick(kind: pa.DataType, checked: Fit) -> Fit:
    """The same for less, where a value is plainly of the declared type: this counts once per row."""
    if pa.types.is_integer(kind):
        high = 2 ** (kind.bit_width - 1) - 1
        low = -high - 1
        return lambda value: value if value.__class__ is int and low <= value <= high else checked(value)
    if pa.types.is_float64(kind):
        return lambda value: value if value.__class__ is float else checked(value)
    if pa.types.is_string(kind):
        return lambda value: value if value.__class__ is str and value.isascii() else checked(value)
    return checked


class _MisfitError(Exception):
    def __init__(self, path: str, value: Any, problem: str) -> None:
        super().__init__(path, value, problem)
        self.path, self.value, self.problem = path, value, problem


def _nullable(fit: Fit, kind: pa.DataType, path: str, nullable: bool) -> Fit:
    def checked(value: Any) -> Any:
        if value is not None:
            try:
                return fit(value)
            except _MisfitError:
                if not _is_missing(value):
                    raise
        if nullable:
            return None
        raise _MisfitError(path, None, f"declared {kind}, not null")

    return _quick(kind, checked)


def _is_missing(value: Any) -> bool:
    """pd.NaT and pd.NA, without importing pandas."""
    return type(value).__name__ in ("NaTType", "NAType")


def _fit(kind: pa.DataType, path: str) -> Fit:
    if pa.types.is_integer(kind):
        return _integer(kind, path)
    if pa.types.is_floating(kind):
        return _float(kind, path)
    if pa.types.is_struct(kind):
        return _struct(kind, path)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(kind, path)
    if pa.types.is_map(kind):
        return _map(kind, path)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string(kind, path)
    for matches, accepts, convert in _PLAIN:
        if matches(kind):
            return _plain(kind, path, accepts, convert)
    return _plain(kind, path, lambda _: True, _keep)


def _plain(kind: pa.DataType, path: str, accepts: Callable[[Any], bool], convert: Fit) -> Fit:
    exact_types = (bool, bytes, datetime.date, datetime.datetime, datetime.time, datetime.timedelta)

    def fit(value: Any) -> Any:
        if not accepts(value):
            raise _MisfitError(path, value, f"declared {_spoken(kind)}")
        value = convert(value)
        if type(value) not in exact_types:
            _check_with_arrow(kind, path, value)  # decimals that do not fit, nanoseconds, types of the future
        return value

    return fit


def _check_with_arrow(kind: pa.DataType, path: str, value: Any) -> None:
    try:
        pa.scalar(value, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _MisfitError(path, value, f"declared {_spoken(kind)}: {error}") from None


def _spoken(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp (give a time-zone-aware datetime)" if kind.tz else "timestamp_ntz (give a naive datetime)"
    return str(kind)


def _keep(value: Any) -> Any:
    return value


def _is_datetime(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and not _is_missing(value)  # NaT is one and has no zone to ask for


def _is_aware(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is not None


def _is_naive(value: Any) -> bool:
    return _is_datetime(value) and value.utcoffset() is None


def _is_date(value: Any) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_decimal(value: Any) -> bool:
    return isinstance(value, decimal.Decimal) or (isinstance(value, int) and not isinstance(value, bool))


def _is_any_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)  # type: ignore[no-any-return]


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], bool], Fit]] = (
    (pa.types.is_boolean, _is_bool, bool),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _is_aware, _keep),
    (pa.types.is_timestamp, _is_naive, _keep),
    (pa.types.is_date, _is_date, _keep),
    (pa.types.is_time, _is_a(datetime.time), _keep),
    (pa.types.is_duration, _is_a(datetime.timedelta), _keep),
    (pa.types.is_decimal, _is_decimal, _keep),
    (_is_any_binary, _is_a(bytes, bytearray, memoryview), bytes),
)


def _integer(kind: pa.DataType, path: str) -> Fit:
    high = 2 ** (kind.bit_width - 1) - 1
    low = -high - 1

    def fit(value: Any) -> int:
        if value.__class__ is not int:
            value = _as_int(value, kind, path)
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise _MisfitError(path, value, f"declared {kind}, which ends at {high}")

    return fit


def _as_int(value: Any, kind: pa.DataType, path: str) -> int:
    if not _is_bool(value):
        try:
            return operator.index(value)  # numpy's integers, IntEnum
        except TypeError:
            pass
    raise _MisfitError(path, value, f"declared {kind}")


def _float(kind: pa.DataType, path: str) -> Fit:
    exact = 2 ** {16: 11, 32: 24, 64: 53}[kind.bit_width]  # whole numbers up to here are kept exactly

    def fit(value: Any) -> float:
        if value.__class__ is float:
            return value
        if isinstance(value, float) or (type(value).__module__ == "numpy" and type(value).__name__.startswith("float")):
            return float(value)
        number = _as_int(value, kind, path)
        if abs(number) > exact:
            raise _MisfitError(path, value, f"declared {kind}, which keeps whole numbers exactly up to {exact} only")
        return float(number)

    return fit


def _string(kind: pa.DataType, path: str) -> Fit:
    def fit(value: Any) -> str:
        if not isinstance(value, str):
            raise _MisfitError(path, value, "declared string")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise _MisfitError(path, value, f"no Unicode text: {error.reason}") from None
        return value

    return fit


def _list(kind: pa.DataType, path: str) -> Fit:
    fit_item = _nullable(_fit(kind.value_type, f"{path}[]"), kind.value_type, f"{path}[]", kind.value_field.nullable)
    may_be_floats = pa.types.is_floating(kind.value_type)

    def fit(value: Any) -> list[Any]:
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise _MisfitError(path, value, "declared array (give a list)")
        if may_be_floats and set(map(type, value)) == {float}:  # an embedding: nothing to look at one by one
            return list(value)
        return [fit_item(item) for item in value]

    return fit


def _map(kind: pa.DataType, path: str) -> Fit:
    fit_key = _nullable(_fit(kind.key_type, f"{path} key"), kind.key_type, f"{path} key", False)
    item = f"{path} value"
    fit_item = _nullable(_fit(kind.item_type, item), kind.item_type, item, kind.item_field.nullable)

    is_hashable = not pa.types.is_nested(kind.key_type)  # what an array or a struct becomes is not

    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _MisfitError(path, value, "declared map (give a dict)")
        items = [(fit_key(key), fit_item(item)) for key, item in value.items()]
        return dict(items) if is_hashable else items

    return fit


def _struct(kind: pa.DataType, path: str) -> Fit:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in fields]
    fits = {}
    for field in fields:
        inner = f"{path}.{field.name}" if path else field.name
        fits[field.name] = _nullable(_fit(field.type, inner), field.type, inner, field.nullable)
    known = frozenset(names)

    def fit(value: Any) -> dict[str, Any]:
        given = value if value.__class__ is dict else _as_mapping(value, names, path)
        if given.keys() != known:
            raise _MisfitError(path, value, _field_problem(given, names))
        return {name: fit_field(given[name]) for name, fit_field in fits.items()}

    return fit


def _field_problem(given: Mapping[str, Any], names: Sequence[str]) -> str:
    missing = [name for name in names if name not in given]
    unknown = [str(name) for name in given if name not in names]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(unknown)}"] if unknown else []
    return f"declared struct<{', '.join(names)}>; fields {' and '.join(parts)}"


def _as_mapping(value: Any, names: Sequence[str], path: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        own = getattr(value, "_fields", None) or getattr(value, "__fields__", None)  # NamedTuple, pyspark's Row
        if own or len(value) == len(names):
            return dict(zip(own or names, value, strict=True))
    raise _MisfitError(path, value, f"declared struct<{', '.join(names)}> (give a dict, a dataclass or a NamedTuple)")
