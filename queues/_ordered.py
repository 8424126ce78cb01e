"""Emission in arrival order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ._base import StreamElementQueue
from ._elements import Row, StreamElement
from ._entries import Entry, MarkerEntry, Output, RecordEntry, collecting, new_entry


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
        self.line: deque[Entry] = deque()  # nothing in it was emitted

    def put_record(self, record: Row) -> Any:
        entry = new_entry(self.entry_class)
        entry.record = record
        entry._finished = None
        entry.is_done = False
        entry._memory = memory = self.memory
        if memory is not None:
            entry._held = memory.hold_row(record)
        self.line.append(entry)
        return entry

    def put_marker(self, marker: StreamElement) -> Entry:
        entry = MarkerEntry(marker)
        self.line.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self.line) and self.line[0].is_done

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        line, emitted = self.line, 0
        while line and line[0].is_done and emitted < limit:
            line.popleft().emit(output)
            emitted += 1
        return emitted

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], None]:
        line, collect = self.line, collecting(output)

        def completed(entry: RecordEntry, result: Any) -> None:
            if line and line[0] is entry and not entry.is_done:  # it leaves without lining up: nothing is before it
                line.popleft()
                entry.is_done = True
                if entry._memory is not None:
                    entry._memory.note_result(result)
                    entry._memory.release(entry._held)
                collect(entry.record, result)
            else:
                entry.complete((result,))
            if line and line[0].is_done:
                emit()

        return completed

    def may_pass(self) -> bool:
        return not self.line
