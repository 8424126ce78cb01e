"""What has come in to an operator: rows that wait for a call, and those whose calls go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from asyncudf.queues import Entry, StreamElement, StreamElementQueue, StreamRecord

from .._calls.micro_batch import MicroBatch
from .input_buffer import InputBuffer

__all__ = ("Intake",)


class Intake:
    """Leads rows from the input into the queue, each when its call can begin.

    Args:
        push: emits what may leave; called for each marker that has come to its place.
    """

    passes_slots = False  # whether to ask each time, and not only where a marker may be alone in the queue

    # Not before: a row in the queue holds a place and, in the ordered mode, all that come behind it. So rows wait in
    # the input, in the batch that they came in, and only those that a call is for are taken out one by one.
    #
    # A row is in exactly one place: in the input, or in the queue, or emitted.
    # Of those in the queue, each unfinished one is in the batch or belongs to one Call.

    def __init__(
        self, buffer: InputBuffer, queue: StreamElementQueue, batch: MicroBatch, push: Callable[[], None]
    ) -> None:
        self._input = buffer
        self._queue = queue
        self._batch = batch
        self._push = push

    @property
    def has_call(self) -> bool:
        """Whether a slot would find rows for a call, as far as can be told without taking one."""
        can_admit = self._input.may_have_more and self._queue.places > 0
        return can_admit or (len(self._batch) > 0 and (self._batch.is_ready or self._is_starved()))

    @property
    def may_pass_slots(self) -> bool:
        """Whether what needs no call may be admitted though no slot is free; else it waits for one."""
        return self._queue.is_empty()

    @property
    def is_drained(self) -> bool:
        """Whether all has been emitted and nothing will come."""
        return self._input.is_drained and self._queue.is_empty()

    def rows_of_a_call(self) -> Sequence[tuple[StreamRecord, Entry]]:
        """The rows of the next call, with their places in the queue; none, if there is nothing to call now."""
        return self._batch.gather(self._next_row, self._is_starved)

    def admit(self, element: StreamElement) -> Entry:
        """Give an element its place in the queue."""
        entry = self._queue.try_put(element)
        assert entry is not None, "a place was free: only this coroutine-free stretch of code fills it"
        return entry

    def admit_marker(self) -> bool:
        """Take the next element if it is a marker."""
        # It needs no call, so it must not wait for a slot: all may be held by coroutines whose rows are done.
        marker = self._input.take_marker()
        if marker is None:
            return False
        self.admit(marker)
        self._push()
        return True

    def values(self) -> list[StreamElement]:
        """All elements that were not emitted, in order."""
        return self._queue.values() + self._input.values()

    def restore(self, elements: Iterable[StreamElement]) -> None:
        """Put elements before all others; they may be more than the queue holds."""
        self._input.restore(elements)

    def _next_row(self) -> tuple[StreamRecord, Entry] | None:
        """The next row, if there is one and the queue has a place; markers before it go into the queue."""
        while self._queue.places and (element := self._input.next()) is not None:
            entry = self.admit(element)
            if isinstance(element, StreamRecord):
                return element, entry
            self._push()
        return None

    def _is_starved(self) -> bool:
        return self._input.has_ended or not self._queue.places  # behind a full queue a batch would wait for itself
