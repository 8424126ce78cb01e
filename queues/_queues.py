"""The two queues and their entries: an element's place, completed once by the caller or born complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ._elements import (
    ELEMENT_TYPES,
    AnyRecord,
    LatencyMarker,
    StreamElement,
    StreamRecord,
    Watermark,
    WatermarkStatus,
    new_record,
)


class Output(Protocol):
    """Where a queue emits to. A queue without statuses and latency markers needs the first two methods only.

    A method may put and complete elements of the queue. It may emit them only if no row has several results: otherwise
    later elements would leave between the results of one row.
    """

    def collect(self, record: StreamRecord, /) -> None: ...
    def emit_watermark(self, watermark: Watermark, /) -> None: ...
    def emit_watermark_status(self, status: WatermarkStatus, /) -> None: ...
    def emit_latency_marker(self, marker: LatencyMarker, /) -> None: ...


class Memory(Protocol):
    """Counts the bytes that the entries of a queue hold. Each entry releases its bytes when it leaves."""

    def hold_row(self, record: AnyRecord, /) -> int:
        """Count a row that enters the queue; returns its bytes."""
        ...

    def hold_results(self, results: Sequence[Any], /) -> int:
        """Count the results of a row in the queue; returns their bytes."""
        ...

    def note_result(self, result: Any, /) -> None:
        """Learn from the result of a row that leaves at once."""
        ...

    def note_results(self, size: int, rows: int, /) -> None:
        """Learn from the results of so many rows that have left, which have so many bytes in all."""
        ...

    def release(self, held: int, /) -> None: ...


class Entry:
    """What `try_put` returns: the promise of an element's results.

    Completed exactly once; the first completion wins and a later one is ignored without an error, so a
    late result after a timeout does no harm (as in Flink's `StreamElementQueueEntry`).
    """

    __slots__ = ("is_done",)
    is_done: bool  # whether the results are there

    @property
    def element(self) -> StreamElement:
        """The element that was put."""
        raise NotImplementedError

    def complete(self, results: Sequence[Any]) -> None:
        """Give the results of the element, 0..n values; ignored when the entry is complete already.

        Raises:
            TypeError: `results` is not a list or a tuple.
        """
        raise NotImplementedError

    def emit(self, output: Output) -> None:
        """Send the results to `output`; called once, by the queue."""
        raise NotImplementedError


class RecordEntry(Entry):
    """A record waiting for its results, which carry the record's own timestamp."""

    # The queue makes it, and sets all but the results. An attribute and not a property, no futures, and no `__init__`,
    # which would be a call more: an entry is made for each row that has to wait.

    __slots__ = ("_finished", "_held_bytes", "_memory", "_results", "record")
    record: Any  # the StreamRecord that was put, or a plain tuple with the same fields
    _results: Sequence[Any]  # will not change once `is_done`
    _finished: deque[Entry] | None  # where it lines up when it is complete
    _memory: Memory | None  # counts the bytes of the row and its results; None: nothing is counted
    _held_bytes: int  # the bytes counted for this entry so far

    @property
    def element(self) -> StreamElement:
        record = self.record
        return StreamRecord._make(record) if type(record) is tuple else record

    def complete(self, results: Sequence[Any]) -> None:
        if self.is_done:
            return
        # A string would leave letter by letter, None never.
        if type(results) is not tuple and not isinstance(results, (list, tuple)):
            raise TypeError(f"an entry is completed with a list or tuple of results, not {results!r}")
        self._results = results
        self.is_done = True
        if self._memory is not None:
            self._held_bytes += self._memory.hold_results(results)
        if self._finished is not None:
            self._finished.append(self)

    def emit(self, output: Output) -> None:
        if self._memory is not None:
            self._memory.release(self._held_bytes)
        _, timestamp, origin = self.record
        results, self._results = self._results, ()  # a timer may have the entry for long
        for result in results:
            output.collect(new_record(StreamRecord, (result, timestamp, origin)))


def _collecting(output: Any) -> Callable[[AnyRecord, Any], None]:
    """A function that sends the only result of a record to `output`."""

    def collect_result(record: AnyRecord, result: Any) -> None:
        output.collect(new_record(StreamRecord, (result, record[1], record[2])))

    # The package's outputs have a method of this name, which makes no StreamRecord of the result.
    return getattr(output, "collect_result", collect_result)


_NO_BATCH: tuple[Any, ...] = [], [], 0


def _open_batch(output: Any) -> tuple[Any, ...]:
    """The results that `output` gathers for a batch, their origins, and the index of the last result of a full batch.

    The queue appends to a batch directly, except for its first and its last result. An output that does more with a
    result, or weighs it, has no such batch.
    """
    values, origins, full = getattr(output, "open_batch", None) or _NO_BATCH
    return values, origins, full - 1


class _MarkerEntry(Entry):
    """A watermark, a status or a latency marker: born complete, it only has a place in the order."""

    __slots__ = ("_element",)

    def __init__(self, element: StreamElement) -> None:
        self._element = element
        self.is_done = True

    @property
    def element(self) -> StreamElement:
        return self._element

    def complete(self, results: Sequence[Any]) -> None:
        """Nothing to do: a marker has no results."""

    def emit(self, output: Output) -> None:
        emit_marker(output, self._element)


def emit_marker(output: Output, marker: StreamElement) -> None:
    """Call the output's method for this kind of marker."""
    match marker:
        case Watermark():
            output.emit_watermark(marker)
        case WatermarkStatus():
            output.emit_watermark_status(marker)
        case LatencyMarker():
            output.emit_latency_marker(marker)


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
    # entries: a deque or dict of the entries inside, in arrival order; the same object as long as the queue lives
    # most: how many entries may be put until the queue is full: capacity, or fewer while the entries hold much memory;
    #     more entries may be inside when `most` shrinks
    # memory: counts the bytes of each row that is put from now on; None: rows are not counted one by one
    # entry_class: the class of the entries of records; an operator sets a subclass with the state of its rows

    entries: Any
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
        return max(0, self.most - len(self.entries))

    def try_put(self, element: StreamElement) -> Entry | None:
        """Put an element behind all others.

        Returns the entry that the caller completes, or None, without any change, when the queue is full.
        """
        if not isinstance(element, ELEMENT_TYPES):
            raise TypeError(f"a queue holds stream elements, not {type(element).__name__}; wrap rows in StreamRecord")
        if len(self.entries) >= self.most:
            return None
        return self.put_record(element) if isinstance(element, StreamRecord) else self.put_marker(element)

    @abstractmethod
    def put_record(self, record: AnyRecord) -> Any:
        """Put a record, or a plain tuple with the same fields; the caller knows that there is a place for it."""

    @abstractmethod
    def put_marker(self, marker: StreamElement) -> Entry:
        """Put a marker at its place behind the records."""

    def put_completed(self, records: Sequence[AnyRecord], results: Sequence[Any]) -> None:
        """Put records that are complete already, with one result each.

        Raises:
            ValueError: there are more records than places, or not as many results; nothing is put then.
        """
        if not len(records) == len(results) <= self._capacity - len(self.entries):
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
        """Emit up to `limit` entries, as long as the next entry may leave; returns how many were emitted."""

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], bool]:
        """Makes a function that gives the entry of a record its only result.

        If the record may leave at once the function sends it to `output`. If others may leave, it calls `emit`. It
        returns whether this may have taken long, that is, did more than add one result to a batch.
        """

        def completed(entry: Entry, result: Any) -> bool:
            entry.complete((result,))
            if self.has_completed_elements():
                emit()
            return True

        return completed

    @abstractmethod
    def may_pass(self) -> bool:
        """Whether a row that comes now and is finished at once could leave at once, so that it need not be put."""

    def values(self) -> list[StreamElement]:
        """The elements not yet emitted, in arrival order: what a snapshot must hold."""
        return [entry.element for entry in self.entries]

    def __len__(self) -> int:
        """How many entries are inside."""
        return len(self.entries)

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not len(self)


class OrderedStreamElementQueue(StreamElementQueue):
    """Emits elements in the order they were put. A finished row waits for every row before it.

    >>> queue = OrderedStreamElementQueue(capacity=2)
    >>> first, second = queue.try_put(StreamRecord("a")), queue.try_put(StreamRecord("b"))
    >>> second.complete(["B"]); queue.has_completed_elements()
    False
    >>> first.complete(["A"]); queue.has_completed_elements()
    True
    """

    # Only the head is ever looked at, and completing an entry changes nothing but the entry itself.

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.entries: deque[Entry] = deque()  # nothing in it was emitted

    def put_record(self, record: AnyRecord) -> Any:
        entry = self.entry_class()
        entry.record = record
        entry._finished = None
        entry.is_done = False
        entry._memory = memory = self.memory
        if memory is not None:
            entry._held_bytes = memory.hold_row(record)
        self.entries.append(entry)
        return entry

    def put_marker(self, marker: StreamElement) -> Entry:
        entry = _MarkerEntry(marker)
        self.entries.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self.entries) and self.entries[0].is_done

    def emit_completed_elements(self, output: Output, limit: int) -> int:
        entries, emitted = self.entries, 0
        while entries and entries[0].is_done and emitted < limit:
            entries.popleft().emit(output)
            emitted += 1
        return emitted

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], bool]:
        entries, collect = self.entries, _collecting(output)
        values, origins, last = _open_batch(output)

        def completed(entry: RecordEntry, result: Any) -> bool:
            if not entry.is_done and entries[0] is entry:  # it leaves at once: nothing is before it
                entries.popleft()
                entry.is_done = True
                if entry._memory is not None:
                    entry._memory.release(entry._held_bytes)
                if values and len(values) < last:  # as `collect` would do, which is a call for each row
                    values.append(result)
                    origins.append(entry.record[2])
                else:
                    if entry._memory is not None:
                        entry._memory.note_result(result)
                    collect(entry.record, result)
            else:
                entry.complete((result,))
            if entries and entries[0].is_done:
                emit()
                return True
            return not values  # a full batch was flushed, or there is none

        return completed

    def may_pass(self) -> bool:
        return not self.entries


class _Segment:
    """The rows between two markers, or one marker alone."""

    __slots__ = ("finished", "waiting")

    def __init__(self) -> None:
        self.finished: deque[Entry] = deque()  # in completion order
        self.waiting = 0  # how many entries have not left; counted once the segment accepts no more


class UnorderedStreamElementQueue(StreamElementQueue):
    """Emits rows in the order they finish, but no row passes a watermark and no watermark passes a row.

    Rows do not pass statuses and latency markers either. Without any of these, rows leave in the order they finish.

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
        self.entries: dict[Entry, None] = {}
        self._first = self._last = _Segment()
        self._segments = deque([self._first])
        self._closed = 0  # entries of all segments but the last

    def put_record(self, record: AnyRecord) -> Any:
        entry = self.entry_class()
        entry.record = record
        entry._finished = self._last.finished
        entry.is_done = False
        entry._memory = memory = self.memory
        if memory is not None:
            entry._held_bytes = memory.hold_row(record)
        self.entries[entry] = None
        return entry

    def put_marker(self, marker: StreamElement) -> Entry:
        entry = _MarkerEntry(marker)
        self._begin_segment()
        self.entries[entry] = None
        self._last.finished.append(entry)
        self._begin_segment()
        return entry

    def _begin_segment(self) -> None:
        """Let no more rows come to the last segment, if it has any."""
        last = self._last
        last.waiting = len(self.entries) - self._closed
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

    def completing(self, output: Output, emit: Callable[[], object]) -> Callable[[Any, Any], bool]:
        entries, collect = self.entries, _collecting(output)
        values, origins, last = _open_batch(output)

        def completed(entry: RecordEntry, result: Any) -> bool:
            segment = self._first
            if entry.is_done or segment.finished or entry._finished is not segment.finished:
                entry.complete((result,))
            else:  # it leaves without lining up, as nothing does before it
                entry.is_done = True
                if segment is self._last:
                    del entries[entry]
                else:
                    self._remove(entry)
                if entry._memory is not None:
                    entry._memory.release(entry._held_bytes)
                if values and len(values) < last:  # as `collect` would do, which is a call for each row
                    values.append(result)
                    origins.append(entry.record[2])
                else:
                    if entry._memory is not None:
                        entry._memory.note_result(result)
                    collect(entry.record, result)
            if self._first.finished:
                emit()
                return True
            return not values  # a full batch was flushed, or there is none

        return completed

    def _remove(self, entry: Entry) -> None:
        """Take an entry out of the first segment; the segment ends with its last entry."""
        del self.entries[entry]
        segment = self._first
        if segment is not self._last:
            segment.waiting -= 1
            self._closed -= 1
            if not segment.waiting:
                self._segments.popleft()
                self._first = self._segments[0]

    def may_pass(self) -> bool:
        return self._first is self._last and not self._first.finished
