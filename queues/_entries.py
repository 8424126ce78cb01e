"""An element's place in a queue: completed once by the caller, or born complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ._elements import (
    LatencyMarker,
    Row,
    StreamElement,
    StreamRecord,
    Watermark,
    WatermarkStatus,
    new_record,
)

new_entry = object.__new__  # costs less than a class with an `__init__`, which counts once per row


class Output(Protocol):
    """Where a queue emits to. A queue without statuses and latency markers needs the first two methods only.

    A method may put and complete elements of the queue. It may emit them only if no row has several results: what is
    behind a row would leave between them.
    """

    def collect(self, record: StreamRecord, /) -> None: ...
    def emit_watermark(self, watermark: Watermark, /) -> None: ...
    def emit_watermark_status(self, status: WatermarkStatus, /) -> None: ...
    def emit_latency_marker(self, marker: LatencyMarker, /) -> None: ...


class Memory(Protocol):
    """Counts the bytes that the entries of a queue hold. Each entry releases in the end what it has held."""

    def hold_row(self, record: Row, /) -> int:
        """Count a row that enters the queue; returns its bytes."""
        ...

    def hold_results(self, results: Sequence[Any], /) -> int:
        """Count the results of a row in the queue; returns their bytes."""
        ...

    def note_result(self, result: Any, /) -> None:
        """Learn from the result of a row that leaves at once."""
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

    # The queue makes it by `new_entry`, and sets all but the results.
    #
    # is_done: _results are there and will not change
    # record: that was put, or a plain tuple of the same
    # _finished: where it lines up when it is complete
    # _memory: counts what the row and its results hold, by now _held bytes; None: nothing is counted
    # An attribute and not a property, and no futures: an entry is made for each row that has to wait.

    __slots__ = ("_finished", "_held", "_memory", "_results", "record")
    record: Any
    _results: Sequence[Any]
    _finished: deque[Entry] | None
    _memory: Memory | None
    _held: int

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
            self._held += self._memory.hold_results(results)
        if self._finished is not None:
            self._finished.append(self)

    def emit(self, output: Output) -> None:
        if self._memory is not None:
            self._memory.release(self._held)
        _, timestamp, origin = self.record
        results, self._results = self._results, ()  # a timer may have the entry for long
        for result in results:
            output.collect(new_record(StreamRecord, (result, timestamp, origin)))


def collecting(output: Any) -> Callable[[Row, Any], None]:
    """What sends the only result of a record to `output`."""

    def collect_result(record: Row, result: Any) -> None:
        output.collect(new_record(StreamRecord, (result, record[1], record[2])))

    # The package's outputs have one that makes no record of the result.
    return getattr(output, "collect_result", collect_result)


class MarkerEntry(Entry):
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
        match self._element:
            case Watermark() as watermark:
                output.emit_watermark(watermark)
            case WatermarkStatus() as status:
                output.emit_watermark_status(status)
            case LatencyMarker() as marker:
                output.emit_latency_marker(marker)
