"""The base class of both queues: their protocol and their bound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ._elements import ELEMENT_TYPES, Row, StreamElement, StreamRecord
from ._entries import Entry, Memory, Output, RecordEntry


class StreamElementQueue(ABC):
    """Elements in arrival order until they may leave.

    Every entry counts against `capacity` until it has been emitted: running, finished but not yet its turn,
    a watermark. Nothing here blocks, and nothing here is safe to call from two threads at once.

    Args:
        capacity: how many entries may be inside at once, at least 1.

    Raises:
        ValueError: `capacity` is not a whole number of at least 1.
    """

    # A full queue never waits: `try_put` returns None, and the operator decides what waits, and how. So there is
    # nothing to lock and nothing to await, and a test can step through it on plain values.
    #
    # line: a deque or dict of the entries inside, in arrival order; the same one as long as the queue lives
    # most: how many entries may be inside now: capacity, or fewer while they hold much memory; there may be more inside
    # memory: counts what each row that is put from now on holds; None: the rows are not counted one by one
    # entry_class: of the entries of records; an operator has one that knows more of its rows

    line: Any
    most: int
    memory: Memory | None
    entry_class: type[RecordEntry]

    def __init__(self, capacity: int) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity must be a whole number of at least 1, not {capacity!r}")
        self._capacity = self.most = capacity
        self.memory = None
        self.entry_class = RecordEntry

    @property
    def capacity(self) -> int:
        """How many entries may be inside at once."""
        return self._capacity

    @property
    def places(self) -> int:
        """How many entries may be put now."""
        return max(0, self.most - len(self.line))

    def try_put(self, element: StreamElement) -> Entry | None:
        """Put an element at the end of the line.

        Returns the entry that the caller completes, or None, without any change, when the queue is full.
        """
        if not isinstance(element, ELEMENT_TYPES):
            raise TypeError(f"a queue holds stream elements, not {type(element).__name__}; wrap rows in StreamRecord")
        if len(self.line) >= self.most:
            return None
        return self.put_record(element) if isinstance(element, StreamRecord) else self.put_marker(element)

    @abstractmethod
    def put_record(self, record: Row) -> Any:
        """Put a record, or a plain tuple of the same; only when there is a place for it."""

    @abstractmethod
    def put_marker(self, marker: StreamElement) -> Entry:
        """Put a marker at its place behind the records."""

    def put_completed(self, records: Sequence[Row], results: Sequence[Any]) -> None:
        """Put records that are complete already, with one result each.

        Raises:
            ValueError: there are more records than places, or not as many results; nothing is put then.
        """
        if not len(records) == len(results) <= self._capacity - len(self.line):
            raise ValueError(f"{len(records)} records and {len(results)} results for {self.places} places")
        for record, result in zip(records, results, strict=True):
            self.put_record(record).complete((result,))

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Whether `emit_completed_element` would emit."""

    def emit_completed_element(self, output: Output) -> None:
        """Emit one entry if one may leave, else do nothing; an entry of n results emits n records."""
        self.emit_completed_elements(output, 1)

    @abstractmethod
    def emit_completed_elements(self, output: Output, limit: int) -> int:
        """Emit entries as long as one may leave, at most `limit` of them; returns how many."""

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], None]:
        """Makes a function that gives the entry of a record its only result.

        If the record may leave at once the function sends it to `output`. If others may leave, it calls `emit`.
        """

        def completed(entry: Entry, result: Any) -> None:
            entry.complete((result,))
            if self.has_completed_elements():
                emit()

        return completed

    @abstractmethod
    def may_pass(self) -> bool:
        """Whether a row that comes now and is finished at once could leave at once, so that it need not be put."""

    def values(self) -> list[StreamElement]:
        """The elements not yet emitted, in arrival order: what a snapshot must hold."""
        return [entry.element for entry in self.line]

    def __len__(self) -> int:
        """How many entries are inside."""
        return len(self.line)

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not len(self)
