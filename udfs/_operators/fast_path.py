"""The hottest loop: the calls of one call slot, row after row, for a function of one row and one result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol

from asyncudf.queues import Entry, StreamRecord

from .._calls.call import Call
from .._calls.calls import Calls
from .._calls.slots import CallSlot, notify_on_suspend
from .._functions.async_function import Results
from .._metrics.counters import TaskCounters
from .._stored.rows import CacheMiss
from .intake import Intake
from .memory import QueueMemory
from .queues import Emitter

__all__ = ("FastPath",)


BURST = 200  # rows that are taken together
PASSES = 20  # such bursts, if calls return or fail at once, before the event loop gets its turn
ROWS = (tuple, StreamRecord, CacheMiss)


class FastPathOperator(Protocol):
    """The operator whose calls are made on the fast path."""

    counters: TaskCounters

    def emit_done(self, records: list[Any], results: list[Any], /) -> None:
        """Emit rows that have one result each, or give them their places; both lists are empty then."""

    def finish_if_drained(self) -> None:
        """There is no further batch in the input."""


class FastPath:
    """Calls the function for one row after another.

    Rows that are done at once are noted, and emitted together by `flush`. A row whose call suspends, fails, comes back
    too late or has more than its result to be passed on is admitted to the queue.

    Args:
        finished: done when the operator has ended.
        complete: gives a row that was admitted its result, and emits what may leave.
    """

    # A function that has its answer at hand must cost little more than calling it: no entry, no Call, no deadline is
    # made before it is known that the row needs one. The call is simply begun. If it suspends, `notify_on_suspend`
    # calls `_admit`, which admits the row as of `state.started`, and lets another slot take rows. The loop waits with
    # the call meanwhile: `slot.is_suspended` says afterwards that it did.
    #
    # len(_records) == len(_results): rows that were done at once, in their order, none of them in the queue. Only one
    # slot fills them, until its call suspends: `_admit` flushes them first.
    # _times: when each row was done that is not counted yet; the first of them began at _since

    def __init__(
        self,
        operator: FastPathOperator,
        finished: asyncio.Future[None],
        calls: Calls,
        intake: Intake,
        emitter: Emitter,
        memory: QueueMemory | None,
        complete: Callable[[Entry, Any], object],
    ) -> None:
        self._operator = operator
        self._finished = finished
        self._calls = calls
        self._intake = intake
        self._emitter = emitter
        self._memory = memory
        self._records: list[Any] = []
        self._results: list[Any] = []
        self._times: list[float] = []
        self._since = 0.0
        self._admit = calls.admitting(intake.queue.put_record, self._records, self.flush)
        self._succeeded = calls.succeeding(complete)
        self._begin = calls.beginning(intake.queue.put_record)

    def run(self, slot: CallSlot, call: Call | None) -> Awaitable[bool]:
        """Call for row after row as long as rows come; `flush` has to be called afterwards, also if this raises.

        Args:
            call: of the first row, if it was formed before.

        Returns:
            Whether there may be more rows, after a pause; else the slot has nothing to do here.
        """
        return notify_on_suspend(self._run(slot, call), slot, self._admit)

    def flush(self) -> None:
        """Emit the rows that were done at once, or give them their places in the queue."""
        if self._records:
            self._operator.counters.done_at_once(self._since, self._times)
            self._times.clear()
            self._operator.emit_done(self._records, self._results)

    async def _run(self, slot: CallSlot, call: Call | None) -> bool:
        # After each row the loop checks what a single row may change: time, memory, traces in the context. A `break`
        # goes on with a new burst, before which `_rows_to_take` checks everything; a `return` gives the slot back.
        #
        # Awaiting costs a third of driving each call by hand, which ends with an exception that has to be caught.
        function, succeeded = self._calls.function, self._succeeded
        assert function is not None
        buffer, queue, calls, times = self._intake.buffer, self._intake.queue, self._calls, self._times
        memory, size = self._memory, None if self._memory is None else self._memory.size_of_result
        clock, validate, asks, limit, pause = calls.clock, calls.validate, calls.asks, calls.limit, calls.pause
        note_record, note_result, note_time = self._records.append, self._results.append, times.append
        admission, ready, is_over = calls.admission, calls.ready, self._finished.done
        takes_all, line = not self._emitter.is_bounded, queue.line
        state, context, clean = slot.state, slot.context, slot.clean
        source: Iterator[Any]
        end = spare = 0.0  # end: when the event loop gets its turn; 0: it has just had it
        for _ in range(PASSES):
            if call is None and calls.ready and self._may_begin(slot):
                if end and clock() > end:
                    return True
                call = calls.next_ready(only_first=True)
            if call is None:
                if not (count := self._rows_to_take(slot)):
                    return False
                begin, source = self._begin, buffer.current
            else:
                begin, source, count, call = partial(calls.begin_formed, call), iter(call.records), 1, None
            if size is not None:
                spare = memory.spare  # type: ignore[union-attr]
            element, has_waited = None, False
            started = clock()
            if not times:
                self._since = started
            if not end:
                end = started + pause
            elif started > end and source is buffer.current:
                return True
            for element in islice(source, count):
                if type(element) not in ROWS:
                    self.flush()
                    self._intake.admit_uncalled(element)
                    break
                if begin is not None:
                    if (begun := begin(slot, element)) is None:
                        break
                    started = begun
                if asks:
                    state, clean = slot.begin_attempt(element), slot.clean
                else:
                    state.element = element
                state.started = started
                result = value = None  # or the last result would live on through this call
                try:
                    result = await function(*element[0])
                except BaseException as error:  # every error of the user's code has its policy
                    if slot.is_suspended:
                        end = 0.0
                    self._end(slot, None, error)
                    if begin is not None:  # the limits have to know of other failures before the next call
                        return True
                    break
                if (has_suspended := slot.is_suspended) or begin is not None:
                    if not has_suspended:  # it has its place already
                        self._admit(slot)
                    started = succeeded(slot, result)
                    if has_suspended:
                        self._since = started
                        end, has_waited = started + pause, True
                    elif started > end:
                        return True
                    if not (takes_all and admission.may_begin_row and len(line) <= queue.most - BURST) or (
                        buffer.current is not source or ready or is_over()
                    ):
                        break
                else:
                    if asks and state.side:  # it needs an entry for its side records
                        self._end(slot, [(result,)], None)
                        break
                    try:
                        value = result if validate is None else validate(result)
                    except BaseException as error:
                        self._end(slot, None, error)
                        break
                    # The clock is read once per row: the end of this call is the start of the next.
                    if (now := clock()) > end and now - started > limit:
                        self._end(slot, [(result,)], None)
                        break
                    started = now
                    note_record(element)
                    note_result(value)
                    note_time(now)
                    if size is not None:
                        spare -= size(value)
                        if spare <= 0:
                            return True
                    if now > end:
                        return True
                try:
                    if context != clean or slot.is_cancelled:  # `is_dirty` asks more than can have happened here
                        break
                except BaseException:  # variables that cannot be compared
                    break
            else:
                if element is not None:  # a row was taken
                    if has_waited:  # the event loop has had its turn
                        continue
                    return True
                if not buffer.refill():
                    self._operator.finish_if_drained()
                    return False
        return True

    def _rows_to_take(self, slot: CallSlot) -> int:
        """How many rows may be taken from the input one after another, at most a burst; 0: none."""
        # A burst takes no more rows than there are places and the output can take, as it checks neither for each row.
        self.flush()  # or their places would be given twice
        if self._calls.ready or not (self._intake.takes_more and self._may_begin(slot)):
            return 0
        return min(self._emitter.places, BURST)

    def _may_begin(self, slot: CallSlot) -> bool:
        """Whether an attempt may begin in the slot."""
        return not self._finished.done() and self._calls.admission.may_begin_row and not slot.is_dirty()

    def _end(self, slot: CallSlot, results: list[Results] | None, error: BaseException | None) -> None:
        """A call is over, and its result cannot simply be passed on."""
        # Admitted only now if it has never suspended: an error, or a late result, needs what a Call knows.
        if not slot.is_suspended:
            self._admit(slot)
        if not slot.abandoned:
            self._calls.ended(slot, self._calls.call_of(slot), results, error)
