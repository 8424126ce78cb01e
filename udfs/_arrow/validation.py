"""Checks a result against its declared type, so that Arrow never changes it silently."""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from .._errors.type_mismatch import TypeMismatchError, fields_mismatch, mismatch_error, uncheckable
from .._policies.options import ExtraFields
from .plain_values import Fit, is_bool, is_missing, plain_fit

__all__ = ("validator",)


NO_ROW = "a row is a mapping of the columns; give one, or leave the row out: with filter, flat_map or without output()"


def validator(
    function: str, arrow_type: pa.DataType, *, extra_fields: ExtraFields | None = None, row: bool = False
) -> Fit:
    """A function that gives back a result as a value that Arrow takes for `arrow_type` without changing it.

    Arrow alone would make 1 of 1.5, 1.0 of True, a date of a datetime and nothing of a missing field. The
    function raises ResultError with the function, the field and the value instead.

    Args:
        extra_fields: what becomes of the fields of structs that are not declared; None: an error, without a choice.
        row: a struct is a whole row, of which there is none that is None.
    """
    # The declared type is looked at once, here: what comes out is a function made of functions, one for each field, so
    # that per row nothing is left but to look at the value.
    fit = _nullable(_fit(arrow_type, "", extra_fields), arrow_type, "", not (row and pa.types.is_struct(arrow_type)))

    def checked(value: Any) -> Any:
        try:
            return fit(value)
        except TypeMismatchError as mismatch:
            raise mismatch_error(function, mismatch, value) from None
        except Exception as error:  # of code of the value's own, such as __index__ or items
            raise mismatch_error(function, uncheckable(value, arrow_type, error), value) from error

    return _quick(arrow_type, checked)


def _quick(arrow_type: pa.DataType, checked: Fit) -> Fit:
    """The same for less, where a value is plainly of the declared type: this counts once per row."""
    if pa.types.is_integer(arrow_type):
        high = 2 ** (arrow_type.bit_width - 1) - 1
        low = -high - 1
        return lambda value: value if type(value) is int and low <= value <= high else checked(value)
    if pa.types.is_float64(arrow_type):
        return lambda value: value if type(value) is float else checked(value)
    if pa.types.is_string(arrow_type):
        return lambda value: value if type(value) is str and value.isascii() else checked(value)
    return checked


def _nullable(fit: Fit, arrow_type: pa.DataType, path: str, nullable: bool) -> Fit:
    """The same, with None for a value that is missing, or an error where there must be one."""

    # is_missing only where the value does not fit: to ask each value of each row for its type's name would cost more.
    def checked(value: Any) -> Any:
        if value is not None:
            try:
                return fit(value)
            except TypeMismatchError:
                if not is_missing(value):
                    raise
        if nullable:
            return None
        raise TypeMismatchError(path, None, f"declared {arrow_type}, not null" if path else NO_ROW)

    return _quick(arrow_type, checked)


def _fit(arrow_type: pa.DataType, path: str, extra: ExtraFields | None) -> Fit:
    """A function for values of a type that are not None; `path` leads to them in messages."""
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
    return plain_fit(arrow_type, path)


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
    # operator.index and not int(), which takes 1.5 and "1"; a bool is an index too, and most likely a mistake.
    if not is_bool(value):
        try:
            return operator.index(value)  # numpy's integers, IntEnum
        except TypeError:
            pass
    raise TypeMismatchError(path, value, f"declared {arrow_type}")


# From here on a number becomes infinity: half a step beyond the largest that there is.
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


def _list(arrow_type: pa.DataType, path: str, extra: ExtraFields | None) -> Fit:
    item = f"{path}[]"
    fit_item = _nullable(
        _fit(arrow_type.value_type, item, extra), arrow_type.value_type, item, arrow_type.value_field.nullable
    )
    floats = pa.types.is_floating(arrow_type.value_type)
    limit = _LIMITS[arrow_type.value_type.bit_width] if floats else math.inf

    def fit(value: Any) -> list[Any]:
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            items = value.tolist()
            # Of moments that are finer than Python's, numpy makes plain numbers.
            is_finer = value.dtype.kind in "mM" and isinstance(items, list) and int in map(type, items)
            value = list(value) if is_finer else items
        if not isinstance(value, (list, tuple)):
            raise TypeMismatchError(path, value, "declared array (give a list)")
        # An embedding: nothing to look at one by one. No number is larger than the length of the vector.
        if floats and set(map(type, value)) == {float} and (limit == math.inf or math.hypot(*value) < limit):
            return list(value)
        return [fit_item(item) for item in value]

    return fit


def _map(arrow_type: pa.DataType, path: str, extra: ExtraFields | None) -> Fit:
    fit_key = _nullable(_fit(arrow_type.key_type, f"{path} key", extra), arrow_type.key_type, f"{path} key", False)
    item = f"{path} value"
    fit_item = _nullable(
        _fit(arrow_type.item_type, item, extra), arrow_type.item_type, item, arrow_type.item_field.nullable
    )

    fit_key = _as_stored(fit_key, arrow_type.key_type)
    is_hashable = not pa.types.is_nested(arrow_type.key_type)  # what an array or a struct becomes is not

    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeMismatchError(path, value, "declared map (give a dict)")
        items = [(fit_key(key), fit_item(item)) for key, item in value.items()]
        return _once_each(items, value, path) if is_hashable else items

    return fit


def _as_stored(fit: Fit, arrow_type: pa.DataType) -> Fit:
    """Floating-point keys as Arrow keeps them: two that differ may be one there."""
    if not pa.types.is_floating(arrow_type):
        return fit
    width = struct.Struct({16: "e", 32: "f", 64: "d"}[arrow_type.bit_width])

    def stored(value: Any) -> float:
        (key,) = width.unpack(width.pack(fit(value)))
        return key if key == key else math.nan  # one nan is the same key as itself only

    return stored


def _once_each(items: Sequence[tuple[Any, Any]], value: Any, path: str) -> dict[Any, Any]:
    found = dict(items)
    if len(found) < len(items):  # some mappings repeat keys, and so does a Row of a join
        raise TypeMismatchError(path, value, "it has a key more than once; give one value for each")
    return found


def _struct(arrow_type: pa.DataType, path: str, extra: ExtraFields | None) -> Fit:
    fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
    names = [field.name for field in fields]
    fits = {}
    for field in fields:
        inner = f"{path}.{field.name}" if path else field.name
        fits[field.name] = _nullable(_fit(field.type, inner, extra), field.type, inner, field.nullable)
    known, drops = frozenset(names), extra is ExtraFields.DROP

    def fit(value: Any) -> dict[str, Any]:
        given = value if type(value) is dict else _as_mapping(value, names, path)
        if given.keys() != known and not (drops and given.keys() > known):
            raise fields_mismatch(path, value, given.keys(), names, may_drop=extra is ExtraFields.ERROR)
        return {name: fit_field(given[name]) for name, fit_field in fits.items()}

    return fit


def _as_mapping(value: Any, names: Sequence[str], path: str) -> Mapping[str, Any]:
    """What stands for a struct, by the names of its fields; a plain tuple is taken in their order."""
    if isinstance(value, Mapping):
        return _once_each(list(value.items()), value, path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not by `dataclasses.fields`, which knows no field of a class that Spark 3.5 has pickled by value.
        fields: Iterable[Any] = value.__dataclass_fields__.values()
        return {field.name: getattr(value, field.name) for field in fields if field._field_type.name == "_FIELD"}
    if isinstance(value, tuple):
        own = getattr(value, "_fields", None) or getattr(value, "__fields__", None)  # NamedTuple, pyspark's Row
        if own or len(value) == len(names):
            return _once_each(list(zip(own or names, value, strict=True)), value, path)
    raise TypeMismatchError(
        path, value, f"declared struct<{', '.join(names)}> (give a dict, a dataclass or a NamedTuple)"
    )
