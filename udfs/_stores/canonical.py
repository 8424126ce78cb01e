"""One sequence of bytes for each value: the same in every process, on every host, with every version of Python."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._errors.exceptions import AsyncUDFError
from .._text.safe import type_name

__all__ = ("PLAIN", "canonical", "is_plain")


PLAIN = frozenset((type(None), bool, int, float, str, bytes))  # classes of which MessagePack has each

# MessagePack, of which there is one form for each value, with what it lacks as extension types. It is written here by
# hand, and not left to a library, because a library's next version may write the same value in another way.
_BIG_INTEGER, _BROKEN_TEXT, _DECIMAL, _DATE, _TIME, _MOMENT, _LOCAL_MOMENT, _DURATION, _MAP, _RECORD = range(1, 11)

_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_NAN = b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"


def canonical(value: Any) -> bytes:
    """The bytes of a value; equal for values that a function cannot tell apart, and for no others.

    1, 1.0, True and "1" differ, as do 0.0 and -0.0; NULL is a value. Entries of a map have no order. A moment is the
    same in each time zone; with no zone it is another. A list and a tuple are the same; with names, as a Row has
    them, it is another. Of an instance of a subclass counts what it is as one of its base class.

    Raises:
        AsyncUDFError: a value of a class that is not known here.
    """
    encode = _ENCODERS.get(type(value)) or _encoder_of(value)
    return encode(value)


def is_plain(value: Any) -> bool:
    """Whether any encoder of MessagePack writes the value as `canonical` does, unless it raises or meets a nan."""
    kind = type(value)
    if kind in PLAIN:
        return True
    return kind in (list, tuple) and (PLAIN.issuperset(map(type, value)) or all(map(is_plain, value)))


def _encoder_of(value: Any) -> Callable[[Any], bytes]:
    """For subclasses, such as those of an enum, and for what is a number or a mapping by its methods."""
    # Not for subclasses of moments: pandas' Timestamp has nanoseconds, and two that differ must not be one key.
    for base in (str, bytes, float, tuple, list, dict, decimal.Decimal):
        if isinstance(value, base):
            return _ENCODERS[base]
    if isinstance(value, Mapping):
        return lambda mapping: _pairs(mapping.items())
    if isinstance(value, numbers.Integral) and hasattr(type(value), "__index__"):  # numpy's, IntEnum
        return lambda number: _integer(operator.index(number))
    raise _unknown(value)


def _unknown(value: Any, what: str = "") -> AsyncUDFError:
    return AsyncUDFError(
        f"no key of a store can be made of a value of type {type_name(value)}{what}; let the store's key= give a "
        "string, a number, or a tuple of such"
    )


def _head(short: int, limit: int, markers: Sequence[int], length: int) -> bytes:
    """How MessagePack begins what has a length: `short` for less than `limit`, else a marker for 1, 2 or 4 bytes."""
    if length < limit:
        return bytes((short | length,))
    for marker, size in zip(markers, (1, 2, 4), strict=True):
        if marker and length < 1 << 8 * size:
            return bytes((marker,)) + length.to_bytes(size, "big")
    raise AsyncUDFError(f"no key of a store can be made of a value of {length} bytes or items")


def _extension(kind: int, content: bytes) -> bytes:
    return _head(0, 0, (0xC7, 0xC8, 0xC9), len(content)) + bytes((kind,)) + content


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes((value & 0xFF,))
    markers, signed = ((0xCC, 0xCD, 0xCE, 0xCF), False) if value > 0 else ((0xD0, 0xD1, 0xD2, 0xD3), True)
    for marker, size in zip(markers, (1, 2, 4, 8), strict=True):
        bits = 8 * size - signed
        if -(1 << bits) <= value < 1 << bits:
            return bytes((marker,)) + value.to_bytes(size, "big", signed=signed)
    return _extension(_BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


# A subclass may have methods of its own; what they would give may be the same for values that differ. So the methods of
# the base class are called.


def _float(value: float) -> bytes:
    return _NAN if math.isnan(value) else b"\xcb" + struct.pack(">d", value)  # a nan may have any sign and payload


def _text(value: str) -> bytes:
    try:
        content = str.encode(value)
    except UnicodeEncodeError:  # half an emoji, as JSON allows it
        return _extension(_BROKEN_TEXT, str.encode(value, "utf-8", "surrogatepass"))
    return _head(0xA0, 32, (0xD9, 0xDA, 0xDB), len(content)) + content


def _binary(value: bytes | bytearray | memoryview) -> bytes:
    content = memoryview(value).tobytes()
    return _head(0, 0, (0xC4, 0xC5, 0xC6), len(content)) + content


def _list(value: list[Any]) -> bytes:
    return _array(list.__getitem__(value, slice(None)))


def _tuple(value: tuple[Any, ...]) -> bytes:
    items = _array(tuple.__getitem__(value, slice(None)))
    if type(value) is tuple:
        return items
    # pyspark's Row, unless it was made without names; a named tuple
    names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    return items if names is None else _extension(_RECORD, _array(tuple(names)) + items)


def _array(value: Sequence[Any]) -> bytes:
    return _head(0x90, 16, (0, 0xDC, 0xDD), len(value)) + b"".join([canonical(item) for item in value])


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> bytes:
    # No form is the beginning of another, so that pairs sort by their keys alone.
    return _extension(_MAP, b"".join(sorted([canonical(key) + canonical(item) for key, item in pairs])))


def _moment(value: datetime.datetime) -> bytes:
    is_aware = value.utcoffset() is not None
    if value.tzinfo is not None and not is_aware:
        raise _unknown(value, " with a time zone that does not tell how far it is from UTC")
    since = value - _UTC_EPOCH if is_aware else value.replace(tzinfo=None) - _EPOCH
    return _extension(_MOMENT if is_aware else _LOCAL_MOMENT, _integer(since // _MICROSECOND))


def _time(value: datetime.time) -> bytes:
    if value.tzinfo is not None and value.utcoffset() is None:  # as in Oslo: it depends on the day
        raise _unknown(value, " with a time zone that does not tell how far it is from UTC")
    return _extension(_TIME, value.isoformat().encode())


def _decimal(value: decimal.Decimal) -> bytes:
    # The decimal context says whether the E is a capital.
    return _extension(_DECIMAL, decimal.Decimal.__str__(value).upper().encode())


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\xc0",
    bool: lambda value: b"\xc3" if value else b"\xc2",
    int: _integer,
    float: _float,
    str: _text,
    bytes: _binary,
    bytearray: _binary,
    memoryview: _binary,
    list: _list,
    tuple: _tuple,
    dict: lambda value: _pairs(dict.items(value)),
    decimal.Decimal: _decimal,
    datetime.datetime: _moment,
    datetime.date: lambda value: _extension(_DATE, value.isoformat().encode()),
    datetime.time: _time,
    datetime.timedelta: lambda value: _extension(_DURATION, _integer(value // _MICROSECOND)),
}
