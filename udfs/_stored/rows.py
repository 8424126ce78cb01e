"""What becomes of a row before its call: a cached row has its result, a cache miss has the key of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from asyncudf.queues import StreamElement, StreamRecord

from .._metrics.function_metrics import FunctionMetrics
from .stored_results import Found

KEYED = 320  # bytes by which a `CacheMiss` is larger than a record, with its key


class CacheMiss(StreamRecord):
    """A row that the store has no single result for."""

    # key: of its result in the store; None where `error` says why it has none
    # looked_up: the time of the lookup
    # found: several results, no result, or an error from the store; None: the store has nothing

    key: bytes | None
    looked_up: float
    found: Found
    error: BaseException | None

    @classmethod
    def of(cls, row: Any, key: bytes | BaseException, found: Found, looked_up: float) -> CacheMiss:
        """The record of a row, which may be a plain tuple of the same."""
        record = tuple.__new__(cls, row)
        record.found, record.looked_up = found, looked_up
        record.key, record.error = (key, None) if type(key) is bytes else (None, key)  # type: ignore[assignment]
        return record


class CachedRows:
    """Consecutive rows with one result each that need no call."""

    # _start: the rows before it have been taken

    __slots__ = ("_results", "_rows", "_start")

    def __init__(self, rows: Sequence[Any], results: Sequence[Any]) -> None:
        self._rows = rows
        self._results = results
        self._start = 0

    def __len__(self) -> int:
        return len(self._rows) - self._start

    def take(self, count: int) -> tuple[list[Any], list[Any]]:
        """The next `count` rows, or all that are left, and their results."""
        part = slice(self._start, self._start + count)
        self._start = min(self._start + count, len(self._rows))
        return [*self._rows[part]], [*self._results[part]]

    @property
    def rows(self) -> Sequence[Any]:
        """The rows that were not taken."""
        return self._rows[self._start :]


def plain(elements: Sequence[Any]) -> list[StreamElement]:
    """The elements as they were fed."""
    found: list[StreamElement] = []
    for element in elements:
        if type(element) is CachedRows:
            found += [tuple.__new__(StreamRecord, row) for row in element.rows]
        elif type(element) is CacheMiss or type(element) is tuple:
            found.append(tuple.__new__(StreamRecord, element))
        else:
            found.append(element)
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

    def values(self) -> list[StreamElement]:  # all elements that were not taken, in order; they stay where they are
        ...


class NullAnswers:
    """An inlet that makes cached rows of rows with a NULL argument: their result is NULL (`on_null_input="null"`).

    Args:
        inlet: where all elements go.
        validate: checks and converts each result.
        totals: counts the rows.
    """

    def __init__(self, inlet: Inlet, validate: Callable[[Any], Any] | None, totals: FunctionMetrics) -> None:
        self._inlet = inlet
        self._validate = validate
        self._totals = totals

    @property
    def waiting(self) -> int:
        return self._inlet.waiting

    def feed(self, batch: Iterable[Any]) -> None:
        self._inlet.feed(self._answered(batch))

    def put(self, element: Any) -> None:
        for one in self._answered((element,)):
            self._inlet.put(one)

    def restore(self, elements: Iterable[Any]) -> None:
        self._inlet.restore([*self._answered(elements)])

    def end(self) -> None:
        self._inlet.end()

    def values(self) -> list[StreamElement]:
        return self._inlet.values()

    def _answered(self, elements: Iterable[Any]) -> Iterator[Any]:
        nulls: list[Any] = []
        for element in elements:
            if (type(element) is tuple or isinstance(element, StreamRecord)) and _has_null(element[0]):
                nulls.append(element)
                continue
            if nulls:
                yield self._cached(nulls)
                nulls = []
            yield element
        if nulls:
            yield self._cached(nulls)

    def _cached(self, rows: Sequence[Any]) -> CachedRows:
        validate = self._validate
        self._totals.null_rows += len(rows)
        return CachedRows(rows, [None if validate is None else validate(None) for _ in rows])


def _has_null(value: Any) -> bool:
    values = value.values() if type(value) is dict else value if type(value) is tuple else (value,)
    return any(one is None for one in values)
