"""Rows on their way into an operator: as they were fed, looked up in the store, or answered without a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Protocol

from asyncudf.queues import StreamElement, StreamRecord

if TYPE_CHECKING:
    from .stored_results import Found

KEY_BYTES_MORE = 320  # bytes by which a `LookedUpRow` is larger than a record, with its key


class LookedUpRow(StreamRecord):
    """A row that was looked up in the store and has no single result there."""

    key: bytes | None  # of its result in the store; None where `error` says why it has none
    looked_up: float  # the time of the lookup
    found: Found  # several results, no result, or an error from the store; None: the store has nothing
    error: BaseException | None

    @classmethod
    def of(cls, row: Any, key: bytes | BaseException, found: Found, looked_up: float) -> LookedUpRow:
        """The record of a row, which may be a plain tuple of the same."""
        record = tuple.__new__(cls, row)
        record.found, record.looked_up = found, looked_up
        record.key, record.error = (key, None) if type(key) is bytes else (None, key)  # type: ignore[assignment]
        return record


class UnreadableRow(StreamRecord):
    """A row with a value that cannot be read: it has failed with this error, and is not called."""

    key = None  # of a result in the store
    error: BaseException

    @classmethod
    def of(cls, row: Any, error: BaseException) -> UnreadableRow:
        """The record of a row, which may be a plain tuple of the same."""
        record = tuple.__new__(cls, row)
        record.error = error
        return record

    def with_value(self, value: Any) -> UnreadableRow:
        return self


def with_unreadable(elements: Iterable[Any], errors: Mapping[int, BaseException]) -> Iterator[Any]:
    """The elements of a batch, with an `UnreadableRow` for each row that has an error; `errors` by row number."""
    rows = count()
    for element in elements:
        error = errors.get(next(rows)) if type(element) in ROWS else None
        yield element if error is None else UnreadableRow.of(element, error)


class RowsAsColumns(Sequence[Any]):
    """Consecutive rows without timestamps, as their arguments and their origins: plain tuples, made when they are read.

    Most rows that have a result in the store are never read so.
    """

    __slots__ = ("arguments", "origins")

    def __init__(self, arguments: list[Any], origins: list[Any]) -> None:
        self.arguments = arguments
        self.origins = origins

    def __len__(self) -> int:
        return len(self.arguments)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return RowsAsColumns(self.arguments[number], self.origins[number])
        return self.arguments[number], None, self.origins[number]

    def __delitem__(self, number: Any) -> None:
        del self.arguments[number], self.origins[number]

    def __iter__(self) -> Iterator[Any]:
        return zip(self.arguments, repeat(None), self.origins, strict=False)


Rows = list[Any] | RowsAsColumns


class AnsweredRows:
    """Consecutive rows with one result each that need no call."""

    __slots__ = ("figure", "results", "rows")

    def __init__(self, rows: Rows, results: list[Any], figure: str = "store_hits") -> None:
        self.figure = figure  # of the function, which counts the rows when they are taken
        self.rows = rows
        self.results = results

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, count: int) -> tuple[Rows, list[Any]]:
        """The next `count` rows, or all that are left, and their results."""
        taken = self.rows[:count], self.results[:count]
        del self.rows[:count], self.results[:count]
        return taken


ROWS = (tuple, StreamRecord, LookedUpRow)  # types of elements that are one row


def plain(elements: Sequence[Any]) -> list[StreamElement]:
    """The elements as they were fed."""
    found: list[StreamElement] = []
    for element in elements:
        rows = element.rows if type(element) is AnsweredRows else (element,)
        found += [tuple.__new__(StreamRecord, one) if type(one) in ROWS else one for one in rows]
    return found


class Inlet(Protocol):
    """Where elements enter an operator: its input, or what prepares rows for the input."""

    @property
    def waiting(self) -> int:  # how many elements that were put one by one have not been taken
        ...

    def feed(self, batch: Iterable[Any], /) -> None:
        """Add a batch behind all others."""

    def put(self, element: Any, /) -> None:
        """Add one element behind all others."""

    def restore(self, elements: Iterable[Any], /) -> None:
        """Add elements before all others."""

    def end(self) -> None:
        """Nothing follows."""

    def values(self) -> list[Any]:  # all elements that were not taken, in order; they stay where they are
        ...
