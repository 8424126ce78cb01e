"""One row's call from its deadline to its result.

The order of wrapping, outermost first, with the piece of code that does it:

    deadline(               Calls.invoke, _expire   covers all attempts and back-offs
      retry(                Calls._outcome          back-off holds no slot
        breaker( limits(    Admission               one call waits, in the slot that has pulled it
          slot(             SlotPool                one slot, one attempt
            attempt_timeout(  Calls.invoke, _attempt_expired
              function)))))   Invoker.invoke
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamRecord

from .._errors.exceptions import AsyncTimeoutError
from .._errors.records import is_fatal
from .._functions.async_function import Results
from .._functions.side_outputs import SideRecord
from .._functions.signature import FunctionSpec
from .._limits.gates import NOT_NEEDED
from .._policies.lasting_errors import is_lasting
from .._policies.options import Options
from .._policies.service_signs import ServiceSign, sign_of
from .answers import Validate
from .call import Call
from .copies import copied, with_own_arguments
from .deadlines import ROUNDING
from .first_attempts import FirstAttempts
from .hedges import Hedges
from .invokers import Invoker
from .slots import CallSlot

__all__ = ("Calls",)


_NO_ANSWER = AsyncTimeoutError("no answer")  # what the gates are told of attempts that were given up


class Calls(FirstAttempts):
    """The calls of an operator: the beginning and the limits of each attempt.

    Args:
        may_edit: whether arguments may be lists or dicts, which an attempt could edit.
    """

    # An attempt may come back from its coroutine, its ResultFuture, its own limit or the row's deadline, more than one
    # of them at once. All end in `_outcome` or `_expire`; the first one counts, and later ones find `slot.call` taken
    # away or `call.done` set.

    def __init__(
        self, spec: FunctionSpec, options: Options, validate: Validate | None, may_edit: bool, *parts: Any
    ) -> None:
        super().__init__(spec, options, validate, *parts)
        # Whether the function, or a resource of it, can ask which row it works on, or its span which attempt it is of.
        asking = any(getattr(factory, "asks", False) for factory in spec.resources.values())
        self.asks = spec.has_context or options.spans or asking
        # An attempt gets copies of arguments that it could edit: there may be another. An AsyncFunction's is a dict.
        self._copies = may_edit or spec.takes_mapping

    def use(self, invoker: Invoker) -> Callable[..., Coroutine[Any, Any, Any]] | None:
        """The function is open; returned is what `run_fast_path` may call, if it may."""
        self._invoker = invoker
        if invoker.direct is None or not self._takes_any_result or self._hedges is not None:
            return None
        return with_own_arguments(invoker.direct) if self._copies else invoker.direct

    def open(self, records: Sequence[StreamRecord], entries: Sequence[Entry]) -> Call:
        """The call of rows that have just entered the queue; its deadline runs from the first attempt on."""
        return Call(records, entries, self._clock())

    def needs_call(self, record: Any, entry: Entry) -> bool:
        """Whether a row that has just entered the queue is to be called; if not, it is done or will be."""
        return True

    def has_to_call(self, element: StreamElement) -> bool:
        """Whether an element that has not yet entered the queue is a row that would be called there."""
        return isinstance(element, StreamRecord)

    takes_more = True  # whether another call should be formed

    def may_begin(self, call: Call) -> bool:
        """Whether a call that was just formed begins now; else it will be among those that are ready."""
        return True

    def invoke(self, slot: CallSlot, call: Call) -> Any:
        """The coroutine of the call's next attempt, for the slot to await."""
        if call.parked is not None:
            self._give_back(call)
            self.counts.begins_again(call)
        is_second = self._hedges is not None and bool(call.undecided)
        call.attempt += 1
        slot.attempt = call.attempt
        call.slots.append(slot)
        slot.call = call
        values = [record.value for record in call.records]
        now = self._clock()
        if call.is_fresh:
            self._begin(call, now)
        if self.asks:
            element = call.records[0] if len(values) == 1 else StreamRecord(tuple(values))
            state = slot.meet(element, call.attempt)
            state.started, state.deadline, state.is_batch = now, call.deadline, len(values) > 1
        if is_second:  # within the limit of the first
            call.uncounted += 1
            self.counts.hedged()
        else:
            self._attempts.start(call.watched, call, now)
            if self._hedges is not None:
                self._hedges.began(call)
        deliver = partial(self._delivered, slot, call, slot.attempt)
        return self._invoker.invoke(copied(values) if self._copies else values, deliver)

    def _begin(self, call: Call, now: float) -> None:
        """From now on the call takes its time, and its deadline runs."""
        call.started, call.idle, call.is_fresh = now, 0.0, False
        call.deadline = self._deadlines.start(call.watched, call, now)

    def next_ready(self) -> Call | None:
        """A call whose back-off is over."""
        while self.ready:
            call = self.ready.popleft()
            if self._is_over(call):
                self._expire(call)
            if not (call.done or call.is_held):
                return call
        return None if self._hedges is None else self._hedges.next()

    def _is_over(self, call: Call) -> bool:
        """Whether the deadline has come, though the loop may not have noticed it."""
        return call.deadline is not None and self._clock() + ROUNDING >= call.deadline

    def ended(self, slot: CallSlot, call: Call, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The coroutine of an attempt is over."""
        call.slots.remove(slot)
        slot.is_suspended = False
        if slot.call is call:
            slot.call = None
            if slot.admitted is not None or error is not None:
                self._tell_end(slot, error)
            if self._hedges is None or self._is_first_answer(self._hedges, call, error):
                self._outcome(call, results, error, slot.state.side)
        elif call.done and not call.slots:  # a ResultFuture had ended it: until now the deadline watched what ran on
            self._deadlines.stop(call.watched)

    def _delivered(
        self, slot: CallSlot, call: Call, attempt: int, results: Results | None, error: BaseException | None
    ) -> None:
        """A ResultFuture was completed: its attempt is decided, though the coroutine may run on."""
        if slot.call is call and slot.attempt == attempt and not slot.abandoned:  # not one of an earlier attempt
            slot.call = None
            if slot.admitted is not None or error is not None:
                self._tell_end(slot, error)
            if self._hedges is None or self._is_first_answer(self._hedges, call, error):
                self._outcome(call, None if results is None else [results], error, slot.state.side)
            self._hooks.runs_on()

    def _is_first_answer(self, hedges: Hedges, call: Call, error: BaseException | None) -> bool:
        """Whether it counts how an attempt has ended; then the other one, if there are two, is cancelled."""
        others = call.undecided
        if error is not None and others and not self._is_answer(error):  # what is left of the two may have one yet
            self.counts.error(error)
            return False
        hedges.ended(call)
        for slot in others:
            self._abandon(slot, NOT_NEEDED)
            call.slots.remove(slot)
        return True

    def _is_answer(self, error: BaseException) -> bool:
        """Whether a second call would end in the same way: the service has answered, with a 404 for example."""
        lasts = sign_of(error) is ServiceSign.ANSWERED and is_lasting(error, self._options.retry)
        return lasts or is_fatal(error)

    def close(self) -> None:
        """Watch no deadline any more."""
        self._deadlines.close()
        self._attempts.close()
        if self._hedges is not None:
            self._hedges.close()

    def _expire(self, call: Call) -> None:
        """The row's deadline has come: it is done, whatever still runs for it."""
        if call.parked is not None:
            self._give_back(call)
        if not (call.done or call.deadline is None or self._is_over(call)):  # it was given time back
            self._loop.call_later(call.deadline - self._clock(), self._expire_late, call)
            return
        self._abandon_slots(call)
        self._attempts.stop(call.watched)
        if not (call.done or call.is_held or self._waits_for_breaker(call)):
            self._time_out(call)
        self._admission.wake()  # it may be the one that waits there
        self._pool.wake()

    def _expire_late(self, call: Call) -> None:
        """The deadline may have come of a row that was given time back; it runs anew if the call does."""
        if not (call.done or call.deadline is None):
            self._due(self._expire, call)

    def _attempt_expired(self, call: Call) -> None:
        """The attempt's own limit has come: an outcome like an exception, which may be tried again."""
        if self._is_over(call):
            self._expire(call)
            return
        self._abandon_slots(call)
        self._attempts.stop(call.watched)
        self.counts.attempt_timed_out(call)
        limit = self._options.attempt_timeout
        self._outcome(call, None, AsyncTimeoutError(f"attempt {call.attempt} gave no result within {limit:g} s"))
        self._pool.wake()

    def _abandon_slots(self, call: Call) -> None:
        for slot in call.slots:
            self._abandon(slot, _NO_ANSWER)
        call.slots.clear()
        if self._hedges is not None:
            self._hedges.ended(call)

    def _abandon(self, slot: CallSlot, why: BaseException) -> None:
        self._pool.abandon(slot)
        self._tell_end(slot, why)

    def _outcome(
        self,
        call: Call,
        results: Sequence[Results] | None,
        error: BaseException | None,
        side: Sequence[SideRecord] = (),
    ) -> None:
        """An attempt has come back, in time or not: the row is done, or it is tried again."""
        # The clock decides, not the timer: where a call has blocked the loop, a late result may come before its timer.
        now = self._clock() - ROUNDING
        if call.deadline is not None and now > call.deadline:
            self._expire(call)  # the loop was too busy to notice it in time
            return
        if self._limits_attempts and now > (self._attempts.stop(call.watched) or now):
            self._attempt_expired(call)
            return
        if call.done:
            return
        outcomes, failure = self._answers.checked(results or (), side)
        if error is not None:
            outcomes, failure = [error] * len(call.records), error
        self._decide(call, results, outcomes, failure, now)
