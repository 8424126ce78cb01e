"""Intake: leads rows from the input into the queue, each when its call can begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from asyncudf.queues import Entry, StreamElementQueue, StreamRecord

from .._calls.call import RowSharing
from .._calls.micro_batch import MicroBatch
from .._stored.rows import CachedRows
from .input_buffer import InputBuffer

__all__ = ("Intake",)


TOGETHER = 200  # cached rows that are emitted together


class IntakeOperator(Protocol):
    """The operator that rows enter."""

    def push(self) -> None:
        """Emit what may leave."""

    def emit_cached(self, records: list[Any], results: list[Any], /) -> None:
        """Emit rows that need no call, or give them their places; there are places for all."""


class Intake:
    """Leads rows from the input into the queue, each when its call can begin; rows that need no call do not wait.

    Args:
        sharing: knows which row has a call of its own.
        has_uncalled: whether rows may come that need no call.
    """

    # Not before: a row in the queue holds a place and, in the ordered mode, all that come behind it. So rows wait in
    # the input, in the batch that they came in, and only those that a call is for are taken out one by one.
    #
    # What needs no call (a marker, cached rows, a row that shares a call) must not wait for a slot: coroutines that run
    # on after their rows are done may hold all of them.
    #
    # A row is in exactly one place: in the input, or in the queue, or emitted.
    # Of those in the queue, each unfinished one is in the batch, or follows a call, or belongs to one Call.
    # _is_admitting: an element is on its way into the queue. What is emitted meanwhile may lead here again, and the
    # elements behind it must not pass it.

    def __init__(
        self,
        operator: IntakeOperator,
        buffer: InputBuffer,
        queue: StreamElementQueue,
        batch: MicroBatch,
        sharing: RowSharing,
        *,
        has_uncalled: bool,
    ) -> None:
        self._operator = operator
        self.buffer = buffer
        self.queue = queue
        self._batch = batch
        self._sharing = sharing
        self._has_uncalled = has_uncalled
        self._is_admitting = False

    @property
    def takes_more(self) -> bool:
        """Whether another call should be formed."""
        return self._sharing.takes_more

    @property
    def has_call(self) -> bool:
        """Whether a slot would find rows for a call, as far as can be told without taking one."""
        if not self._sharing.takes_more:
            return False
        can_admit = self.buffer.may_have_more and self.queue.places > 0
        return can_admit or (len(self._batch) > 0 and (self._batch.is_ready or self._is_starved()))

    @property
    def may_admit_without_slot(self) -> bool:
        """Whether what needs no call may be admitted now, though no slot is free."""
        if self._is_admitting:
            return False
        # A marker behind rows has time until they have left.
        return self.queue.places > 0 if self._has_uncalled else self.queue.is_empty()

    @property
    def is_drained(self) -> bool:
        """Whether all has been emitted and nothing will come."""
        return self.buffer.is_drained and self.queue.is_empty()

    def rows_of_a_call(self) -> Sequence[tuple[StreamRecord, Entry]]:
        """The rows of the next call, with their places in the queue; none, if there is nothing to call now."""
        return self._batch.gather(self._next_row, self._is_starved)

    def admit_without_slot(self) -> bool:
        """Take the next element if it needs no call; returns whether it was one."""
        element: Any = self.buffer.take_unless(self._sharing.has_to_call)
        if element is None:
            return False
        self.admit_uncalled(element)
        return True

    def admit_uncalled(self, element: Any) -> None:
        """Admit an element that was taken out of the input and needs no call."""
        self._is_admitting = True
        try:
            self._admit(element)
        finally:
            self._is_admitting = False
        if self.queue.has_completed_elements():
            self._operator.push()

    def _next_row(self) -> tuple[StreamRecord, Entry] | None:
        """The next row that has a call of its own, if the queue has a place; what is before it is admitted."""
        if self._is_admitting or not self._sharing.takes_more:
            return None
        self._is_admitting = True
        try:
            while self.queue.places and (element := self.buffer.next()) is not None:
                if (entry := self._admit(element)) is not None:
                    return element, entry  # type: ignore[return-value]
                if not self.queue.places:
                    self._operator.push()
            return None
        finally:
            self._is_admitting = False
            if self.queue.has_completed_elements():
                self._operator.push()

    def _admit(self, element: Any) -> Entry | None:
        """Give an element its place in the queue; returns the entry of a row that is to be called."""
        if type(element) is CachedRows:
            self._admit_cached(element)
            return None
        entry = self.queue.try_put(element)
        assert entry is not None, "a place was free: only this coroutine-free stretch of code fills it"
        if isinstance(element, StreamRecord):
            return entry if self._sharing.needs_call(element, entry) else None
        self._operator.push()
        return None

    def _admit_cached(self, rows: CachedRows) -> None:
        """Emit cached rows, or give them their places, as far as there are places; the others stay in the input."""
        while len(rows) and (places := self.queue.places) > 0:
            self._operator.emit_cached(*rows.take(min(places, TOGETHER)))
        if len(rows):
            self.buffer.put_back(rows)  # type: ignore[arg-type]

    def _is_starved(self) -> bool:
        return self.buffer.has_ended or not self.queue.places  # behind a full queue a batch would wait for itself
