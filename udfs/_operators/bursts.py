"""The part of an AsyncWaitOperator that runs calls in bursts, without a word to anybody in between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import islice
from typing import Any

from asyncudf.queues import StreamElementQueue

from .._calls.admission import Admission
from .._calls.attempts import Calls
from .._calls.slots import CallSlot, SlotPool, notify_on_suspend
from .._functions.async_function import Results
from .._metrics.counters import TaskCounters
from .buffered import BufferedOperator
from .byte_bound import ByteBoundedQueue
from .emission import Emission
from .fast_path import BURST, ImmediateResults, Pace, run_fast_path
from .input_buffer import InputElement, record_of
from .intake import Intake

__all__ = ("BurstOperator",)


class BurstOperator(BufferedOperator):
    """What `run_fast_path` asks of its operator, and what is made of the results."""

    # _immediate holds rows only while one slot runs the fast path: they are taken before it gives way

    counters: TaskCounters
    _pool: SlotPool
    _calls: Calls
    _intake: Intake
    _admission: Admission
    _queue: StreamElementQueue
    _bytes: ByteBoundedQueue | None
    _emission: Emission
    _immediate: ImmediateResults
    _pace: Pace
    _validate: Callable[[Any], Any] | None
    _weigh: Callable[[Any], int] | None

    def _finish_if_drained(self) -> None:
        raise NotImplementedError

    def _push(self) -> None:
        raise NotImplementedError

    async def _run_fast_path(self, slot: CallSlot, function: Callable[..., Coroutine[Any, Any, Any]]) -> bool:
        """Run call after call for as long as rows come; False when the slot has nothing to do here."""
        running = run_fast_path(
            function, slot, self._validate, self._weigh, self._calls.asks, self._pace, self._immediate, self
        )
        try:
            return await notify_on_suspend(running, slot, partial(self._suspended, slot))
        finally:
            if self._immediate.records:
                self._take_immediate()

    def next_rows(self, slot: CallSlot) -> Iterator[InputElement] | None:
        """Rows for `run_fast_path`, at most a burst."""
        # All that could change in a burst is asked once, before it: no call in it may then need a place, or room, that
        # is not there. What a single row may change, such as a context variable, the loop asks itself.
        places = self._queue.places
        if not places or self._finished.done() or not self._admission.is_open or self._calls.ready:
            return None
        if slot.is_contaminated():
            return None
        room = self._output.room if self._is_bounded else BURST
        self._immediate.may_leave = room > 0 and self._queue.may_pass()
        if self._bytes is not None:
            self._immediate.spare = self._bytes.spare
        limit = min(BURST, places, room) if self._immediate.may_leave else min(BURST, places)
        return islice(self._input.current, limit)

    def refill(self) -> bool:
        """Go on to the next batch, for `run_fast_path`; False if there is none."""
        if not (has_rows := self._input.refill()):
            self._finish_if_drained()
        return has_rows

    def admit_marker(self, marker: InputElement) -> None:
        """Take a marker that `run_fast_path` has come to."""
        if self._immediate.records:
            self._take_immediate()
        self._intake.admit(marker)  # type: ignore[arg-type]
        self._push()

    def ended(self, slot: CallSlot, results: list[Results] | None, error: BaseException | None) -> None:
        """A call of `run_fast_path` is over, and its result cannot simply be passed on."""
        # Admitted only now if it has never given way: an error, or a late result, needs what a Call knows.
        if not slot.is_suspended:
            self._admit(slot)
        if not slot.abandoned:
            self._calls.ended(slot, slot.call, results, error)

    def _suspended(self, slot: CallSlot) -> None:
        self._admit(slot)
        self._pool.done_pulling(slot)

    def _admit(self, slot: CallSlot) -> None:
        if self._immediate.records:
            self._take_immediate()
        record = record_of(slot.state.element)
        self._calls.admit(slot, record, self._intake.admit(record))  # type: ignore[arg-type]

    def _take_immediate(self) -> None:
        """Take the rows that were done at once: emit them, if they need not wait in the queue."""
        immediate = self._immediate
        self.counters.done_at_once(immediate.since, immediate.times)
        immediate.times.clear()
        self._pass_on(immediate)

    def _pass_on(self, immediate: ImmediateResults) -> None:
        try:
            self._emission.emit_immediate(immediate)
        except BaseException as error:  # a call that has just begun must not be lost with it
            self._fail(error)
        if self._queue.has_completed_elements():
            self._push()
