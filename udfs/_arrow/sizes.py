"""How large values are: what their types say, and an estimate of each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .._functions.side_outputs import SideRecord
from .rows import fields_of

__all__ = (
    "may_be_large",
    "weight",
)


def may_be_large(kind: pa.DataType) -> bool:
    """Whether values of a type differ in size, as texts and lists do."""
    if pa.types.is_struct(kind):
        return any(may_be_large(field.type) for field in fields_of(kind))
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


NUMBER = 8  # bytes


def weight(value: Any) -> int:
    """About how many bytes a result holds: texts and bytes by their length, all else eight a value; keys too."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value)
    if kind is dict:
        return sum(map(weight, value)) + sum(map(weight, value.values()))
    if kind is list or kind is tuple:
        return NUMBER * len(value) if not value or isinstance(value[0], (int, float)) else sum(map(weight, value))
    if kind is SideRecord:
        return weight(value.value)
    for text in (str, bytes, bytearray):
        if issubclass(kind, text):
            return text.__len__(value)  # a subclass may have one of its own, which fails
    return value.nbytes if kind is memoryview else NUMBER
