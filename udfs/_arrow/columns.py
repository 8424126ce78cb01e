"""Columns of Arrow as lists of Python values, a whole column at a time.

`to_pylist` makes one value after another, before pyarrow 26 by way of a scalar of Arrow: that takes 0.3 to 15 us for
each, where a row costs 3. Here numpy makes the values of flat columns, and nested ones are put together from those. It
reads the buffers of numbers and times itself: `to_numpy` imports pandas.
"""

from __future__ import annotations

import datetime
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

_MAKES_NO_SCALARS = int(pa.__version__.partition(".")[0]) >= 26  # of numbers, texts, and lists and structs of them
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_NUMBERS = {
    pa.int8(): "i1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8", pa.uint8(): "u1", pa.uint16(): "u2",
    pa.uint32(): "u4", pa.uint64(): "u8", pa.float32(): "f4", pa.float64(): "f8",
}  # fmt: skip
_TEXTS_AND_FLAGS = frozenset([pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.bool_()])
_TIMES = {pa.date32(): "i4", pa.timestamp("us"): "M8[us]", pa.duration("us"): "m8[us]"}  # not of nanoseconds


def python_values(column: pa.Array) -> list[Any]:
    """What `to_pylist` gives, but a dict for each map, and UTC as the zone of each timestamp that has one.

    Arrays and structs that are keys become tuples.

    Raises:
        KeyError: a map has a key more than once.
        ValueError, OverflowError: a moment is not in the years 1 to 9999.
    """
    arrow_type = column.type
    if not len(column):  # an empty list may have no offsets, and `flatten` reads the first
        return []
    if _MAKES_NO_SCALARS and _is_simple(arrow_type):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        return _structs(column)
    if pa.types.is_map(arrow_type):
        return _maps(column)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return _lists(column)
    if arrow_type in _NUMBERS:
        return _numbers(column)
    if arrow_type in _TEXTS_AND_FLAGS or pa.types.is_decimal128(arrow_type):
        return _by_numpy(column)
    if arrow_type in _TIMES:
        return _times(column)
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "us":
        # Half the time of giving each a zone, which is a call with a keyword.
        return [None if since is None else _EPOCH + since for since in _times(column.view(pa.duration("us")))]
    return column.to_pylist()  # type: ignore[no-any-return]


def has_plain_values(arrow_type: pa.DataType) -> bool:
    """Whether all values are None, bool, int, float, str, bytes, or lists of these at any depth."""
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return has_plain_values(arrow_type.value_type)
    if isinstance(arrow_type, pa.BaseExtensionType):  # an ObjectType, which has no hash
        return False
    return pa.types.is_null(arrow_type) or arrow_type in _NUMBERS or arrow_type in _TEXTS_AND_FLAGS


def _is_simple(arrow_type: pa.DataType) -> bool:
    if pa.types.is_struct(arrow_type):
        return all(_is_simple(field.type) for field in arrow_type)
    if pa.types.is_list(arrow_type):
        return _is_simple(arrow_type.value_type)
    return arrow_type in _NUMBERS or arrow_type in _TEXTS_AND_FLAGS


def _by_numpy(column: pa.Array) -> list[Any]:
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _in_buffer(column: pa.Array, number: int, dtype: str, more: int = 0) -> Any:
    """The values in a buffer of a column: one for each of its rows, and `more` behind them."""
    buffer = column.buffers()[number]
    start = column.offset * np.dtype(dtype).itemsize
    return np.frombuffer(buffer, dtype, len(column) + more, start)


def _nulls(column: pa.Array) -> Any:
    """The numbers of the rows that are NULL."""
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    return np.flatnonzero(bits[column.offset : column.offset + len(column)] == 0)


def _numbers(column: pa.Array) -> list[Any]:
    # Beside a null numpy would make 2**53 + 1 a float, and of the null a nan.
    return _with_nulls(_in_buffer(column, 1, _NUMBERS[column.type]).tolist(), column)


def _with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    if column.null_count:
        for i in _nulls(column).tolist():
            values[i] = None
    return values


def _times(column: pa.Array) -> list[Any]:
    found = _in_buffer(column, 1, _TIMES[column.type])
    values = _with_nulls((found.astype("M8[D]") if column.type == pa.date32() else found).tolist(), column)
    if values.count(None) == column.null_count and int not in set(map(type, values)):
        return values
    return column.to_pylist()  # type: ignore[no-any-return]  # numpy's NaT, or a year that makes pyarrow raise


def _structs(column: pa.Array) -> list[Any]:
    empty = dict.fromkeys(field.name for field in column.type)
    structs: list[Any] = [empty.copy() for _ in range(len(column))]
    for name, values in zip(empty, map(python_values, column.flatten()), strict=True):
        for struct, value in zip(structs, values, strict=True):
            struct[name] = value
    return _with_nulls(structs, column)


def _lists(column: pa.Array) -> list[Any]:
    return _with_nulls(_in_groups(column, python_values(column.flatten())), column)


def _maps(column: pa.Array) -> list[Any]:
    # As lists of structs, without a copy. `flatten` takes a map in newer versions only, and `view` errs about void.
    entries, buffers = column.values, column.buffers()[:2]
    column = pa.Array.from_buffers(
        pa.list_(entries.type), len(column), buffers, offset=column.offset, children=[entries]
    )
    keys, items = map(python_values, column.flatten().flatten())
    pairs = list(zip(map(as_key, keys), items, strict=True))
    maps = list(map(dict, _in_groups(column, pairs)))
    if sum(map(len, maps)) < len(pairs):
        raise KeyError("a key is there twice")
    return _with_nulls(maps, column)


def _in_groups(column: pa.Array, items: list[Any]) -> list[Any]:
    """The items of each row of a column of lists."""
    sizes = np.diff(_in_buffer(column, 1, "i8" if pa.types.is_large_list(column.type) else "i4", more=1))
    if column.null_count:
        sizes[_nulls(column)] = 0  # `flatten` leaves out what is there
    return [items[start:end] for start, end in pairwise(accumulate(sizes.tolist(), initial=0))]


def as_key(value: Any) -> Any:
    """A value as the key of a dict: structs and arrays become tuples."""
    if isinstance(value, (dict, list)):
        return tuple(map(as_key, value.values() if isinstance(value, dict) else value))
    return value
