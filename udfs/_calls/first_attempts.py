"""Rows on the fast path: their first attempts, of which nobody has to know more than where they are in the queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamRecord

from .._functions.async_function import Results
from .._functions.signature import FunctionSpec
from .._policies.options import Options
from .answers import Validate
from .call import Call
from .deadlines import ROUNDING, Deadlines
from .endings import CallEndings
from .slots import CallSlot

__all__ = ("FirstAttempts",)


class FirstAttempts(CallEndings):
    """The calls of an operator that have just begun, and what watches them."""

    # A row whose call gives way is no more than an entry, at first: its Call is made when somebody asks for it, by
    # `call_of`, which for most rows nobody does. `admitting` and `succeeding` each make a function that is called for
    # such a row, in which no attribute of an object that is always the same has to be looked up.
    #
    # Where somebody has to be asked whether a row may be called, `beginning` makes a third, which gives it its place
    # before that.

    def __init__(self, spec: FunctionSpec, options: Options, validate: Validate | None, *parts: Any) -> None:
        super().__init__(spec, options, validate, *parts)
        self._validate = validate
        self._deadlines: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self._clock, options.timeout, partial(self._due, self._expire)
        )
        self._attempts: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self._clock, options.attempt_timeout, partial(self._due, self._attempt_expired)
        )
        self._limits_attempts = options.attempt_timeout is not None

    @abstractmethod
    def open(self, records: Sequence[StreamRecord], entries: Sequence[Entry]) -> Call:
        """The call of rows that have just entered the queue."""

    @abstractmethod
    def ended(self, slot: CallSlot, call: Call, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The coroutine of an attempt is over."""

    @abstractmethod
    def _expire(self, call: Call) -> None: ...

    @abstractmethod
    def _attempt_expired(self, call: Call) -> None: ...

    def admitting(
        self, put_record: Callable[[Any], Entry], before: Sequence[Any], take: Callable[[], None]
    ) -> Callable[[CallSlot], None]:
        """Gives a place to the row whose first attempt is under way in a slot, which knows it already.

        Args:
            before: rows that were done at once since the last was admitted; `take` gives them theirs first.
        """
        # All is dated back to when the attempt began: whether a row was admitted before or after must not be seen.
        done_pulling = self._pool.done_pulling
        timeout, deadlines, watched = self._options.timeout, self._deadlines, self._deadlines.line
        attempts = self._attempts if self._limits_attempts else None

        def admit(slot: CallSlot) -> None:
            if before:
                take()
            state = slot.state
            if (entry := slot.entry) is None:
                slot.entry = entry = put_record(state.element)
            if timeout is not None:
                state.deadline = deadline = state.started + timeout
                watched[entry] = deadline, slot
                if deadlines.timer is None:
                    deadlines.watch_for(deadline)
            if attempts is not None:
                attempts.start(entry, slot, state.started)
            if slot.is_suspended:
                done_pulling(slot)

        return admit

    def beginning(self, put_record: Callable[[Any], Entry]) -> Callable[[CallSlot, Any], float | None] | None:
        """Gives a row its place before its first attempt, and tells when that begins; None if it does not begin now.

        Returns:
            None if attempts begin without a word to anybody.
        """
        if self._admission.is_open:
            return None
        start = self._start
        return lambda slot, record: start(slot, put_record(record))

    def _start(self, slot: CallSlot, entry: Entry) -> float | None:
        """Begin the first attempt of a row that has its place, if the limits let it; else it is the next in line."""
        now = self._clock() if self._admission.is_open else self._admission.admits(slot)
        if now is None:
            self.ready.appendleft(self.open((entry.element,), (entry,)))  # type: ignore[arg-type]
        else:
            slot.entry = entry
        return now

    def succeeding(self) -> Callable[[CallSlot, Any], float]:
        """Takes the result of a row that was admitted so, and gives the time then; its slot goes on, or ends."""
        # The time at the end, when the next call may begin: what runs further down the chain is no time of either call.
        clock, validate, watched, complete = self._clock, self._validate, self._deadlines.line, self._hooks.complete
        latencies, is_even = self._latencies, self.counts.is_even

        def succeeded(slot: CallSlot, result: Any) -> float:
            entry, state = slot.entry, slot.state
            now, deadline = clock(), state.deadline
            if entry is None or not is_even or (deadline is not None and now - ROUNDING > deadline):
                if not slot.abandoned:
                    self.ended(slot, self.call_of(slot), [(result,)], None)
                return clock()
            try:
                value = result if validate is None else validate(result)
            except BaseException as misfit:  # a ResultError, or whatever code of the user's a check has run
                call = self.call_of(slot)
                call.slots.remove(slot)
                slot.call, slot.is_suspended = None, False
                self._decide(call, [(result,)], [misfit], misfit, now)
                return clock()
            slot.entry = None
            slot.is_suspended = False
            latencies.append(now - state.started)
            if deadline is not None:
                watched.pop(entry, None)
            try:
                complete(entry, value)
            except BaseException as error:  # of the output; raised in a coroutine some would become another
                self._hooks.failed(error)
            return clock()

        return succeeded if self._admission.is_open and not self._limits_attempts else self._limited(succeeded)

    def _limited(self, succeeded: Callable[[CallSlot, Any], float]) -> Callable[[CallSlot, Any], float]:
        """The same, after the attempt's own limit has been looked at, and the limits have been told of its end."""
        clock, attempts, tell_end = self._clock, self._attempts.line, self._tell_end

        def ended_and_succeeded(slot: CallSlot, result: Any) -> float:
            entry = slot.entry
            if entry is not None and (limit := attempts.get(entry)) is not None:
                if clock() - ROUNDING > limit[0]:
                    self.ended(slot, self.call_of(slot), [(result,)], None)
                    return clock()
                del attempts[entry]
            tell_end(slot, None)
            return succeeded(slot, result)

        return ended_and_succeeded

    def call_of(self, slot: CallSlot) -> Any:
        """The call whose attempt is undecided in the slot, if there is one."""
        entry, state = slot.entry, slot.state
        if entry is None:
            return slot.call
        call = Call((entry.element,), (entry,), state.started)  # type: ignore[arg-type]
        call.deadline, call.is_fresh = state.deadline, False
        call.attempt = slot.attempt = 1
        call.slots.append(slot)
        slot.call, slot.entry = call, None
        self._deadlines.hand_over(entry, call)
        self._attempts.hand_over(entry, call)
        return call

    def _due(self, end: Callable[[Call], None], owner: Call | CallSlot) -> None:
        try:
            end(self.call_of(owner) if isinstance(owner, CallSlot) else owner)
        except BaseException as error:  # a timer's exception would only be logged
            self._hooks.failed(error)
