"""Emission in completion order, where no row passes a watermark and no watermark passes a row."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from ._base import StreamElementQueue
from ._elements import Row, StreamElement
from ._entries import Entry, MarkerEntry, Output, RecordEntry, emit_result, new_entry

__all__ = ("UnorderedStreamElementQueue",)


class _Segment:
    """The rows between two markers, or one marker alone."""

    __slots__ = ("finished", "line")

    def __init__(self) -> None:
        # every entry of `finished` is in `line`; a marker is alone in its segment
        self.line: dict[Entry, None] = {}  # not yet emitted, in arrival order
        self.finished: deque[Entry] = deque()  # in completion order

    def add_marker(self, entry: MarkerEntry) -> None:
        self.line[entry] = None
        self.finished.append(entry)


class UnorderedStreamElementQueue(StreamElementQueue):
    """Emits rows in the order they finish, but no row passes a watermark and no watermark passes a row.

    Rows do not pass statuses and latency markers either. Without any of them the order is that of completion alone.

    >>> from asyncudf.queues import Watermark
    >>> queue = UnorderedStreamElementQueue(capacity=3)
    >>> first, _, last = [queue.try_put(e) for e in (StreamRecord("a"), Watermark(1), StreamRecord("b"))]
    >>> last.complete(["B"]); queue.has_completed_elements()
    False
    >>> first.complete(["A"]); queue.has_completed_elements()
    True
    """

    # After Flink: each marker begins a new segment. Rows of a segment leave as they finish; a segment begins to emit
    # when the one before is empty. So it takes no search to find what may leave, however many rows wait.

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # every entry is in exactly one segment; only the last accepts rows, only the first emits;
        # no segment but the last is empty; _first and _last are the ends of _segments; self._size <= capacity
        self._first = self._last = _Segment()
        self._segments = deque([self._first])
        self._size = 0

    @property
    def places(self) -> int:
        return self._capacity - self._size

    def put_record(self, record: Row) -> Entry:
        segment = self._last
        entry = new_entry(RecordEntry)
        entry._record = record
        entry._finished = segment.finished
        entry.is_done = False
        segment.line[entry] = None
        self._size += 1
        return entry

    def _put_marker(self, marker: StreamElement) -> Entry:
        entry = MarkerEntry(marker)
        if self._last.line:
            self._segments.append(_Segment())
        self._segments[-1].add_marker(entry)
        self._last = _Segment()
        self._segments.append(self._last)
        self._size += 1
        return entry

    def has_places(self, count: int) -> bool:
        return self._capacity - self._size >= count

    def has_completed_elements(self) -> bool:
        return bool(self._first.finished)

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        emitted = 0
        while (segment := self._first).finished and emitted < limit:
            entry = segment.finished.popleft()
            del segment.line[entry]
            self._size -= 1
            if not segment.line and segment is not self._last:
                self._drop_first_segment()
            entry.emit(output)  # last: what runs behind the output may put, complete and emit in this queue again
            emitted += 1
        return emitted

    def complete_and_emit(self, output: Output, entry: Entry, result: Any) -> None:
        segment = self._first
        if entry.is_done or segment.finished or entry._finished is not segment.finished:  # type: ignore[attr-defined]
            super().complete_and_emit(output, entry, result)
            return
        # It leaves without lining up, as nothing does before it.
        del segment.line[entry]
        self._size -= 1
        if not segment.line and segment is not self._last:
            self._drop_first_segment()
        emit_result(output, entry, result)
        if self._first.finished:
            self.emit_completed_elements(output, sys.maxsize)

    def _drop_first_segment(self) -> None:
        self._segments.popleft()
        self._first = self._segments[0]

    def may_pass(self) -> bool:
        return self._first is self._last and not self._first.finished

    def values(self) -> list[StreamElement]:
        return [entry.element for segment in self._segments for entry in segment.line]

    def __len__(self) -> int:
        return self._size
