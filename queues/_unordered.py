"""Emission in completion order, where no row passes a watermark and no watermark passes a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ._base import StreamElementQueue
from ._elements import Row, StreamElement
from ._entries import Entry, MarkerEntry, Output, RecordEntry, collecting, new_entry


class _Segment:
    """The rows between two markers, or one marker alone."""

    __slots__ = ("finished", "waiting")

    def __init__(self) -> None:
        self.finished: deque[Entry] = deque()  # in completion order
        self.waiting = 0  # entries that have not left, once no more come


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
        # every entry belongs to one segment; only the last segment accepts rows, only the first emits; no segment but
        # the last is empty; _first and _last are the ends of _segments
        self.line: dict[Entry, None] = {}
        self._first = self._last = _Segment()
        self._segments = deque([self._first])
        self._closed = 0  # entries of all segments but the last

    def put_record(self, record: Row) -> Any:
        entry = new_entry(self.entry_class)
        entry.record = record
        entry._finished = self._last.finished
        entry.is_done = False
        entry._memory = memory = self.memory
        if memory is not None:
            entry._held = memory.hold_row(record)
        self.line[entry] = None
        return entry

    def put_marker(self, marker: StreamElement) -> Entry:
        entry = MarkerEntry(marker)
        self._begin_segment()
        self.line[entry] = None
        self._last.finished.append(entry)
        self._begin_segment()
        return entry

    def _begin_segment(self) -> None:
        """Let no more rows come to the last segment, if it has any."""
        last = self._last
        last.waiting = len(self.line) - self._closed
        if last.waiting:
            self._closed += last.waiting
            self._last = _Segment()
            self._segments.append(self._last)

    def has_completed_elements(self) -> bool:
        return bool(self._first.finished)

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        emitted = 0
        while (segment := self._first).finished and emitted < limit:
            entry = segment.finished.popleft()
            self._remove(entry)
            entry.emit(output)  # last: what runs behind the output may put, complete and emit in this queue again
            emitted += 1
        return emitted

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], None]:
        line, collect = self.line, collecting(output)

        def completed(entry: RecordEntry, result: Any) -> None:
            segment = self._first
            if entry.is_done or segment.finished or entry._finished is not segment.finished:
                entry.complete((result,))
            else:  # it leaves without lining up, as nothing does before it
                entry.is_done = True
                if segment is self._last:
                    del line[entry]
                else:
                    self._remove(entry)
                if entry._memory is not None:
                    entry._memory.note_result(result)
                    entry._memory.release(entry._held)
                collect(entry.record, result)
            if self._first.finished:
                emit()

        return completed

    def _remove(self, entry: Entry) -> None:
        """Take out an entry of the first segment, which is over if it was its last one."""
        del self.line[entry]
        segment = self._first
        if segment is not self._last:
            segment.waiting -= 1
            self._closed -= 1
            if not segment.waiting:
                self._segments.popleft()
                self._first = self._segments[0]

    def may_pass(self) -> bool:
        return self._first is self._last and not self._first.finished
