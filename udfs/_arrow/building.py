"""Arrow arrays of lists of Python values, put together from their buffers.

`pa.array` imports pandas at its first list, to know pandas' values where it meets one: 50 MB and half a second in each
worker. Values that a validator has checked are no such values, and their arrays are made here as fast without it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from .objects import fields_of

JOINED_AT_ONCE = 100  # texts, so that what they are copied from is small
LONGEST = 2**31 - 1  # bytes of text, or items, in an array: what its offsets can say

Build = Callable[[Sequence[Any]], pa.Array]
Parts = tuple[list[pa.Buffer], list[pa.Array]]  # the buffers of an array behind that of its NULLs, and its children


def array(values: Sequence[Any], arrow_type: pa.DataType) -> Any:
    """The values as an array, with NULL in each field of a struct that is NULL.

    `pa.array` makes what this cannot: arrays of other types, of values that do not fit, and of more than 2 GiB of text,
    which are chunked.
    """
    if (build := builder(arrow_type)) is not None:
        try:
            made = build(values)
            # Types whose fields differ in metadata alone, such as Spark's variant, are equal, and have one builder.
            return made if made.type.equals(arrow_type, check_metadata=True) else made.view(arrow_type)
        except (TypeError, AttributeError, KeyError, ValueError, OverflowError):
            pass  # pyarrow says what is wrong
    made = pa.array(values, type=arrow_type)
    return made if isinstance(made, pa.ChunkedArray) else with_null_fields(made)


def with_null_fields(array: pa.Array) -> pa.Array:
    """The array with NULL in each field of a struct that is NULL, at any depth; the array itself if no struct is NULL.

    pyarrow fills these fields with 0 and "", and an engine that reads a field alone, as Sail does, takes those for
    values.
    """
    # Values are shared; only the bits that say what is NULL are made anew.
    if pa.types.is_struct(array.type):
        is_whole = not array.null_count
        given = [array.field(i) for i in range(array.type.num_fields)] if is_whole else array.flatten()
        fields = [*map(with_null_fields, given)]
        if not fields or (is_whole and all(map(operator.is_, fields, given))):
            return array
        return pa.StructArray.from_arrays(
            fields, fields=fields_of(array.type), mask=None if is_whole else array.is_null()
        )
    if not fields_of(array.type):
        return array
    given = array.values
    items = with_null_fields(given)
    if items is given:
        return array
    # Not of offsets: a list that is NULL, or not at the beginning of its values, stays as it is.
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset, children=[items])


def _kind_of(arrow_type: pa.DataType) -> Any:
    """What stands for a NULL of the type, and what makes the function for it; None if there is none."""
    return next(((filler, parts) for matches, filler, parts in _KINDS if matches(arrow_type)), None)


@functools.lru_cache
def builder(arrow_type: pa.DataType) -> Build | None:
    """The function that makes arrays of a type without pandas; None if there is none."""
    inner = [builder(field.type) for field in fields_of(arrow_type)]
    found = _kind_of(arrow_type)
    if found is None or None in inner:
        return None
    filler, parts_of = found
    if is_struct := pa.types.is_struct(arrow_type):
        # NULL in each field: those with fields of their own find it, and the others are masked, which costs no look.
        filler = {field.name: None if fields_of(field.type) else _kind_of(field.type)[0] for field in arrow_type}
    parts: Callable[[Sequence[Any]], Parts] = parts_of(arrow_type, inner)

    def build(values: Sequence[Any]) -> pa.Array:
        if not values:
            return pa.nulls(0, arrow_type)
        # Most often nothing is NULL, so nothing looks for one: each function below raises at None.
        validity = None
        try:
            buffers, children = parts(values)
        except (TypeError, AttributeError):
            there = [value is not None for value in values]
            if True not in there:  # such as the error of each row that has none
                return pa.nulls(len(values), arrow_type)
            validity = _bits(there)
            buffers, children = parts([filler if value is None else value for value in values])
            if is_struct:
                children = [child if fields_of(child.type) else _masked(child, validity) for child in children]
        return pa.Array.from_buffers(arrow_type, len(values), [validity, *buffers], children=children)

    return build


def _masked(array: pa.Array, validity: pa.Buffer) -> pa.Array:
    """A flat array with NULL also where its struct is NULL."""
    own, *buffers = array.buffers()
    if own is not None:
        validity = pa.py_buffer(np.frombuffer(own, np.uint8, validity.size) & np.frombuffer(validity, np.uint8))
    return pa.Array.from_buffers(array.type, len(array), [validity, *buffers])


def _bits(flags: Iterable[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.frombuffer(bytes(flags), np.uint8), bitorder="little"))


def _offsets(sizes: Iterable[int], count: int) -> pa.Buffer:
    """Where each of so many begins if they stand one behind the other, and where the last one ends."""
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, count), out=ends[1:])
    if ends[-1] > LONGEST:
        raise OverflowError
    return pa.py_buffer(ends.astype(np.int32))


def _flags(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    return lambda values: ([_bits(values)], [])


def _numbers(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    code = _CODES[arrow_type]

    def parts(values: Sequence[Any]) -> Parts:
        # A third of the cost of `array.array`. numpy would make a nan of None, and 1 of 1.5.
        try:
            return [pa.py_buffer(struct.pack(f"{len(values)}{code}", *values))], []
        except struct.error as error:
            raise TypeError from error

    return parts


def _days(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    first = _EPOCH.toordinal()

    def parts(values: Sequence[Any]) -> Parts:
        days = np.fromiter(map(datetime.date.toordinal, values), np.int32, len(values))
        return [pa.py_buffer(days - np.int32(first))], []

    return parts


def _moments(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    def parts(values: Sequence[Any]) -> Parts:
        since = [value - _EPOCH for value in values]
        # numpy takes five times as long to read a timedelta.
        moments = [(one.days * 86_400 + one.seconds) * 1_000_000 + one.microseconds for one in since]
        return [pa.py_buffer(np.fromiter(moments, np.int64, len(values)))], []

    return parts


def _texts(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    def parts(values: Sequence[Any]) -> Parts:
        if "".join(values[:JOINED_AT_ONCE]).isascii():  # then most often all are
            with contextlib.suppress(UnicodeEncodeError):
                return _joined(values, map(len, values), lambda some: "".join(some).encode("ascii"))
        return _joined(values, map(len, map(str.encode, values)), lambda some: "".join(some).encode())

    return parts


def _bytes(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    return lambda values: _joined(values, map(len, values), b"".join)


def _joined(values: Sequence[Any], sizes: Iterable[int], join: Callable[[Sequence[Any]], bytes]) -> Parts:
    """Values of these sizes in bytes, one behind the other."""
    # In memory of Arrow's pool, which keeps what is freed. Python gives a large block back to the system, and to get
    # its pages anew costs more than all else here.
    offsets = _offsets(sizes, len(values))
    joined = pa.allocate_buffer(int(np.frombuffer(offsets, np.int32)[-1]))
    target, end = memoryview(joined).cast("B"), 0
    for start in range(0, len(values), JOINED_AT_ONCE):
        part = join(values[start : start + JOINED_AT_ONCE])
        begin, end = end, end + len(part)
        target[begin:end] = part
    return [offsets, joined], []


def _lists(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    (items,) = inner
    return lambda values: ([_offsets(map(len, values), len(values))], [items([*chain.from_iterable(values)])])


def _maps(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    fields = fields_of(arrow_type)

    def parts(values: Sequence[Any]) -> Parts:
        keys: list[Any] = [*chain.from_iterable(map(dict.keys, values))]
        items: list[Any] = [*chain.from_iterable(map(dict.values, values))]
        entries = [build(part) for build, part in zip(inner, (keys, items), strict=True)]
        return [_offsets(map(len, values), len(values))], [pa.StructArray.from_arrays(entries, fields=fields)]

    return parts


def _structs(arrow_type: pa.DataType, inner: Sequence[Any]) -> Callable[[Sequence[Any]], Parts]:
    fields = [(operator.itemgetter(field.name), build) for field, build in zip(arrow_type, inner, strict=True)]
    return lambda values: ([], [build([*map(get, values)]) for get, build in fields])


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_CODES: Mapping[pa.DataType, str] = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d",
}  # fmt: skip
# Arrow type, what stands in the buffers for a NULL, and what makes the function for such a type and those inside it.
_KINDS: Sequence[tuple[Callable[[pa.DataType], bool], Any, Callable[..., Callable[[Sequence[Any]], Parts]]]] = (
    (_CODES.__contains__, 0, _numbers),
    (pa.types.is_boolean, False, _flags),
    (pa.types.is_string, "", _texts),
    (pa.types.is_binary, b"", _bytes),
    (pa.types.is_date32, _EPOCH.date(), _days),
    (pa.timestamp("us", "UTC").equals, _EPOCH, _moments),
    (pa.types.is_list, (), _lists),
    (lambda arrow_type: pa.types.is_map(arrow_type) and not pa.types.is_nested(arrow_type.key_type), {}, _maps),
    (lambda arrow_type: pa.types.is_struct(arrow_type) and arrow_type.num_fields, {}, _structs),
)
