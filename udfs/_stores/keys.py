"""Keys of results: what a function, its version, its declared type and its arguments have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

from .._errors.exceptions import AsyncUDFError
from .canonical import PLAIN, canonical, is_plain

__all__ = ("KEY_BYTES", "ResultKeys")


Arguments = Sequence[Any] | Mapping[str, Any]

KEY_BYTES = 16
_ROWS = frozenset((tuple, list))
SCHEME = "asyncudf 1"  # another one for each change of what keys are made of: old results are then not found


class ResultKeys:
    """Makes the keys of one function's results: 128 bits of BLAKE2b.

    Equal arguments have equal keys in all processes, on all hosts, with all versions of Python.

    Args:
        function: its module and qualified name.
        version: told apart by it are results of a function that has changed.
        declared: the declared type of a result, as a text.
        key: a function of the arguments, whose result stands for them.
        defaults: of parameters; they are arguments that nobody gives.
    """

    def __init__(
        self,
        function: str,
        version: str,
        declared: str,
        key: Callable[..., Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        # What `key` makes of arguments is told apart from arguments that look the same.
        parts: list[Any] = [SCHEME, function, version, declared, *(["key"] if key is not None else [])]
        if defaults:
            parts.append(dict(defaults))
        self._head = blake2b(canonical(parts), digest_size=32).digest()
        self._key = key
        self._quick = _quick_encoder()

    def of(self, arguments: Arguments) -> bytes:
        """The key of a row; of one that is a mapping, the names count too.

        Raises:
            AsyncUDFError: an argument, or what `key` has made of them, has no canonical form.
        """
        values = arguments if self._key is None else (self._key(*_given(arguments)),)
        try:
            encoded = self._encoded(values)
        except RecursionError:
            raise AsyncUDFError(
                "no key of a store can be made of a value that is nested so deeply; let the store's key= give another"
            ) from None
        return blake2b(self._head + encoded, digest_size=KEY_BYTES).digest()

    def of_many(self, rows: Sequence[Arguments]) -> list[bytes]:
        """The keys of many rows, for less: `of` for each."""
        quick, head = self._quick, self._head
        # Asked of all values at once: row by row it would cost as much as the keys.
        are_plain = _ROWS.issuperset(map(type, rows)) and PLAIN.issuperset(map(type, chain.from_iterable(rows)))
        # No `map` of what may be the user's: a StopIteration of theirs would end it.
        if quick is None or self._key is not None or not are_plain:
            return [self.of(row) for row in rows]
        try:
            encoded = [*map(quick, rows)]
        except (OverflowError, ValueError):
            return [self.of(row) for row in rows]
        if _may_have_nan(b"".join(encoded)):
            return [self.of(row) for row in rows]
        return [blake2b(head + one, digest_size=KEY_BYTES).digest() for one in encoded]

    def of_call(self, rows: Sequence[Arguments]) -> bytes:
        """The key of the rows of one micro-batch together."""
        return blake2b(b"".join(self.of_many(rows)), digest_size=KEY_BYTES).digest()

    def _encoded(self, values: Arguments) -> bytes:
        if self._quick is not None and is_plain(values):
            try:
                found = self._quick(values)
            except (OverflowError, ValueError):  # a number of more than 64 bits, text that is not Unicode
                return canonical(values)
            if not _may_have_nan(found):
                return found
        return canonical(values)


def _given(arguments: Arguments) -> Sequence[Any]:
    """What a function of the user's is called with: a mapping is one argument."""
    return (arguments,) if isinstance(arguments, Mapping) else arguments


def _may_have_nan(encoded: bytes) -> bool:
    return b"\xcb\x7f" in encoded or b"\xcb\xff" in encoded  # the beginning of each nan, and of some others


def _quick_encoder() -> Callable[[Any], bytes] | None:
    """msgspec's, which is several times as fast; keys are the same without it."""
    try:
        from msgspec.msgpack import Encoder
    except ImportError:
        return None
    return Encoder().encode
