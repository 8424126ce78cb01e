"""Where rows wait in an operator and how they leave: the queue of its output mode, its bound in bytes, the emitter."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from asyncudf.queues import (
    Entry,
    OrderedStreamElementQueue,
    StreamElement,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
)

from .._policies.options import Options, OutputMode
from .outputs import UNLIMITED, ForwardingOutput, Output

__all__ = ("Emitter", "queue_of")


_QUEUES: dict[OutputMode, Callable[[int], StreamElementQueue]] = {
    OutputMode.ORDERED: OrderedStreamElementQueue,
    OutputMode.UNORDERED: UnorderedStreamElementQueue,
}


def queue_of(
    options: Options, output: Output, weigh: Callable[[Any], int] | None
) -> tuple[StreamElementQueue, Output, ByteBoundedQueue | None]:
    """The queue, the output that it emits to, and the bound in bytes if there is one."""
    # Rows of fixed size are bounded well enough by their number; to weigh each of them would be for nothing.
    queue = _QUEUES[options.output_mode](options.queue_rows)
    if weigh is None or options.max_buffered_bytes is None:
        return queue, output, None
    bounded = ByteBoundedQueue(queue, options.max_buffered_bytes, weigh)
    return bounded, UnloadingOutput(output, bounded), bounded


class Emitter:
    """Lets results leave the queue while the output can take more, one row after the other.

    Operators further down do not see the context variables of the call that caused the emission. If they complete
    another row of this operator, that row leaves after the rows that are leaving.

    Args:
        weighed: the queue, if it is bounded in bytes.

    Attributes:
        is_bounded: whether the output can take only so many rows.
        is_going_on: whether a row is leaving at this moment.
    """

    # A row that leaves runs the operators further down right here, on the stack of the code that has completed the row.
    # If they complete another row of this operator, that row must not overtake the row that is leaving: so callers look
    # at `is_going_on` first, and the outer loop takes the other row in its turn.

    def __init__(self, queue: StreamElementQueue, output: Output, weighed: ByteBoundedQueue | None) -> None:
        self._queue = queue
        self._output = output
        self.weighed = weighed
        self.is_bounded = output.available < UNLIMITED
        self._context = contextvars.copy_context()
        self.is_going_on = False

    @property
    def is_simple(self) -> bool:
        """Whether nothing but the places of the queue bounds how many rows may be taken in."""
        return self.weighed is None and not self.is_bounded

    @property
    def places(self) -> int:
        """How many rows may be taken in now, if each of them is done at once."""
        places = self._queue.places
        if self.is_bounded and self._queue.may_pass() and (available := self._output.available) > 0:
            return min(places, available)
        return places

    def emit(self) -> bool:
        """Emit all that may leave; returns whether something has to wait for the output."""
        self.is_going_on = True
        try:
            return self._context.run(self._emit_while_there_is_room)
        finally:
            self.is_going_on = False

    def emit_done(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, if they may leave; the others take their places in the queue.

        Both lists are empty afterwards.
        """
        self.is_going_on = True
        try:
            if self._queue.may_pass():  # nothing before them waits: they need not be put
                self._context.run(self._leave, records, results)
        finally:
            self.is_going_on = False
            if records:
                try:
                    self._queue.put_completed(records, results)
                finally:
                    records.clear()
                    results.clear()

    def _emit_while_there_is_room(self) -> bool:
        if not self.is_bounded:
            self._queue.emit_completed_elements(self._output, UNLIMITED)
        while self._output.available > 0 and self._queue.emit_completed_elements(self._output, 1):
            pass  # one by one: each may become many on its way
        return self._queue.has_completed_elements()

    def _leave(self, records: list[Any], results: list[Any]) -> None:
        count = 0
        try:
            if not self.is_bounded:
                count = len(records)
                self._output.collect_results(records, results)
            while count < len(records) and self._output.available > 0:  # one by one: each may become many on its way
                count += 1
                self._output.collect_results(records[count - 1 : count], results[count - 1 : count])
        finally:
            del records[:count], results[:count]


class ByteBoundedQueue(StreamElementQueue):
    """Another queue, with no place for new rows while the results that wait in it have too many bytes.

    The results of calls in progress when the limit is reached come on top.

    Args:
        limit: bytes.
        weigh: how many a result has.
    """

    # The size of a result is not known before the call ends. So the bound does not hold back results, it lets no new
    # rows in: `places` is 0 from when the limit is reached until enough results have left.
    # A result is weighed when it is completed and once more when it leaves, as an output sees records and not entries.
    # Both times it must weigh the same, so no code may edit a result in between.
    #
    # _held: bytes of the results that were completed in the queue and not yet emitted

    def __init__(self, queue: StreamElementQueue, limit: int, weigh: Callable[[Any], int]) -> None:
        super().__init__(queue.capacity)
        self._queue = queue
        self.line = queue.line
        self._limit = limit
        self.weigh = weigh
        self._held = 0
        self.most = 0  # bytes that were ever held

    @property
    def places(self) -> int:
        return self._queue.places if self._held < self._limit else 0

    @property
    def spare(self) -> int:
        """How many bytes of results may still be put."""
        return self._limit - self._held

    def put_record(self, record: Any) -> Entry:
        return _Loading(self._queue.put_record(record), self)

    def _put_marker(self, marker: StreamElement) -> Entry:
        entry = self._queue.try_put(marker)
        assert entry is not None
        return entry

    def put_completed(self, records: Sequence[Any], results: Sequence[Any]) -> None:
        self._queue.put_completed(records, results)
        self.load(results)

    def load(self, results: Sequence[Any]) -> None:
        """These results wait in the queue from now on."""
        self._held += sum(map(self.weigh, results))
        self.most = max(self.most, self._held)

    def unload(self, result: Any) -> None:
        """This result leaves."""
        self._held -= self.weigh(result)

    def has_completed_elements(self) -> bool:
        return self._queue.has_completed_elements()

    def emit_completed_elements(self, output: Any, limit: int) -> int:
        return self._queue.emit_completed_elements(output, limit)

    def may_pass(self) -> bool:
        return self._queue.may_pass()


class _Loading(Entry):
    """An entry that weighs its results when they come."""

    __slots__ = ("_bound", "_entry")

    def __init__(self, entry: Entry, bound: ByteBoundedQueue) -> None:
        self._entry = entry
        self._bound = bound

    @property
    def is_done(self) -> bool:  # type: ignore[override]
        return self._entry.is_done

    @property
    def element(self) -> StreamElement:
        return self._entry.element

    def complete(self, results: Sequence[Any]) -> None:
        if not self._entry.is_done:
            self._entry.complete(results)
            self._bound.load(results)


class UnloadingOutput(ForwardingOutput):
    """The output of a queue that is bounded in bytes: a result that passes is no longer held."""

    def __init__(self, output: Output, bound: ByteBoundedQueue) -> None:
        super().__init__(output)
        self._bound = bound

    def collect(self, record: StreamRecord) -> None:
        self._bound.unload(record.value)
        self._output.collect(record)
