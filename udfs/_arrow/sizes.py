"""How large values are: what their types say, and an estimate of each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .._functions.side_outputs import SideRecord
from .rows import fields_of

__all__ = ("estimated_size", "may_be_large")


def may_be_large(arrow_type: pa.DataType) -> bool:
    """Whether values of a type differ in size, as texts and lists do."""
    if pa.types.is_struct(arrow_type):
        return any(may_be_large(field.type) for field in fields_of(arrow_type))
    return not (pa.types.is_primitive(arrow_type) or pa.types.is_decimal(arrow_type) or pa.types.is_null(arrow_type))


NUMBER = 8  # bytes


def estimated_size(value: Any) -> int:
    """About how many bytes a result holds: texts and bytes by their length, all else eight a value; keys too."""
    # Not sys.getsizeof, which does not look inside: this is about what results weigh in a queue and in an Arrow batch.
    # Of a list of numbers only the first is looked at, as an embedding has thousands.
    cls = type(value)
    if cls is str or cls is bytes:
        return len(value)
    if cls is dict:
        return sum(map(estimated_size, value)) + sum(map(estimated_size, value.values()))
    if cls is list or cls is tuple:
        return (
            NUMBER * len(value) if not value or isinstance(value[0], (int, float)) else sum(map(estimated_size, value))
        )
    if cls is SideRecord:
        return estimated_size(value.value)
    for text in (str, bytes, bytearray):
        if issubclass(cls, text):
            return text.__len__(value)  # a subclass may have one of its own, which fails
    return value.nbytes if cls is memoryview else NUMBER
