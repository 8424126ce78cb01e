"""Emission in completion order, with watermarks as fences that no row passes either way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ._base import StreamElementQueue
from ._elements import StreamElement, StreamRecord
from ._entries import Entry, MarkerEntry, Output, RecordEntry

__all__ = ("UnorderedStreamElementQueue",)


class _Segment:
    """The rows between two markers, or one marker alone."""

    __slots__ = ("finished", "line")

    def __init__(self) -> None:
        # every entry of `finished` is in `line`; a marker is alone in its segment
        self.line: dict[Entry, None] = {}  # not yet emitted, in arrival order
        self.finished: deque[Entry] = deque()  # in completion order

    def add(self, entry: Entry) -> None:
        self.line[entry] = None
        if entry.is_done:
            self.finished.append(entry)


class _SegmentEntry(RecordEntry):
    """A record that lines up behind the finished ones of its segment when it is complete."""

    __slots__ = ("_segment",)

    def __init__(self, record: StreamRecord, segment: _Segment) -> None:
        super().__init__(record)
        self._segment = segment

    def complete(self, results: Sequence[Any]) -> None:
        if not self.is_done:
            super().complete(results)
            self._segment.finished.append(self)


class UnorderedStreamElementQueue(StreamElementQueue):
    """Emits rows in the order they finish, but no row passes a watermark and no watermark passes a row.

    Statuses and latency markers are fences like watermarks. With none of them the order is purely that of
    completion.

    >>> from asyncudf.queues import Watermark
    >>> queue = UnorderedStreamElementQueue(capacity=3)
    >>> first, _, last = [queue.try_put(e) for e in (StreamRecord("a"), Watermark(1), StreamRecord("b"))]
    >>> last.complete(["B"]); queue.has_completed_elements()
    False
    >>> first.complete(["A"]); queue.has_completed_elements()
    True
    """

    # After Flink: the line is cut into segments at each marker. Within one, rows leave as they finish; the next one has
    # its turn when the one before is empty. So what may leave is found at once, however many rows wait.

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # every entry is in exactly one segment; only the last accepts rows, only the first emits;
        # no segment but the last is empty; self._size <= capacity
        self._segments: deque[_Segment] = deque([_Segment()])
        self._size = 0

    def _put(self, element: StreamElement) -> Entry:
        if isinstance(element, StreamRecord):
            entry: Entry = _SegmentEntry(element, self._segments[-1])
            self._segments[-1].add(entry)
        else:
            entry = MarkerEntry(element)
            if self._segments[-1].line:
                self._segments.append(_Segment())
            self._segments[-1].add(entry)
            self._segments.append(_Segment())
        self._size += 1
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self._segments[0].finished)

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        segments, emitted = self._segments, 0
        while emitted < limit and (finished := segments[0].finished):
            entry = finished.popleft()
            line = segments[0].line
            del line[entry]
            if not line and len(segments) > 1:
                segments.popleft()
            self._size -= 1
            entry.emit(output)  # last: what runs behind the output may put, complete and emit in this queue again
            emitted += 1
        return emitted

    def may_pass(self) -> bool:
        return len(self._segments) == 1 and not self._segments[0].finished

    def values(self) -> list[StreamElement]:
        return [entry.element for segment in self._segments for entry in segment.line]

    def __len__(self) -> int:
        return self._size
