"""The hottest loop: the calls of one call slot, row after row, for a function of one row and one result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Protocol

from asyncudf.queues import StreamRecord

from .._calls.slots import CallSlot
from .._functions.async_function import Results
from .input_buffer import InputBuffer, InputElement
from .outputs import Output

__all__ = ("BURST", "ImmediateResults", "Pace", "run_fast_path")


BURST = 200  # rows that are taken together
PASSES = 20  # such bursts, if calls return or fail at once, before timers and the mailbox get their turn
PAUSE = 0.01  # seconds after which they get it anyway, behind the call at work


class ImmediateResults:
    """Rows that were done at once, with their results; the operator takes them together."""

    # len(records) == len(results), in the order of the rows; none of them is in the queue
    # spare: counts down while rows are noted; the burst ends when it is used up
    # times: when each of them was done, of those not counted yet; the first began at `since`

    __slots__ = ("records", "results", "since", "spare", "times")

    def __init__(self) -> None:
        self.spare = 0  # bytes, where results are weighed
        self.records: list[InputElement] = []
        self.results: list[Any] = []
        self.since = 0.0
        self.times: list[float] = []

    def leave(self, output: Output, is_bounded: bool) -> None:
        """Emit them; what the output has no room for is still there."""
        count = 0
        try:
            if not is_bounded:
                count = len(self.records)
                output.collect_results(self.records, self.results)
            while count < len(self.records) and output.room > 0:  # one by one: each may become many on its way
                count += 1
                output.collect_results(self.records[count - 1 : count], self.results[count - 1 : count])
        finally:
            self.drop(count)

    def drop(self, count: int) -> None:
        """Forget the first so many."""
        del self.records[:count], self.results[:count]


class Pace:
    """How long calls may take that are made one after another.

    Args:
        clock: the loop's time.
        limits: seconds for a row and for an attempt; None: no limit.
    """

    __slots__ = ("clock", "limit", "pause")

    def __init__(self, clock: Callable[[], float], *limits: float | None) -> None:
        self.clock = clock
        self.limit = min((limit for limit in limits if limit is not None), default=math.inf)
        self.pause = min(PAUSE, self.limit)  # a loop that comes round more rarely would see no deadline in time


class FastPathOperator(Protocol):
    """What the loop asks of its operator."""

    def may_take(self, slot: CallSlot, /) -> int: ...
    def refill(self) -> bool: ...
    def admit_marker(self, marker: InputElement, /) -> None: ...
    def ended(self, slot: CallSlot, results: list[Results] | None, error: BaseException | None, /) -> None: ...
    def ended_at_once(self, slot: CallSlot, result: Any, /) -> float: ...


async def run_fast_path(
    slot: CallSlot,
    *,
    function: Callable[..., Awaitable[Any]],
    validate: Callable[[Any], Any] | None,
    weigh: Callable[[Any], int] | None,
    pace: Pace,
    immediate: ImmediateResults,
    operator: FastPathOperator,
    buffer: InputBuffer,
    asks: bool,
    succeeded: Callable[[CallSlot, Any], float],
    may_go_on: Callable[[], bool],
    begin: Callable[[CallSlot, Any], float | None] | None,
    row_type: type[StreamRecord],
) -> bool:
    """Call the function for one row after another, to be driven by `notify_on_suspend`.

    Rows that are done at once are noted in `immediate`. One whose call suspends, fails, comes back too late or has more
    than its result to be passed on is admitted to the queue.

    Args:
        weigh: how many bytes a result has, where that matters.
        asks: whether the function can ask which row it works on.
        succeeded: takes the result of a call that has given way; returns when that was.
        may_go_on: whether as many rows as it was told may also be taken after others had their turn.
        begin: gives a row its place and tells when its call begins, if it begins now; None: no row has to ask.
        row_type: of those that are no plain tuples.

    Returns:
        Whether there may be more rows, after a pause; else the slot has nothing to do here.
    """
    # A function that has its answer at hand must cost little more than calling it: no entry, no Call, no deadline is
    # made before it is known that the row needs one. The call is simply begun. If it gives way, `notify_on_suspend`
    # tells the operator, which admits the row then, as of `state.started`, and lets another slot go on pulling.
    # This coroutine waits with the call meanwhile: `slot.is_suspended` tells afterwards that it did.
    #
    # What may not happen unseen between two rows is asked after each: time, bytes, traces in the context. A `break`
    # goes on with a new burst, before which `may_take` looks at everything; a `return` lets go of the slot's task.
    #
    # Awaiting costs a third of driving each call by hand, which ends with an exception that has to be caught.
    state, context, clean = slot.state, slot.context, slot.clean
    clock, pause = pace.clock, pace.pause
    note_record, note_value, note_time = immediate.records.append, immediate.results.append, immediate.times.append
    end = 0.0  # when timers and the mailbox get their turn; 0: they have just had it
    for _ in range(PASSES):
        if not (limit := operator.may_take(slot)):
            return False
        source, element, has_waited = buffer.current, None, False
        started = clock()
        if not immediate.times:
            immediate.since = started
        if not end:
            end = started + pause
        elif started > end:
            return True
        for element in islice(source, limit):
            if type(element) is not tuple and type(element) is not row_type:
                operator.admit_marker(element)
                break
            if begin is not None:
                if (begun := begin(slot, element)) is None:
                    break
                started = begun
            if asks:
                state, clean = slot.meet(element), slot.clean
            else:
                state.element = element
            state.started = started
            result = value = None  # or the last result would live on through this call
            try:
                result = await function(*element[0])  # type: ignore[misc]
            except BaseException as error:  # every error of the user's code has its policy
                if slot.is_suspended:
                    end = 0.0
                operator.ended(slot, None, error)
                if begin is not None:  # others of this moment may have failed too, which the gates have to know
                    return True
                break
            if slot.is_suspended:
                started = succeeded(slot, result)
                if slot.abandoned or not may_go_on() or buffer.current is not source:
                    end = 0.0
                    break
                immediate.since = started
                end, has_waited = started + pause, True
            elif begin is not None:
                started = operator.ended_at_once(slot, result)
                if buffer.current is not source or not may_go_on():
                    break
                if started > end:
                    return True
            else:
                if asks and state.side:  # it needs an entry for its side records
                    operator.ended(slot, [(result,)], None)
                    break
                try:
                    value = result if validate is None else validate(result)
                except BaseException as error:
                    operator.ended(slot, None, error)
                    break
                # One look at the clock per row: the end of this call is the start of the next.
                if (now := clock()) > end:
                    if now - started > pace.limit:
                        operator.ended(slot, [(result,)], None)
                        break
                    note_record(element)
                    note_value(value)
                    note_time(now)
                    return True
                started = now
                note_record(element)
                note_value(value)
                note_time(now)
                if weigh is not None:
                    immediate.spare -= weigh(value)
                    if immediate.spare <= 0:
                        return True
            try:
                if context != clean or slot.is_cancelled:  # is_contaminated asks more than can have happened here
                    break
            except BaseException:  # variables that cannot be compared
                break
        else:
            if element is not None:  # a row was taken
                if has_waited:  # others have had their turn
                    continue
                return True
            if not operator.refill():
                return False
    return True
