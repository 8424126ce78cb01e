"""Keys of results: what a function, its version, its declared type and its arguments have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from .._errors.exceptions import AsyncUDFError
from .canonical import canonical, canonical_rows

__all__ = ("KEY_BYTES", "ResultKeys")


Arguments = Sequence[Any] | Mapping[str, Any]

KEY_BYTES = 16
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

    def of(self, arguments: Arguments) -> bytes:
        """The key of a row; of one that is a mapping, the names count too.

        Raises:
            AsyncUDFError: an argument, or what `key` has made of them, has no canonical form.
        """
        try:
            encoded = canonical(arguments if self._key is None else (self._key(*_given(arguments)),))
        except RecursionError:
            raise AsyncUDFError(
                "no key of a store can be made of a value that is nested so deeply; let the store's key= give another"
            ) from None
        return self._made(encoded)

    def of_many(self, rows: Sequence[Arguments]) -> list[bytes]:
        """The keys of many rows, for less: `of` for each."""
        if self._key is None:
            with contextlib.suppress(RecursionError):  # of one of them, which tells it
                return [*map(self._made, canonical_rows(rows))]
        return [self.of(row) for row in rows]

    def of_call(self, rows: Sequence[Arguments]) -> bytes:
        """The key of the rows of one micro-batch together."""
        return blake2b(b"".join(self.of_many(rows)), digest_size=KEY_BYTES).digest()

    def _made(self, encoded: bytes) -> bytes:
        return blake2b(self._head + encoded, digest_size=KEY_BYTES).digest()


def _given(arguments: Arguments) -> Sequence[Any]:
    """What a function of the user's is called with: a mapping is one argument."""
    return (arguments,) if isinstance(arguments, Mapping) else arguments
