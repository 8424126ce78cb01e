"""Rows that were looked up in a store: those that it has a result for, in runs, and the others with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncudf.queues import StreamElement, StreamRecord

from .stored_results import Found

__all__ = ("Answered", "KeyedRecord", "plain")


class KeyedRecord(StreamRecord):
    """A row of which the store has no single result at hand."""

    # key: None where `error` tells why it has none
    # looked_up: when
    # found: what the store has: several results, none, or an error; None: nothing

    key: bytes | None
    looked_up: float
    found: Found
    error: BaseException | None

    @classmethod
    def of(cls, row: Any, key: bytes | BaseException, found: Found, looked_up: float) -> KeyedRecord:
        """The record of a row, or of a plain tuple of the same."""
        record = tuple.__new__(cls, row)
        record.found, record.looked_up = found, looked_up
        record.key, record.error = (key, None) if type(key) is bytes else (None, key)  # type: ignore[assignment]
        return record


class Answered:
    """Rows one behind the other that have one result each and need no call: of the store, or NULL for NULL."""

    # _start: those before it have been taken

    __slots__ = ("_results", "_rows", "_start")

    def __init__(self, rows: Sequence[Any], results: Sequence[Any]) -> None:
        self._rows = rows
        self._results = results
        self._start = 0

    def __len__(self) -> int:
        return len(self._rows) - self._start

    def take(self, count: int) -> tuple[list[Any], list[Any]]:
        """The next so many rows, or all that are left, and their results."""
        part = slice(self._start, self._start + count)
        self._start = min(self._start + count, len(self._rows))
        return [*self._rows[part]], [*self._results[part]]

    @property
    def rows(self) -> Sequence[Any]:
        """Those that were not taken."""
        return self._rows[self._start :]


def plain(elements: Sequence[Any]) -> list[StreamElement]:
    """The elements as they were handed over."""
    found: list[StreamElement] = []
    for element in elements:
        if type(element) is Answered:
            found += [tuple.__new__(StreamRecord, row) for row in element.rows]
        elif type(element) is KeyedRecord or type(element) is tuple:
            found.append(tuple.__new__(StreamRecord, element))
        else:
            found.append(element)
    return found
