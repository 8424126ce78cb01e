"""Results as bytes with a checksum, and back: bytes that are damaged, or of another program, are no result."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Annotated, Any
from zlib import crc32

from .._errors.exceptions import OptionError
from .keys import KEY_BYTES

# Two bytes, the version of the format and what is in it; when it was written (8 bytes, milliseconds since the epoch);
# the content; 4 bytes of CRC-32 of the key and of all before, the lowest byte first, so that the CRC-32 of the key and
# of a whole value is always `_WHOLE`. It covers the key, so that the result of another key, which a bug has put there,
# is not taken.
#
# Version 2 has 8 bytes of BLAKE2b in front instead, of the key and all that follows: to check it was a sixth of a hit.
_VERSION = b"\x03"
_RESULTS, _NO_RESULTS, _FAILURE = _VERSION + b"r", _VERSION + b"s", _VERSION + b"f"
_WHOLE = 0x2144DF1C
_CHECK_BYTES = 4  # at the end
_CONTENT = 10  # where it begins
_ALWAYS, _NEVER = bytes(8), b"\xff" * 8
_ARRAY = b"\xdd"  # of MessagePack; its length follows
_content = itemgetter(slice(_CONTENT, -_CHECK_BYTES))
_ARRAY_OF_ONE = 0x91  # with which the content of a single result begins
_SHORT = 48  # bytes of a value, up to which it costs less to go through a batch byte by byte
_begins, _only_result = itemgetter(_CONTENT), itemgetter(slice(_CONTENT + 1, -_CHECK_BYTES))


@dataclasses.dataclass(frozen=True)
class StoredFailure:
    """A row that failed for good: the name of the exception's class, its message, an HTTP status.

    In jobs with `redact`, a second message that repeats no input, if it differs from the first.
    """

    type: str
    message: str
    status: int | None = None
    redacted: str | None = None


class SingleResults(Sequence[list[Any]]):
    """The results of keys with one result each: a list of one result for each key, made when it is read."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, number: Any) -> Any:
        return [self.results[number]]

    def __iter__(self) -> Iterator[list[Any]]:
        return map(list, zip(self.results, strict=True))


Decoded = Sequence[list[Any] | StoredFailure | None]


class ResultCodec:
    """Encodes the results of one function as MessagePack, and decodes them as the declared type.

    Args:
        annotation: the declared type, as `msgspec` takes it: int, float, str, bool, bytes, Decimal, date, datetime,
            timedelta, time, list, dict, tuple, and a TypedDict for a struct. Results may be None.
        many: whether a row may have none or many; else it has one.
        ttl: seconds for which a result counts here, whichever job has written it; None: as long as the store has it.
        error_ttl: seconds for which a failure counts; None: failures do not count.

    Raises:
        OptionError: msgspec is not installed.
    """

    def __init__(
        self,
        annotation: Any,
        *,
        many: bool = True,
        ttl: float | None = None,
        error_ttl: float | None = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from msgspec import Meta
            from msgspec.msgpack import Decoder, Encoder
        except ImportError as error:
            raise OptionError('a store of results needs msgspec: pip install "asyncudf[store]"') from error
        self._encode: Callable[[Any], bytes] = Encoder(enc_hook=_plain).encode
        results: Any = list[annotation | None]
        if not many:
            results = Annotated[results, Meta(min_length=1, max_length=1)]
        self._decode: Any = Decoder(results).decode
        self._is_single = not many
        inside: Any = results if many else annotation | None
        self._decode_array: Any = Decoder(list[inside]).decode  # pyright: ignore[reportInvalidTypeForm]
        self._decode_failure = Decoder(StoredFailure).decode
        self._ttl, self._error_ttl, self._clock = ttl, error_ttl, clock
        self.damaged: int = 0  # values so far that were none of the function's

    def count_damaged(self, number: int) -> None:
        self.damaged += number

    def kept(self, key: bytes, results: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        """The results of a row (none, one or many) as bytes, and as they are read back.

        None if they have no such form, or are of another type than was declared.
        """
        try:
            try:
                content = self._encode(results)
            except OverflowError:  # a decimal's whole number of more than 64 bits
                content = self._encode(_with_decimals(results))
            return sealed(_RESULTS + _stamp(self._clock()), key, content), self._decode(content)
        except Exception:  # the result is good all the same: it is only not kept
            return None

    def encode_failure(self, key: bytes, failure: StoredFailure) -> bytes:
        return sealed(_FAILURE + _stamp(self._clock()), key, self._encode(failure))

    def decode_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Decoded:
        """The results under each key; None for a value that is missing, too old, damaged or of another program."""
        now = self._clock()
        # To compare whole values takes less time than to cut them up; what follows the head never begins with 255.
        since = _RESULTS + (_ALWAYS if self._ttl is None else _stamp(now - self._ttl)) + b"\xff"
        try:
            return self._decoded(keys, values, since)
        except Exception:  # one of them is something else, or None, which is not to be compared
            if None in values:
                found: list[Any] = [None] * len(values)
                there = [at for at, value in enumerate(values) if value is not None]
                # Not the method of a subclass, which goes on with all that is found here.
                present = ResultCodec.decode_many(self, [keys[at] for at in there], [values[at] for at in there])
                for at, one in zip(there, present, strict=True):
                    found[at] = one
                return found
            failures_since = _NEVER if self._error_ttl is None else _stamp(now - self._error_ttl)
            return [self._one(key, value, since, failures_since) for key, value in zip(keys, values, strict=True)]

    def _decoded(self, keys: Sequence[bytes], values: Sequence[Any], since: bytes) -> Decoded:
        """The decoded results, if all values are undamaged and young enough; else raises an error."""
        # All of them at once: a step of Python for each would cost as much as the rest.
        if self._is_single and (size := len(values[0])) <= _SHORT and {*map(len, values)} == {size}:
            return self._of_one_size(keys, values, size, since)
        is_young = since < min(values) and max(values) < _NO_RESULTS
        if not is_young or {*map(crc32, values, map(crc32, keys))} != {_WHOLE}:
            raise ValueError
        if self._is_single and {*map(_begins, values)} != {_ARRAY_OF_ONE}:
            raise ValueError
        contents = b"".join(map(_only_result if self._is_single else _content, values))
        found: list[Any] = self._decode_array(_ARRAY + len(values).to_bytes(4, "big") + contents)
        return SingleResults(found) if self._is_single else found

    def _of_one_size(self, keys: Sequence[bytes], values: Sequence[bytes], size: int, since: bytes) -> SingleResults:
        """As `decode_many` for single results of one size, such as numbers: all values at once, byte by byte."""
        count, whole, pieces = len(values), b"".join(values), [b""] * (2 * len(values))
        pieces[::2], pieces[1::2] = keys, values
        # The CRC-32 of several pieces, if that of each alone is `_WHOLE`, depends on their sizes alone. Damage of one
        # is seen as surely as alone; the differences of several cancel once in 2**32. Two values that have changed
        # places have the same difference, and these cancel at distances of gigabytes only.
        if crc32(b"".join(pieces)) != crc32(_piece(size) * count):
            raise ValueError
        if self._ttl is not None and min(values) <= since:
            raise ValueError
        for at, byte in ((0, _RESULTS[0]), (1, _RESULTS[1]), (_CONTENT, _ARRAY_OF_ONE)):
            if whole[at::size].count(byte) != count:
                raise ValueError
        begin, end = _CONTENT + 1, size - _CHECK_BYTES
        contents = bytearray(_ARRAY + count.to_bytes(4, "big")) + bytes(count * (end - begin))
        for at in range(begin, end):
            contents[len(_ARRAY) + 4 + at - begin :: end - begin] = whole[at::size]
        return SingleResults(self._decode_array(contents))

    def _one(self, key: bytes, value: Any, since: bytes, failures_since: bytes) -> list[Any] | StoredFailure | None:
        """The results under a key; None for a value that is too old, damaged or of another program."""
        try:
            if crc32(value, crc32(key)) != _WHOLE:
                value = _of_version_2(key, value)
            if since < value < _NO_RESULTS:
                results: list[Any] = self._decode(_content(value))
                return results
            if (kind := value[:2]) not in (_RESULTS, _FAILURE):
                raise ValueError
            if kind == _RESULTS or value[2:_CONTENT] <= failures_since:
                return None  # it was good once
            failure: StoredFailure = self._decode_failure(_content(value))
            return failure
        except Exception:  # others may write anything to the store, and no row is to fail for that
            self.count_damaged(1)
            return None


@functools.lru_cache(_SHORT)
def _piece(size: int) -> bytes:
    """A key and a value of `size` bytes, with a right checksum."""
    content = bytes(KEY_BYTES + size - _CHECK_BYTES)
    return content + crc32(content).to_bytes(_CHECK_BYTES, "little")


def _stamp(seconds: float) -> bytes:
    """A moment as bytes, which sort by time."""
    return int(min(max(0.0, seconds * 1000), 2.0**63)).to_bytes(8, "big")


def sealed(head: bytes, key: bytes, content: bytes) -> bytes:
    """Content with a checksum of itself and the key that it belongs to."""
    content = head + content
    return content + crc32(content, crc32(key)).to_bytes(_CHECK_BYTES, "little")


def _of_version_2(key: bytes, value: bytes) -> bytes:
    """A value of format version 2 in the current format; ValueError for a damaged value, or a value of another kind."""
    check, rest = value[:8], value[8:]
    if check != blake2b(key + rest, digest_size=8).digest() or rest[:1] != b"\x02":
        raise ValueError
    return _VERSION + rest[1:] + bytes(_CHECK_BYTES)


def _plain(value: Any) -> Any:
    """A value of a subclass, such as pandas' Timestamp, as one of the class that msgspec knows."""
    if isinstance(value, datetime.datetime):
        moment = datetime.datetime.combine(datetime.date(value.year, value.month, value.day), value.timetz())
        return moment.replace(fold=value.fold)
    if isinstance(value, datetime.date):
        return datetime.date(value.year, value.month, value.day)
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta(value.days, value.seconds, value.microseconds)
    if isinstance(value, decimal.Decimal):
        return decimal.Decimal(value)
    raise TypeError


def _with_decimals(value: Any) -> Any:
    """A copy with decimals for whole numbers of more than 64 bits: a function may return an int for a decimal."""
    if isinstance(value, dict):
        return {_with_decimals(key): _with_decimals(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(_with_decimals, value))
    return decimal.Decimal(value) if isinstance(value, int) and value.bit_length() > 63 else value
