"""Results as bytes with a checksum, and back: bytes that are damaged, or of another program, are no result."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any

from .._errors.exceptions import OptionError

# 8 bytes of BLAKE2b of the key and all that follows: two bytes, the version of the format and what is in it; when it
# was written (8 bytes, milliseconds since the epoch); the content. The checksum covers the key, so that the result of
# another key, which a bug has put there, is not taken.
_RESULTS, _NO_RESULTS, _FAILURE = b"\x02r", b"\x02s", b"\x02f"
_CHECK_BYTES = 8
_CHECK = blake2b(digest_size=_CHECK_BYTES)  # to copy it costs a third of making one
_CONTENT = 10  # where it begins, behind the check
_ALWAYS, _NEVER = bytes(8), b"\xff" * 8


@dataclasses.dataclass(frozen=True)
class StoredFailure:
    """A row that failed for good: the name of the exception's class, its message, an HTTP status.

    For jobs with `redact` the message without what may repeat an input, if it is another one.
    """

    type: str
    message: str
    status: int | None = None
    redacted: str | None = None


class ResultCodec:
    """Encodes the results of one function as MessagePack, and decodes them as the declared type.

    Args:
        annotation: the declared type, as `msgspec` takes it: int, float, str, bool, bytes, Decimal, date, datetime,
            timedelta, time, list, dict, tuple, and a TypedDict for a struct. Results may be None.
        many: whether a row may have none or many; else it has one.
        ttl: seconds for which a result counts here, whichever job has written it; None: as long as the store has it.
        error_ttl: the same for a failure; None: failures do not count.

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
        one = Annotated[list[annotation | None], Meta(min_length=1, max_length=1)]
        self._decode: Any = Decoder(list[annotation | None] if many else one).decode
        self._decode_failure = Decoder(StoredFailure).decode
        self._ttl, self._error_ttl, self._clock = ttl, error_ttl, clock
        self.expired: int = 0  # results and failures that were too old so far

    def kept(self, key: bytes, results: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        """The results of a row as bytes, and as they are read back, of which there may be none or many.

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

    def decode_many(
        self, keys: Sequence[bytes], values: Sequence[bytes | None]
    ) -> list[list[Any] | StoredFailure | None]:
        """What was encoded under each key; None for a value that is missing, too old, damaged or of something else."""
        found: list[Any] = []
        decode, now, begun = self._decode, self._clock(), _CHECK.copy
        # To compare whole contents takes less time than to cut them up; what follows the head never begins with 255.
        results_since = _RESULTS + (_ALWAYS if self._ttl is None else _stamp(now - self._ttl)) + b"\xff"
        failures_since = _NEVER if self._error_ttl is None else _stamp(now - self._error_ttl)
        for key, data in zip(keys, values, strict=True):
            result = None
            if data is not None:
                try:
                    content, checked = data[_CHECK_BYTES:], begun()
                    checked.update(key + content)
                    if data[:_CHECK_BYTES] == checked.digest():
                        is_young = results_since < content < _NO_RESULTS
                        result = decode(content[_CONTENT:]) if is_young else self._other(content, failures_since)
                except Exception:  # others may write anything to the store, and no row is to fail for that
                    result = None
            found.append(result)
        return found

    def _other(self, content: bytes, failures_since: bytes) -> StoredFailure | None:
        """What is no result, or too old."""
        kind, written = content[:2], content[2:_CONTENT]
        if kind == _RESULTS or written <= failures_since:
            self.expired += 1
            return None
        return self._decode_failure(content[_CONTENT:]) if kind == _FAILURE else None


def _stamp(seconds: float) -> bytes:
    """A moment as bytes, which sort by time."""
    return int(min(max(0.0, seconds * 1000), 2.0**63)).to_bytes(8, "big")


def sealed(head: bytes, key: bytes, content: bytes) -> bytes:
    """Content with a checksum of itself and the key that it belongs to."""
    content = head + content
    checked = _CHECK.copy()
    checked.update(key + content)
    return checked.digest() + content


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
    """The same with decimals for whole numbers of more than 64 bits: a declared decimal may be given as one."""
    if isinstance(value, dict):
        return {_with_decimals(key): _with_decimals(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(_with_decimals, value))
    return decimal.Decimal(value) if isinstance(value, int) and value.bit_length() > 63 else value
