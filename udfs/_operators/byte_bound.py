"""A bound in bytes for the queue, beside the one in rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamElementQueue, StreamRecord

from .outputs import ForwardingOutput, Output

__all__ = ("ByteBoundedQueue", "UnloadingOutput")


class ByteBoundedQueue(StreamElementQueue):
    """Another queue, with no place for new rows while the results that wait in it weigh too much.

    What is in progress when the limit is reached comes on top.

    Args:
        limit: bytes.
        weigh: how many a result has.
    """

    # Nobody knows how large a result will be before it is there. So the bound does not hold back results, it lets no
    # new rows in: `places` is 0 from when the limit is reached until enough has left.
    # A result is weighed when it is completed and once more when it leaves: an output sees records, and not the entry
    # that could have kept the weight. Both times it must be the same, so nobody may edit a result in between.
    #
    # _held: the weight of the results that were completed in the queue and not yet emitted

    def __init__(self, queue: StreamElementQueue, limit: int, weigh: Callable[[Any], int]) -> None:
        super().__init__(queue.capacity)
        self._queue = queue
        self._limit = limit
        self._weigh = weigh
        self._held = 0
        self.most = 0  # that it ever was

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
        """These wait in the queue from now on."""
        self._held += sum(map(self._weigh, results))
        self.most = max(self.most, self._held)

    def unload(self, result: Any) -> None:
        """This one leaves."""
        self._held -= self._weigh(result)

    def has_completed_elements(self) -> bool:
        return self._queue.has_completed_elements()

    def emit_completed_elements(self, output: Any, limit: int) -> int:
        return self._queue.emit_completed_elements(output, limit)

    def may_pass(self) -> bool:
        return self._queue.may_pass()

    def values(self) -> list[StreamElement]:
        return self._queue.values()

    def __len__(self) -> int:
        return len(self._queue)


class _Loading(Entry):
    """An entry whose results are weighed when they come."""

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
    """Where such a queue emits to: a result that passes is off the scales."""

    def __init__(self, output: Output, bound: ByteBoundedQueue) -> None:
        super().__init__(output)
        self._bound = bound

    def collect(self, record: StreamRecord) -> None:
        self._bound.unload(record.value)
        self._output.collect(record)
