"""Results of a declared Arrow type as bytes for a result store, and back; the declared type as a text for keys."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pyarrow as pa

from .._errors.exceptions import FunctionError
from .._stores.values import Decoded, ResultCodec, SingleResults
from .objects import ObjectType, fields_of

Check = Callable[[Any], Any]

# The types that the codec alone checks as strictly as a validator; values of all other types are checked by both.
_EXACT = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
)


class StoredResultCodec(ResultCodec):
    """Results of one function as bytes, and back; checked again where reading them does not check enough.

    Raises FunctionError for results of a type that cannot be kept, and OptionError without msgspec.

    Args:
        declared: the Arrow type of one result; None: not declared, and only results that need no type are kept.
        captures: whether a result is a struct of value and error. The value is kept, so that `on_error` may change.
    """

    def __init__(
        self, name: str, declared: pa.DataType | None, validate: Check, *, captures: bool, **limits: Any
    ) -> None:
        super().__init__(Any if declared is None else _annotation(declared, name), **limits)
        self._is_typed = declared is not None
        self._validate = None if declared is None or _is_exact(declared) else validate
        self._captures = captures

    def kept(self, key: bytes, results: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        values = [result["value"] for result in results] if self._captures else results
        if not self._is_typed and not all(map(_needs_no_type, values)):
            return None
        kept = super().kept(key, values)
        if kept is None or (self._validate is None and not self._captures):
            return kept
        value, read = kept
        fitting = self._fitting(read)
        return None if fitting is None else (value, fitting)

    def decode_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Decoded:
        found = super().decode_many(keys, values)
        if self._validate is None and not self._captures:
            return found
        if isinstance(found, SingleResults) and (all_fitting := self._fitting(found.results)) is not None:
            return SingleResults(all_fitting)
        missing = found.count(None)
        fitting = [self._fitting(results) if type(results) is list else results for results in found]
        self.count_damaged(fitting.count(None) - missing)
        return fitting

    def _fitting(self, results: list[Any]) -> list[Any] | None:
        if self._validate is not None:
            try:
                results = [*map(self._validate, results)]
            except Exception:  # another function made it: call this one
                return None
        return [{"value": value, "error": None} for value in results] if self._captures else results


def _needs_no_type(value: Any) -> bool:
    """Whether a value comes back as it was without a declared type."""
    kind = type(value)
    if kind is list:
        return all(map(_needs_no_type, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_needs_no_type, value.values()))
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    return kind in (type(None), bool, float, str, bytes)


def type_text(arrow_type: pa.DataType | None) -> str:
    """A declared type as a text for keys, the same in every version of a library and every session.

    >>> type_text(pa.struct([("temp", pa.float64()), ("sky", pa.large_string())]))
    'struct<"temp":double,"sky":string>'
    """
    if arrow_type is None:
        return ""
    if isinstance(arrow_type, ObjectType):
        return f"{arrow_type.form.name}({type_text(arrow_type.storage_type)})"
    if pa.types.is_struct(arrow_type):
        inside = ",".join(f'"{_escaped(field.name)}":{type_text(field.type)}' for field in fields_of(arrow_type))
        return f"struct<{inside}>"
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"list<{type_text(arrow_type.value_type)}>"
    if pa.types.is_map(arrow_type):
        return f"map<{type_text(arrow_type.key_type)},{type_text(arrow_type.item_type)}>"
    if pa.types.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz is None else "timestamp with time zone"
    if pa.types.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    for matches, _, name in _PLAIN:
        if matches(arrow_type):
            return name or str(arrow_type)
    return str(arrow_type)


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


# Arrow type, the Python type that the codec reads it as, and its name if Arrow has several.
_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], Any, str]] = (
    (pa.types.is_boolean, bool, "bool"),
    (pa.types.is_floating, float, ""),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), str, "string"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), bytes, "binary"),
    (pa.types.is_decimal, decimal.Decimal, ""),
    (pa.types.is_date, datetime.date, "date"),
    (pa.types.is_timestamp, datetime.datetime, ""),
    (pa.types.is_time, datetime.time, "time"),
    (pa.types.is_duration, datetime.timedelta, "duration"),
)


def _annotation(arrow_type: pa.DataType, name: str) -> Any:
    if isinstance(arrow_type, ObjectType):
        return _annotation(arrow_type.storage_type, name)
    if pa.types.is_integer(arrow_type):
        return _integer(arrow_type)
    if pa.types.is_struct(arrow_type):
        inside = {field.name: _nullable(field, name) for field in fields_of(arrow_type)}
        return TypedDict("Result", inside)  # type: ignore[operator]
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return list[_nullable(arrow_type.value_field, name)]  # type: ignore[misc]
    if pa.types.is_map(arrow_type):
        key, item = _annotation(arrow_type.key_type, name), _nullable(arrow_type.item_field, name)
        # With keys that no dict can have, a map is a list of pairs, as from the validator.
        return list[tuple[key, item]] if pa.types.is_nested(arrow_type.key_type) else dict[key, item]  # type: ignore[valid-type]
    for matches, annotation, _ in _PLAIN:
        if matches(arrow_type):
            return annotation
    raise FunctionError(f"results of {name} cannot be kept in a store: they are declared {arrow_type}; leave store out")


def _integer(arrow_type: pa.DataType) -> Any:
    from msgspec import Meta

    high = 2 ** (arrow_type.bit_width - 1) - 1
    return Annotated[int, Meta(ge=-high - 1, le=high)]


def _nullable(field: pa.Field, name: str) -> Any:
    annotation = _annotation(field.type, name)
    return annotation | None if field.nullable else annotation


def _is_exact(arrow_type: pa.DataType) -> bool:
    """Whether reading a value checks as much as a validator."""
    if isinstance(arrow_type, ObjectType):
        return _is_exact(arrow_type.storage_type)
    if pa.types.is_struct(arrow_type):
        return all(_is_exact(field.type) for field in fields_of(arrow_type))
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return _is_exact(arrow_type.value_type)
    return any(matches(arrow_type) for matches in _EXACT)
