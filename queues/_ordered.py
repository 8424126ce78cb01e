"""Emission in arrival order."""

from __future__ import annotations

from collections import deque
from typing import Any

from ._base import StreamElementQueue
from ._elements import Row, StreamElement
from ._entries import Entry, MarkerEntry, Output, RecordEntry, emit_result, new_entry

__all__ = ("OrderedStreamElementQueue",)


class OrderedStreamElementQueue(StreamElementQueue):
    """Emits elements in the order they were put. A finished row waits for every row before it.

    >>> queue = OrderedStreamElementQueue(capacity=2)
    >>> first, second = queue.try_put(StreamRecord("a")), queue.try_put(StreamRecord("b"))
    >>> second.complete(["B"]); queue.has_completed_elements()
    False
    >>> first.complete(["A"]); queue.has_completed_elements()
    True
    """

    # One line is enough: only its head is ever looked at, and completing an entry changes nothing but the entry itself.

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # len(self._line) <= capacity; arrival order; nothing in it was emitted
        self._line: deque[Entry] = deque()

    @property
    def places(self) -> int:
        return self._capacity - len(self._line)

    def put_record(self, record: Row) -> Entry:
        entry = new_entry(RecordEntry)
        entry._record = record
        entry._finished = None
        entry.is_done = False
        self._line.append(entry)
        return entry

    def _put_marker(self, marker: StreamElement) -> Entry:
        entry = MarkerEntry(marker)
        self._line.append(entry)
        return entry

    def has_places(self, count: int) -> bool:
        return self._capacity - len(self._line) >= count

    def has_completed_elements(self) -> bool:
        return bool(self._line) and self._line[0].is_done

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        line, emitted = self._line, 0
        while line and line[0].is_done and emitted < limit:
            line.popleft().emit(output)
            emitted += 1
        return emitted

    def complete_and_emit(self, output: Output, entry: Entry, result: Any) -> None:
        line = self._line
        if line and line[0] is entry and not entry.is_done:  # it leaves without lining up, as nothing is before it
            line.popleft()
            emit_result(output, entry, result)
        else:
            entry.complete((result,))
        while line and line[0].is_done:
            line.popleft().emit(output)

    def may_pass(self) -> bool:
        return not self._line

    def values(self) -> list[StreamElement]:
        return [entry.element for entry in self._line]

    def __len__(self) -> int:
        return len(self._line)
