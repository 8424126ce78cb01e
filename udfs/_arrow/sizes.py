"""How much memory values take as Python objects: results, arguments, and columns of Arrow that become such."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Any

import pyarrow as pa

from .._functions.side_outputs import SideRecord

NUMBER_BYTES = 32
OTHER_BYTES = 104  # the most that a date, time, datetime, timedelta or decimal takes
TEXT_BYTES = 57  # an empty string or bytes
ITEM_BYTES = 8  # for each item of a list
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
BYTES_OF = {type(None): 0, bool: 0, int: NUMBER_BYTES, float: NUMBER_BYTES}


def size_estimate(arrow_type: pa.DataType) -> Callable[[Any], int] | None:
    """A function that estimates the bytes of a value that was checked for this type; None: all have `fixed_size`."""
    if fixed_size(arrow_type) is not None:
        return None
    if pa.types.is_struct(arrow_type):
        return _size_of_structs(arrow_type)
    # For texts and bytes a function in C, as it is called for each row.
    return getsizeof if any(is_of(arrow_type) for is_of in TEXTS) else estimated_size


def _size_of_structs(struct: pa.DataType) -> Callable[[Any], int]:
    # Without the names of the fields, which all rows share.
    sizes = [(field.name, size_estimate(field.type)) for field in struct]
    varying = [(name, size) for name, size in sizes if size is not None]
    fixed = size_of_dict(len(sizes)) + sum(fixed_size(field.type) or 0 for field in struct)
    return lambda value: 0 if value is None else fixed + sum([size(value[name]) for name, size in varying])


def fixed_size(arrow_type: pa.DataType) -> int | None:
    """The bytes of each value of a type; None if values differ in size, as texts and lists do."""
    if pa.types.is_struct(arrow_type):
        sizes = [fixed_size(field.type) for field in arrow_type]
        return None if None in sizes else size_of_dict(len(sizes)) + sum(filter(None, sizes))
    if pa.types.is_null(arrow_type) or pa.types.is_boolean(arrow_type):
        return 0
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return NUMBER_BYTES
    return OTHER_BYTES if pa.types.is_primitive(arrow_type) or pa.types.is_decimal(arrow_type) else None


def size_of_dict(items: int) -> int:
    return getsizeof(dict.fromkeys(range(items)))


def estimated_size(value: Any) -> int:
    """An estimate of the bytes of a value and of all that is in it."""
    # Objects that several rows share count for each. A list whose first item is a number counts as a list of numbers:
    # an embedding has thousands. The methods of a subclass may raise, so those of its base class are called.
    cls = type(value)
    if cls is str or cls is bytes:
        return getsizeof(value)
    if cls in BYTES_OF:
        return BYTES_OF[cls]
    if cls is dict:
        return getsizeof(value) + sum(map(estimated_size, value)) + sum(map(estimated_size, value.values()))
    if cls is list or cls is tuple:
        if cls is list and value and isinstance(value[0], (int, float)):
            return getsizeof(value) + NUMBER_BYTES * len(value)
        return getsizeof(value) + sum(map(estimated_size, value))
    if cls is SideRecord:
        return estimated_size(value.value)
    for text in (str, bytes, bytearray):
        if issubclass(cls, text):
            return text.__sizeof__(value)
    return value.nbytes if cls is memoryview else object.__sizeof__(value)


def size_as_objects(column: pa.Array) -> int:
    """An estimate of the bytes of a column's values when they have become a list of Python objects."""
    count, arrow_type = len(column), column.type
    if not count:  # an empty list may have no offsets, and `flatten` reads the first
        return 0
    if (fixed := fixed_size(arrow_type)) is not None:
        return (ITEM_BYTES + fixed) * count
    if pa.types.is_struct(arrow_type):
        return size_of_dict(arrow_type.num_fields) * count + sum(map(size_as_objects, column.flatten()))
    if pa.types.is_map(arrow_type):  # a place in a dict takes as much as a hundred bytes
        return (ITEM_BYTES + TEXT_BYTES) * count + 2 * (size_as_objects(column.keys) + size_as_objects(column.items))
    own = (ITEM_BYTES + TEXT_BYTES) * count
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return own + size_as_objects(column.flatten())
    return own + int(column.nbytes)
