"""The part of an AsyncWaitOperator that runs calls in bursts, without a word to anybody in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from asyncudf.queues import StreamElementQueue, StreamRecord

from .._calls.calls import Calls
from .._calls.slots import CallSlot, SlotPool, notify_on_suspend
from .._functions.async_function import Results
from .._limits.admission import Admission
from .._metrics.counters import TaskCounters
from .buffered import BufferedOperator
from .byte_bound import ByteBoundedQueue
from .emission import Emission
from .fast_path import BURST, ImmediateResults, Pace, run_fast_path
from .input_buffer import InputElement
from .intake import Intake

__all__ = ("BurstOperator",)


class BurstOperator(BufferedOperator):
    """What `run_fast_path` asks of its operator, and what is made of the results."""

    # _immediate holds rows only while one slot runs the fast path: they are taken before it gives way
    # _row_type: of rows in the input that are no plain tuples

    counters: TaskCounters
    _admission: Admission
    _admit: Callable[[CallSlot], None]
    _bytes: ByteBoundedQueue | None
    _calls: Calls
    _emission: Emission
    _immediate: ImmediateResults
    _intake: Intake
    _pace: Pace
    _pool: SlotPool
    _queue: StreamElementQueue
    _row_type: type[StreamRecord]
    _succeeded: Callable[[CallSlot, Any], float]

    def _finish_if_drained(self) -> None:
        raise NotImplementedError

    def _push(self) -> None:
        raise NotImplementedError

    def _fast_path_of(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        validate: Callable[[Any], Any] | None,
        weigh: Callable[[Any], int] | None,
    ) -> Callable[[CallSlot], Awaitable[bool]]:
        """Runs call after call in a slot for as long as rows come; gives False when the slot has nothing to do here.

        Afterwards, also if it raises, `_take_immediate` has to be called.
        """
        immediate, admission, has_places = self._immediate, self._admission, self._queue.has_places
        admit, succeeded = self._admit, self._calls.succeeding()
        self._succeeded = succeeded
        ready, is_over = self._calls.ready, self._finished.done
        is_simple = self._bytes is None and not self._is_bounded

        def may_go_on() -> bool:
            return is_simple and admission.may_begin_nowait and has_places(BURST) and not (ready or is_over())

        run = partial(
            run_fast_path,
            function=function,
            validate=validate,
            weigh=weigh,
            pace=self._pace,
            immediate=immediate,
            operator=self,
            buffer=self._input,
            asks=self._calls.asks,
            succeeded=succeeded,
            may_go_on=may_go_on,
            begin=self._calls.beginning(self._queue.put_record),
            row_type=self._row_type,
        )
        return lambda slot: notify_on_suspend(run(slot), slot, admit)

    def may_take(self, slot: CallSlot) -> int:
        """How many rows `run_fast_path` may take from the input one after another, at most a burst; 0: none."""
        # All that could change in a burst is asked once, before it: no call in it may then need a place, or room, that
        # is not there. What a single row may change, such as a context variable, the loop asks itself.
        self._take_immediate()  # or their places would be given twice
        places = self._queue.places
        if (
            self._calls.ready
            or self._finished.done()
            or not (self._admission.may_begin_nowait and self._calls.takes_more)
        ):
            return 0
        if slot.is_contaminated():
            return 0
        if self._bytes is not None:
            self._immediate.spare = self._bytes.spare
        if self._is_bounded and self._queue.may_pass() and (room := self._output.room) > 0:
            places = min(places, room)
        return min(places, BURST)

    def refill(self) -> bool:
        """Go on to the next batch, for `run_fast_path`; False if there is none."""
        if not (has_rows := self._input.refill()):
            self._finish_if_drained()
        return has_rows

    def admit_marker(self, marker: InputElement) -> None:
        """Take a marker that `run_fast_path` has come to."""
        self._take_immediate()
        self._intake.admit(marker)  # type: ignore[arg-type]
        self._push()

    def ended(self, slot: CallSlot, results: list[Results] | None, error: BaseException | None) -> None:
        """A call of `run_fast_path` is over, and its result cannot simply be passed on."""
        # Admitted only now if it has never given way: an error, or a late result, needs what a Call knows.
        if not slot.is_suspended:
            self._admit(slot)
        if not slot.abandoned:
            self._calls.ended(slot, self._calls.call_of(slot), results, error)

    def ended_at_once(self, slot: CallSlot, result: Any) -> float:
        """A call of `run_fast_path` whose row has its place has not given way; when the next one may begin."""
        self._admit(slot)
        return self._succeeded(slot, result)

    def _take_immediate(self) -> None:
        """Take the rows that were done at once: emit them, if they need not wait in the queue."""
        immediate = self._immediate
        if not immediate.records:
            return
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
