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

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamRecord

from .._errors.exceptions import AsyncTimeoutError
from .._errors.http import Refusal
from .._errors.records import is_fatal
from .._functions.async_function import Results
from .._functions.context import RuntimeContext
from .._functions.side_outputs import SideRecord
from .._functions.signature import FunctionSpec
from .._limits.gates import NOT_NEEDED
from .._limits.limits import Limits
from .._metrics.counters import TaskCounters
from .._policies.call_outcome import CallOutcome, outcome_of
from .._policies.options import Options
from .._policies.retry import EndedAttempt, is_lasting
from .answers import Answers, Validate
from .call import Call, CallHooks
from .copies import copied, with_own_arguments
from .costs import Costs
from .counting import CallCounts
from .deadlines import ROUNDING, Deadlines
from .error_policy import ErrorPolicy
from .hedges import Hedges
from .invokers import Invoker
from .slots import CallSlot, SlotPool

__all__ = ("Calls",)


_NO_ANSWER = AsyncTimeoutError("no answer")  # what the gates are told of attempts that were given up


class Calls:
    """The calls of an operator, from the first attempt of each to its result.

    Args:
        may_edit: whether arguments may be lists or dicts, which an attempt could edit.
    """

    # A call that is not done is in one place: at work in a slot, at the gates of `Admission`, in back-off (a timer of
    # the loop), in `ready`, or held until it is known whether its service is dead.
    #
    # An attempt may come back from its coroutine, its ResultFuture, its own limit or the row's deadline, more than one
    # of them at once. All end in `_outcome` or `_expire`; the first one counts, and later ones find `slot.call` taken
    # away or `call.done` set.
    #
    # A row whose call gives way is no more than an entry, at first: its Call is made when somebody asks for it, by
    # `call_of`, which for most rows nobody does. `admitting` and `succeeding` each make a function that is called for
    # such a row, in which no attribute of an object that is always the same has to be looked up.
    #
    # Where somebody has to be asked whether a row may be called, `beginning` makes a third, which gives it its place
    # before that.

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        validate: Validate | None,
        may_edit: bool,
        context: RuntimeContext,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        pool: SlotPool,
        counters: TaskCounters,
        costs: Costs,
        limits: Limits,
        hooks: CallHooks,
    ) -> None:
        self._invoker: Invoker
        self._options = options
        self._policy = ErrorPolicy(options, spec.name, context.partition)
        self._rng = rng
        self._loop = loop
        self._clock = counters.clock
        self._pool = pool
        self._latencies = counters.latencies
        self._costs, self._failures = costs, limits.failures
        self._health, self._admission = limits.health, limits.admission
        self._answers = Answers(validate)
        self._hooks = hooks
        is_even = not (spec.many_results or spec.has_context or spec.vectorized)
        self.counts = CallCounts(counters, options.redact, self._begun, is_even=is_even)
        self.ready: deque[Call] = deque()  # whose back-off is over
        self._backing_off: set[Call] = set()
        self._was_broken = False
        self._hedges = None if options.hedge is None else Hedges(options.hedge, loop, pool.wake)
        self._takes_any_result = options.retry is None or not options.retry.checks_results
        self._validate = validate
        self._deadlines: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self._clock, options.timeout, partial(self._due, self._expire)
        )
        self._attempts: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self._clock, options.attempt_timeout, partial(self._due, self._attempt_expired)
        )
        self._limits_attempts = options.attempt_timeout is not None
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

    def price(self, call: Call) -> bool:
        """Give a call its costs; False if there are none to be told: then it has failed."""
        if call.costs is None:
            try:
                call.costs = self._costs.of(call)
            except BaseException as error:  # code of the user's
                self.counts.error(error)
                self._conclude(call, [error] * len(call.records))
                return False
        return True

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
        now = self._clock() if self._admission.is_open else self._admission.begin_nowait(slot)
        if now is None:
            self.ready.appendleft(self.open((entry.element,), (entry,)))  # type: ignore[arg-type]
        else:
            slot.entry = entry
        return now

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

    @property
    def has_ready(self) -> bool:
        """Whether there is a call to be made of a row that has one already."""
        return bool(self.ready) or (self._hedges is not None and self._hedges.has_call)

    @property
    def has_new(self) -> bool:
        """Whether the next of these was never made."""
        return bool(self.ready) and not self.ready[0].attempt

    def next_ready(self) -> Call | None:
        """A call whose back-off is over."""
        while self.ready:
            call = self.ready.popleft()
            if self._is_over(call):
                self._expire(call)
            if not (call.done or call.is_held):
                return call
        return None if self._hedges is None else self._hedges.next()

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
        lasts = outcome_of(error) is CallOutcome.ANSWERED and is_lasting(error, self._options.retry)
        return lasts or is_fatal(error)

    def _tell_end(self, slot: CallSlot, error: BaseException | None) -> None:
        """An attempt is over."""
        self._admission.ended(slot, error)
        if self._health.held is not None:
            self.settle()

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

    def _decide(
        self,
        call: Call,
        results: Sequence[Results] | None,
        outcomes: Sequence[Results | BaseException],
        failure: BaseException | None,
        now: float,
    ) -> None:
        """An attempt has come back in time: the row is done, or it is tried again.

        Args:
            results: as they came.
            outcomes: of each row, checked.
            failure: of them all, or the first of theirs.
        """
        if failure is None and self._takes_any_result:
            self._complete(call, outcomes, now)  # type: ignore[arg-type]
            return
        if failure is not None:
            self.counts.error(failure)
            refusal = self._health.refusal_of(failure)
            if refusal is not None and self._is_settled(call, outcomes, refusal):
                return
        try:
            delay = self._next_delay(call, failure, results)
        except BaseException as own:  # a predicate of the retry strategy failed
            outcomes, delay = [own] * len(call.records), None
        if delay is not None:
            call.waited += delay
            if self._health.is_broken:
                self._renew(call)
            self._back_off(call, delay)
        else:
            self._conclude(call, outcomes)

    def _is_settled(self, call: Call, outcomes: Sequence[Results | BaseException], refusal: Refusal) -> bool:
        """Whether it is clear what becomes of a refused call: it waits alone and uses no attempt, or it has failed."""
        if refusal.may_retry and self._options.throttle_counts:
            return False
        if not refusal.may_retry or _is_too_late(call, self._clock() + refusal.seconds):
            self._conclude(call, outcomes)
        else:
            call.uncounted += 1
            self.counts.throttled()
            self._back_off(call, refusal.seconds)
        return True

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        retry = self._options.retry
        if retry is None or (error is None and not retry.checks_results) or is_fatal(error):
            return None
        now, number = self._clock(), call.attempt - call.uncounted
        result = None if results is None else self._invoker.seen_by_retry(results)
        delay = retry.next_delay(EndedAttempt(number, now - call.started, call.waited, error, result), self._rng)
        # A row does not wait for an attempt that its deadline would cut off before it begins.
        return None if delay is None or _is_too_late(call, now + delay) else delay

    def _back_off(self, call: Call, seconds: float) -> None:
        self._park(call)
        self._backing_off.add(call)
        self._loop.call_later(seconds, self._retry, call)

    def _retry(self, call: Call) -> None:
        self._backing_off.discard(call)
        self.ready.append(call)
        self._pool.wake()

    def _park(self, call: Call) -> None:
        """No attempt of the call is under way."""
        self.counts.parks(call)
        call.pauses = self._health.throttle.paused_seconds(self._clock())

    def _give_back(self, call: Call) -> None:
        """Move the deadline of a call by the time that it has spent in a pause of all calls."""
        pauses = self._health.throttle.paused_seconds(self._clock())
        spent, call.pauses = pauses - call.pauses, pauses
        if call.deadline is not None:
            call.deadline += spent

    def _conclude(
        self,
        call: Call,
        outcomes: Sequence[Results | BaseException],
        cause: BaseException | None = None,
        *,
        may_hold: bool = True,
    ) -> None:
        """No attempt follows: errors go the way of `on_error`, row by row.

        Args:
            cause: why, where something stands in for the results.
            may_hold: the service may turn out to be to blame.
        """
        if may_hold and self._health.held is not None and self._health.held.hold(call, outcomes, cause):
            if not call.slots:
                self._deadlines.stop(call.watched)
            self._park(call)
            self._loop.call_soon(self.settle)
            return
        completed: list[Results] = []
        failed: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if self._policy.fails_task(outcome):
                    rows = [record.value for record in call.records]
                    self.counts.failed_task(call)
                    self._hooks.failed(self._policy.task_error(outcome, call.attempt, rows))
                    return
                result = self._policy.result(outcome, call.attempt, self._clock() - call.started)
                self.counts.failed(result)
                failed.append(outcome)
                completed.append((result,))
            else:
                completed.append(outcome)
        if self._failures is not None:
            self._failures.note(failed, len(call.records))
        self._complete(call, completed, self._clock())

    def _complete(self, call: Call, completed: Sequence[Results], now: float) -> None:
        call.done = True
        self._count(call, completed, now)
        if not call.slots:
            self._deadlines.stop(call.watched)
        for entry, results in zip(call.entries, completed, strict=True):
            entry.complete(results)
        self._hooks.finished()

    def _count(self, call: Call, completed: Sequence[Results], now: float) -> None:
        if not call.attempt:
            self.counts.uncalled(len(call.records), completed)
            return
        self.counts.ended(call, now)
        if self._hedges is not None:
            self._hedges.done(call)
        if not self.counts.is_even:
            self.counts.completed(call, completed)

    def _due(self, end: Callable[[Call], None], owner: Call | CallSlot) -> None:
        try:
            end(self.call_of(owner) if isinstance(owner, CallSlot) else owner)
        except BaseException as error:  # a timer's exception would only be logged
            self._hooks.failed(error)

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

    def _is_over(self, call: Call) -> bool:
        """Whether the deadline has come, though the loop may not have noticed it."""
        return call.deadline is not None and self._clock() + ROUNDING >= call.deadline

    def _waits_for_breaker(self, call: Call) -> bool:
        """Whether a call is late because the service is dead, and not at work; then it has all its time anew."""
        if not self._health.is_broken or (call.attempt and call.parked is None):
            return False
        self._renew(call)
        return True

    def _time_out(self, call: Call) -> None:
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        answers = [self._answers.late(self._invoker, call, record, error) for record in call.records]
        is_at_work = call.parked is None
        self.counts.timed_out(call, answers)
        # One that has waited for its turn tells nothing of the service, and is in another place.
        self._conclude(call, answers, error, may_hold=is_at_work)

    def _abandon_slots(self, call: Call) -> None:
        for slot in call.slots:
            self._abandon(slot, _NO_ANSWER)
        call.slots.clear()
        if self._hedges is not None:
            self._hedges.ended(call)

    def _abandon(self, slot: CallSlot, why: BaseException) -> None:
        self._pool.abandon(slot)
        self._tell_end(slot, why)

    def settle(self) -> None:
        """An attempt has ended, or the breaker has opened, or nothing more comes: held calls have failed, or not."""
        held = self._health.held
        if held is None:
            return
        for call in held.excused():
            self._begin_anew(call)
        self._fail_held(held.failed())
        if self._health.is_broken is not self._was_broken:
            self._was_broken = self._health.is_broken
            waiting = self._admission.waiting
            for call in [*self._backing_off, *self.ready, *([] if waiting is None else [waiting])]:
                if not (call.done or call.undecided):  # what it has waited for is that the service answers
                    self._renew(call)
        if self._pool.is_idle and not (self.ready or self._backing_off or self._hooks.has_rows()):
            self._fail_held(held.failed(is_last=True))

    def _fail_held(self, failed: Iterable[tuple[Call, Sequence[Results | BaseException]]]) -> None:
        for call, outcomes in failed:
            self.counts.unparks(call)
            self._conclude(call, outcomes, may_hold=False)

    def _begin_anew(self, call: Call) -> None:
        """The call is tried as if it had never been."""
        self._renew(call)
        self._retry(call)

    def _renew(self, call: Call) -> None:
        self._deadlines.stop(call.watched)
        call.uncounted, call.waited, call.deadline = call.attempt, 0.0, None
        call.is_fresh, call.is_held, call.is_excused = True, False, call.is_excused or call.attempt > 0

    def _begun(self) -> set[Call]:
        waiting = () if self._admission.waiting is None else (self._admission.waiting,)
        at_work = map(self.call_of, self._pool.at_work)
        return {*filter(None, at_work), *self._backing_off, *self.ready, *waiting, *(self._health.held or ())}

    def close(self) -> None:
        """Watch no deadline any more."""
        self._deadlines.close()
        self._attempts.close()
        if self._hedges is not None:
            self._hedges.close()


def _is_too_late(call: Call, when: float) -> bool:
    """Whether a call would be cut off by its deadline before it begins."""
    return call.deadline is not None and when >= call.deadline
