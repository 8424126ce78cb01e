"""Keys of results: a hash of the function's name, version, declared type and arguments, in one canonical encoding."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Any

from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import type_name

Arguments = Sequence[Any] | Mapping[str, Any]

KEY_BYTES = 16
_copy, _update, _digest = blake2b.copy, blake2b.update, blake2b.digest
SCHEME = "asyncudf 1"  # to be changed with what keys are made of: old results are then not found


class ResultKeys:
    """Makes the keys of one function's results: 128 bits of BLAKE2b.

    Equal arguments have equal keys in all processes, on all hosts, with all versions of Python.

    Args:
        version: the version of the function; it differs after the function has changed.
        key: a function of the arguments: its result takes their place in the key.
        defaults: the defaults of parameters, which are arguments too.
        names: the names of the parameters that are filled, unless these are the first parameters: otherwise `f(b=x)`
            and `f(x)` would have one key.
    """

    def __init__(
        self,
        function: str,
        version: str,
        declared: str,
        key: Callable[..., Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        # What `key` makes of arguments differs from arguments that look the same.
        parts: list[Any] = [SCHEME, function, version, declared, *(["key"] if key is not None else [])]
        if defaults:
            parts.append(dict(defaults))
        if names:
            parts.append(list(names))
        # To copy it costs a third of making one.
        self._hash = blake2b(blake2b(canonical(parts), digest_size=32).digest(), digest_size=KEY_BYTES)
        self._key = key

    def of(self, arguments: Arguments) -> bytes:
        """The key of a row; a mapping counts with its names. AsyncUDFError for a value that has no canonical form."""
        if self._key is None:
            return self._made(canonical(arguments))
        # A mapping is one argument.
        given = (arguments,) if isinstance(arguments, Mapping) else arguments
        return self._made(canonical((self._key(*given),)))

    def of_many(self, rows: Sequence[Arguments], *, are_plain: bool = False) -> list[bytes]:
        """The keys of many rows, at a lower cost than `of` for each row; `are_plain`: as in `canonical_rows`."""
        if self._key is not None:
            return [self.of(row) for row in rows]
        encoded = canonical_rows(rows, are_plain=are_plain)
        # One kind of step for all rows after another: a loop of Python would cost as much again as `_copy`.
        hashes = [*map(_copy, repeat(self._hash, len(encoded)))]
        for _ in map(_update, hashes, encoded):
            pass
        return [*map(_digest, hashes)]

    def of_call(self, rows: Sequence[Arguments]) -> bytes:
        """One key for all rows of a call."""
        return blake2b(b"".join(self.of_many(rows)), digest_size=KEY_BYTES).digest()

    def _made(self, encoded: bytes) -> bytes:
        hashed = self._hash.copy()
        hashed.update(encoded)
        return hashed.digest()


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))  # MessagePack has each of these classes
_ROWS = frozenset((tuple, list))

# MessagePack as msgspec writes it, with what it lacks as extension types. Of each value it has one shortest form; that
# msgspec writes it, in all its versions, the keys in tests/stores/test_keys.py show.
_BIG_INTEGER, _BROKEN_TEXT, _DECIMAL, _DATE, _TIME, _MOMENT, _LOCAL_MOMENT, _DURATION, _MAP, _RECORD = range(1, 11)
_OBJECT = 11

_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_NAN = b"\xcb\x7f"


@functools.cache
def _encoder() -> Callable[[Any], bytes]:
    try:
        from msgspec.msgpack import Encoder
    except ImportError as error:
        raise OptionError('a store of results needs msgspec: pip install "asyncudf[store]"') from error
    return Encoder().encode


def canonical(value: Any) -> bytes:
    """The bytes of a value: equal for values that a function cannot tell apart, and for no other values.

    1, 1.0, True and "1" differ, as do 0.0 and -0.0; NULL is a value. Entries of a map have no order. A moment is the
    same in each time zone, and differs from a time without a zone. A list and a tuple are the same; a tuple with names,
    such as a Row, differs. An instance of a subclass counts as an instance of its base class.

    Raises:
        AsyncUDFError: a value of a class that is not known here, or that is nested too deeply.
    """
    try:
        if _is_plain(value):
            try:
                encoded = _encoder()(value)
                if not _may_have_nan(encoded):
                    return encoded
            except (OverflowError, ValueError):  # a number of more than 64 bits, text that is not Unicode
                pass
        return _encoder()(_plain(value))
    except RecursionError:
        raise AsyncUDFError(
            "no key of a store can be made of a value that is nested so deeply; let the store's key= give another"
        ) from None


def canonical_rows(rows: Sequence[Any], *, are_plain: bool = False) -> list[bytes]:
    """The bytes of many rows, at a lower cost than a call of `canonical` for each row.

    `are_plain`: the rows are tuples of None, bool, int, float, str, bytes, and of lists of these types at any depth.
    """
    # All types are checked at once: row by row it would cost as much as to encode them.
    if are_plain or (
        _ROWS.issuperset(map(type, rows)) and _PLAIN.issuperset(map(type, itertools.chain.from_iterable(rows)))
    ):
        with contextlib.suppress(OverflowError, ValueError):
            encoded = [*map(_encoder(), rows)]
            if not _may_have_nan(b"".join(encoded)):
                return encoded
    # No `map` over code of the user's: a StopIteration would end it.
    return [canonical(row) for row in rows]


def _is_plain(value: Any) -> bool:
    """Whether MessagePack has the type of the value; a nan and a large number still need another form."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    return kind in _ROWS and (_PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value)))


def _may_have_nan(encoded: bytes) -> bool:
    return _NAN in encoded or b"\xcb\xff" in encoded  # the beginning of each nan, and of some others


def _plain(value: Any) -> Any:
    """The same value, made of MessagePack's own types and our extension types."""
    return (_FORMS.get(type(value)) or _form_of(value))(value)


def _form_of(value: Any) -> Callable[[Any], Any]:
    """The form of a subclass, such as that of an enum, or of a class with the methods of a number or a mapping."""
    # Not for subclasses of moments: pandas' Timestamp has nanoseconds, and two that differ must not be one key.
    for base in (str, bytes, float, tuple, list, dict, decimal.Decimal):
        if isinstance(value, base):
            return _FORMS[base]
    if isinstance(value, Mapping):
        return lambda mapping: _pairs(mapping.items())
    if isinstance(value, numbers.Integral) and hasattr(type(value), "__index__"):  # numpy's, IntEnum
        return lambda number: _integer(operator.index(number))
    if (stored := _stored_object(value)) is not None:
        return lambda _: _extension(_OBJECT, canonical(stored))
    raise _unknown(value)


def _stored_object(value: Any) -> tuple[Any, ...] | None:
    """What Spark stores of an object, with the name of its type; None if it is no object of Spark's."""
    # Known by their names: this package does not import Spark.
    kind = type(value)
    if hasattr(kind, "__UDT__"):
        return type(kind.__UDT__).__name__, kind.__UDT__.serialize(value)
    if kind.__module__ == "pyspark.sql.types" and kind.__name__ == "VariantVal":
        return kind.__name__, _binary(value.value), _binary(value.metadata)
    if kind.__module__ == "pyspark.sql.types" and kind.__name__ in ("Geometry", "Geography"):
        return kind.__name__, value.getSrid(), _binary(value.getBytes())
    return None


def _unknown(value: Any, what: str = "") -> AsyncUDFError:
    return AsyncUDFError(
        f"no key of a store can be made of a value of type {type_name(value)}{what}; let the store's key= give a "
        "string, a number, or a tuple of such"
    )


def _extension(kind: int, content: bytes) -> Any:
    from msgspec.msgpack import Ext

    return Ext(kind, content)


def _integer(value: int) -> Any:
    if -(2**63) <= value < 2**64:
        return int(value)
    return _extension(_BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


# The methods of a subclass may give the same for values that differ. So the methods of the base class are called.


def _float(value: float) -> float:
    return math.nan if math.isnan(value) else float.__float__(value)  # a nan may have any sign and payload


def _text(value: str) -> Any:
    try:
        return str.encode(value).decode()
    except UnicodeEncodeError:  # half an emoji, as JSON allows it
        return _extension(_BROKEN_TEXT, str.encode(value, "utf-8", "surrogatepass"))


def _list(value: list[Any]) -> Any:
    return [_plain(item) for item in list.__getitem__(value, slice(None))]


def _tuple(value: tuple[Any, ...]) -> Any:
    items = [_plain(item) for item in tuple.__getitem__(value, slice(None))]
    # pyspark's Row, unless it was made without names; a named tuple
    names = getattr(value, "__fields__", None) or getattr(value, "_fields", None) if type(value) is not tuple else None
    return items if names is None else _extension(_RECORD, canonical(tuple(names)) + _encoder()(items))


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> Any:
    # No form is the beginning of another, so that pairs sort by their keys alone.
    return _extension(_MAP, b"".join(sorted([canonical(key) + canonical(item) for key, item in pairs])))


def _moment(value: datetime.datetime) -> Any:
    is_aware = value.utcoffset() is not None
    if value.tzinfo is not None and not is_aware:
        raise _unknown(value, " with a time zone that does not tell how far it is from UTC")
    since = value - _UTC_EPOCH if is_aware else value.replace(tzinfo=None) - _EPOCH
    return _extension(_MOMENT if is_aware else _LOCAL_MOMENT, canonical(since // _MICROSECOND))


def _time(value: datetime.time) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:  # as in Oslo: it depends on the day
        raise _unknown(value, " with a time zone that does not tell how far it is from UTC")
    return _extension(_TIME, value.isoformat().encode())


def _decimal(value: decimal.Decimal) -> Any:
    # The decimal context says whether the E is a capital.
    return _extension(_DECIMAL, decimal.Decimal.__str__(value).upper().encode())


def _binary(value: bytes | bytearray | memoryview) -> bytes:
    return memoryview(value).tobytes()


_FORMS: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
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
    datetime.timedelta: lambda value: _extension(_DURATION, canonical(value // _MICROSECOND)),
}
