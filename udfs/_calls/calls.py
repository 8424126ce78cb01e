"""The calls of an operator: each from its first attempt to the results of its rows.

The order of wrapping, outermost first, with the code that does it:

    deadline(               start_deadline, _expire     covers all attempts and back-offs
      retry(                _decide, _back_off          a call in back-off holds no slot
        breaker( limits(    Admission                   one call waits, in the slot that has taken it
          slot(             SlotPool                    one slot, one attempt
            attempt_timeout(  invoke, _attempt_expired
              function)))))   Invoker.invoke
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamRecord

from .._errors.exceptions import AsyncTimeoutError
from .._errors.http import Refusal, used_up_quota
from .._errors.records import is_fatal, is_no_rows_fault
from .._errors.task_faults import is_of_another_loop
from .._functions.async_function import Results
from .._functions.side_outputs import SideRecord
from .._functions.signature import FunctionSpec
from .._limits.limits import Limits
from .._policies.options import Options
from .._policies.retry import EndedAttempt
from .call import Call, CallingOperator, RowSharing
from .invokers import Costs, Invoker, copied, with_own_arguments
from .outcomes import CallCounts, ErrorPolicy, ResultChecker, Validate
from .slots import CallSlot, SlotPool
from .timers import ROUNDING, Deadlines

__all__ = ("Calls",)


PAUSE = 0.01  # seconds
MOST_REFUSED = 3600.0  # seconds for which refusals keep a row that has no deadline
_NO_ANSWER = AsyncTimeoutError("no answer")  # reported to the gates for attempts that were given up


class Calls:
    """The calls of an operator, from the first attempt of each to its result.

    Args:
        may_edit: whether arguments may be lists or dicts, which an attempt could edit.

    Attributes:
        asks: whether the function can ask which row it works on.
        function: what the fast path calls; None if calls need more than that.
        limit: seconds that a call, or an attempt of it, may take.
        pause: seconds of calls that return at once, after which a slot yields to the event loop.
    """

    # A call that is not done is in one place: at work in a slot, at the gates of `Admission`, in back-off (a timer of
    # the loop), in `ready`, or held until it is known whether its service is dead.
    #
    # An attempt may end by its coroutine, its ResultFuture, its own limit or the row's deadline, or by several of them.
    # All end in `_outcome` or `_expire`; the first one counts, and later ones find `slot.call` taken away or
    # `call.done` set.
    #
    # The first attempt of a row on the fast path has no Call: the slot knows its entry, its start and its deadline, and
    # for most rows that is all. `call_of` makes the Call when it is needed. Three functions serve these attempts. Each
    # is made once, so that it looks up no attribute of an object that is always the same: `beginning` (only where a
    # limit or a store decides whether an attempt begins), `admitting` (the row enters the queue), `succeeding`.

    def __init__(
        self,
        operator: CallingOperator,
        spec: FunctionSpec,
        options: Options,
        pool: SlotPool,
        limits: Limits,
        costs: Costs,
        *,
        validate: Validate | None,
        may_edit: bool,
        partition: int,
        rng: random.Random,
    ) -> None:
        counters = operator.counters
        self._operator = operator
        self._options = options
        self.pool = pool
        self._costs, self._failures = costs, limits.failures
        self._health, self.admission = limits.health, limits.admission
        self._rng = rng
        self._loop = operator.loop
        self.clock = counters.clock
        self._latencies = counters.latencies
        self.validate = validate
        self._checker = ResultChecker(validate)
        self._policy = ErrorPolicy(options, spec.name, partition)
        self.counts = CallCounts(counters, options.redact)
        self.function: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._invoker: Invoker
        self._sharing = RowSharing()
        self.ready: deque[Call] = deque()  # calls whose next attempt may begin
        self._backing_off: set[Call] = set()
        self._was_broken = False  # when `evaluate_held` last looked at the breaker
        self._takes_any_result = options.retry is None or not options.retry.checks_results
        self._deadlines: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self.clock, options.timeout, partial(self._due, self._expire)
        )
        self._attempts: Deadlines[Call | CallSlot] = Deadlines(
            self._loop, self.clock, options.attempt_timeout, partial(self._due, self._attempt_expired)
        )
        self._limits_attempts = options.attempt_timeout is not None
        limits_of_calls = [limit for limit in (options.timeout, options.attempt_timeout) if limit is not None]
        self.limit = min(limits_of_calls, default=math.inf)
        self.pause = min(PAUSE, self.limit)  # or deadlines would be seen too late
        # The function, or a resource of it, may ask for its row.
        asking = any(getattr(factory, "asks", False) for factory in spec.resources.values())
        self.asks = spec.has_context or asking
        # An attempt gets copies of arguments that it could edit, as another attempt may follow: lists and dicts, and
        # the dict that is the argument of each AsyncFunction.
        self._copies = may_edit or spec.takes_mapping

    def share(self, sharing: RowSharing) -> None:
        """Share calls between rows as this says, from now on."""
        self._sharing = sharing

    def use(self, invoker: Invoker) -> None:
        """The function is open: attempts call it by this."""
        self._invoker = invoker
        if invoker.direct is not None and self._takes_any_result:
            self.function = with_own_arguments(invoker.direct) if self._copies else invoker.direct

    def open(self, records: Sequence[StreamRecord], entries: Sequence[Entry]) -> Call:
        """The call of rows that have just entered the queue; its deadline runs from the first attempt on."""
        return Call(records, entries, self.clock())

    def open_row(self, entry: Entry) -> Call:
        """The call of one row that has just entered the queue."""
        return self.open((entry.element,), (entry,))  # type: ignore[arg-type]

    def begin(self, slot: CallSlot, call: Call) -> bool:
        """Begin an attempt of a call, if the limits allow it now; if not, the call is the next of the ready calls."""
        if self.admission.is_open:
            return True
        if call.costs is None:
            try:
                call.costs = self._costs.of(call)
            except BaseException as error:  # code of the user's
                self.counts.error(error)
                self.conclude(call, [error] * len(call.records))
                return False
        if self.admission.try_begin(slot, call) is None:
            self.ready.appendleft(call)
            return False
        return True

    def beginning(self, put_record: Callable[[Any], Entry]) -> Callable[[CallSlot, Any], float | None] | None:
        """Makes a function that puts a row into the queue and begins its first attempt.

        The function returns when the attempt began, or None if it does not begin now.

        Returns:
            None if no limit and no store decides about first attempts: then a row enters the queue when it suspends.
        """
        if self.admission.is_open and not self._sharing.keeps_results:
            return None
        return self._sharing.beginning(put_record, self._start)

    def begin_formed(self, call: Call, slot: CallSlot, row: Any) -> float | None:
        """Begin the first attempt of a call that was formed before; returns when it began, or None as above."""
        if (now := self._start(slot, call.entries[0])) is not None:
            self._sharing.begins(call, now)
        return now

    def _start(self, slot: CallSlot, entry: Entry) -> float | None:
        """Begin the first attempt of a row, if the limits allow it; if not, its call is the next of the ready calls."""
        admission = self.admission
        now = self.clock() if admission.is_open else admission.try_begin(slot, admission.first_call)
        if now is None:
            self.ready.appendleft(self.open_row(entry))
        else:
            slot.entry = entry
        return now

    def admitting(
        self, put_record: Callable[[Any], Entry], done: Sequence[Any], flush: Callable[[], None]
    ) -> Callable[[CallSlot], None]:
        """Makes a function that puts the row of the first attempt in a slot into the queue, and starts its deadline.

        Args:
            done: rows that were done at once before this row; `flush` gives them their places first.
        """
        # The deadline runs from when the attempt began: whether a row was put before or after that makes no difference.
        release = self.pool.release
        timeout, deadlines, watched = self._options.timeout, self._deadlines, self._deadlines.line
        attempts = self._attempts if self._limits_attempts else None

        def admit(slot: CallSlot) -> None:
            if done:
                flush()
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
                release(slot)

        return admit

    def succeeding(self, complete: Callable[[Entry, Any], object]) -> Callable[[CallSlot, Any], float]:
        """Makes a function that takes the result of a first attempt whose row is in the queue, and returns the time.

        Args:
            complete: gives a row its result, and emits what may leave.
        """
        # It returns the time at its end, when the next call may begin: operators further down take no time of a call.
        clock, validate, watched, latencies = self.clock, self.validate, self._deadlines.line, self._latencies
        complete, end_with_call = self._sharing.completing(complete), self._end_with_call

        def succeeded(slot: CallSlot, result: Any) -> float:
            entry, state = slot.entry, slot.state
            now, deadline = clock(), state.deadline
            if entry is None or state.side or (deadline is not None and now - ROUNDING > deadline):
                return end_with_call(slot, result)
            try:
                value = result if validate is None else validate(result)
            except BaseException:  # a type mismatch: checked again where errors are counted
                return end_with_call(slot, result)
            slot.entry = None
            slot.is_suspended = False
            latencies.append(now - state.started)
            if deadline is not None:
                del watched[entry]
            try:
                complete(entry, value)
            except BaseException as error:  # the output's; raised here, a StopIteration would become a RuntimeError
                self._operator.fail(error)
            return clock()

        return succeeded if self.admission.is_open and not self._limits_attempts else self._limited(succeeded)

    def _limited(self, succeeded: Callable[[CallSlot, Any], float]) -> Callable[[CallSlot, Any], float]:
        """The same for attempts that have a time limit of their own, or that limits decide about."""
        clock, attempts, report_end = self.clock, self._attempts.line, self._report_end

        def ended_and_succeeded(slot: CallSlot, result: Any) -> float:
            entry = slot.entry
            if entry is not None and (limit := attempts.get(entry)) is not None:
                if clock() - ROUNDING > limit[0]:
                    return self._end_with_call(slot, result)
                del attempts[entry]
            report_end(slot, None)
            return succeeded(slot, result)

        return ended_and_succeeded

    def _end_with_call(self, slot: CallSlot, result: Any) -> float:
        """End a first attempt as all other attempts end: its result is not all that there is to it."""
        if not slot.abandoned:
            self.ended(slot, self.call_of(slot), [(result,)], None)
        return self.clock()

    def call_of(self, slot: CallSlot) -> Any:
        """The call whose attempt in the slot has not ended, if there is one; for a first attempt it is made now."""
        entry, state = slot.entry, slot.state
        if entry is None:
            return slot.call
        call = self.open_row(entry)
        call.started, call.deadline, call.is_fresh = state.started, state.deadline, False
        call.attempt = slot.attempt = 1
        slot.began = state.started
        call.slots.append(slot)
        slot.call, slot.entry = call, None
        self._deadlines.reassign(entry, call)
        self._attempts.reassign(entry, call)
        return call

    @property
    def backing_off(self) -> int:
        """How many calls are in back-off."""
        return len(self._backing_off)

    @property
    def has_ready(self) -> bool:
        """Whether there is a call whose next attempt may begin."""
        return bool(self.ready)

    @property
    def has_new(self) -> bool:
        """Whether the next ready call had no attempt yet."""
        return bool(self.ready) and not self.ready[0].attempt

    def next_ready(self, *, only_first: bool = False) -> Call | None:
        """The next call whose attempt may begin; with `only_first` None if that is no first attempt of one row."""
        while self.ready and (self.ready[0].is_first or not only_first):
            call = self.ready.popleft()
            if self._is_over(call):
                self._expire(call)
            if not (call.done or call.is_held or call.is_at_work):  # it may be twice among them
                if not call.attempt:
                    call.started = self.clock()  # its first attempt begins now, though its deadline may run already
                return call
        return None

    def invoke(self, slot: CallSlot, call: Call) -> Any:
        """The coroutine of the call's next attempt, for the slot to await."""
        if call.parked is not None:
            self._give_back(call)
            self.counts.begins_again(call)
        call.attempt += 1
        slot.attempt = call.attempt
        call.slots.append(slot)
        slot.call = call
        values = [record.value for record in call.records]
        now = slot.began = self.clock()
        if call.is_fresh or call.attempt == 1:
            self._sharing.begins(call, now)
        if call.is_fresh:
            self.start_deadline(call, now)
        if self.asks:
            element = call.records[0] if len(values) == 1 else StreamRecord(tuple(values))
            state = slot.begin_attempt(element, call.attempt)
            state.started, state.deadline, state.is_batch = now, call.deadline, len(values) > 1
        self._attempts.start(call.watched, call, now)
        deliver = partial(self._delivered, slot, call, slot.attempt)
        return self._invoker.invoke(copied(values) if self._copies else values, deliver)

    def start_deadline(self, call: Call, now: float) -> None:
        """Start the time and the deadline of a call."""
        call.started, call.idle, call.is_fresh = now, 0.0, False
        call.deadline = self._deadlines.start(call.watched, call, now)

    def _delivered(
        self, slot: CallSlot, call: Call, attempt: int, results: Results | None, error: BaseException | None
    ) -> None:
        """A ResultFuture was completed: its attempt is decided, though the coroutine may run on."""
        if slot.call is call and slot.attempt == attempt and not slot.abandoned:  # not a future of an earlier attempt
            slot.call = None
            if slot.admitted is not None or error is not None:
                self._report_end(slot, error)
            self._outcome(call, None if results is None else [results], error, slot.state.side)
            self._operator.admit_without_slot()

    def ended(self, slot: CallSlot, call: Call, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The coroutine of an attempt is over."""
        call.slots.remove(slot)
        slot.is_suspended = False
        if slot.call is call:
            slot.call = None
            if slot.admitted is not None or error is not None:
                self._report_end(slot, error)
            self._outcome(call, results, error, slot.state.side)
        elif call.done and not call.slots:  # by a ResultFuture; the deadline was for its coroutine
            self._deadlines.stop(call.watched)

    def _report_end(self, slot: CallSlot, error: BaseException | None) -> None:
        """Report the end of an attempt to the limits."""
        self.admission.ended(slot, error)
        if self._health.held is not None:
            self.evaluate_held()

    def _outcome(
        self,
        call: Call,
        results: Sequence[Results] | None,
        error: BaseException | None,
        side: Sequence[SideRecord] = (),
    ) -> None:
        """An attempt has ended, in time or not."""
        # The clock decides, not the timer: after a call has blocked the loop, a late result may come before its timer.
        now = self.clock() - ROUNDING
        if call.deadline is not None and now > call.deadline:
            self._expire(call)  # the loop was too busy to notice it in time
            return
        if self._limits_attempts and now > (self._attempts.stop(call.watched) or now):
            self._attempt_expired(call)
            return
        if call.done:
            return
        if error is None:
            self._decide(call, results, *self._checker.checked(results or (), side), now)
        else:
            self._decide(call, results, [error] * len(call.records), error, now)

    def _decide(
        self,
        call: Call,
        results: Sequence[Results] | None,
        outcomes: Sequence[Results | BaseException],
        failure: BaseException | None,
        now: float,
    ) -> None:
        """An attempt has ended in time: the rows are done, or the call is tried again.

        Args:
            results: as the function gave them.
            outcomes: of each row, checked.
            failure: the error of the call, or of its first row that has one.
        """
        if failure is None and self._takes_any_result:
            self._complete(call, outcomes, outcomes, now)  # type: ignore[arg-type]
            return
        if failure is not None:
            self.counts.error(failure)
            if (code := used_up_quota(failure)) is not None:
                self.conclude(call, [self._policy.used_up(failure, code)] * len(call.records))
                return
            refusal = self._health.refusal_of(failure)
            if refusal is not None:
                self._take_refusal(call, outcomes, refusal)
                return
        else:
            self.admission.unsatisfied(now)
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
            self.conclude(call, outcomes)

    def _take_refusal(self, call: Call, outcomes: Sequence[Results | BaseException], refusal: Refusal) -> None:
        """Let a refused call wait alone, without using an attempt, or fail."""
        now = self.clock()
        if call.refused is None:
            call.refused = now
        end = call.refused + MOST_REFUSED if call.deadline is None else call.deadline
        if not refusal.may_retry or now + refusal.seconds >= end:
            self.conclude(call, outcomes)
        else:
            call.uncounted += 1
            self.counts.throttled()
            self._back_off(call, refusal.seconds)

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        """Seconds until the next attempt; None if no attempt follows."""
        retry = self._options.retry
        if retry is None or (
            not retry.checks_results if error is None else is_fatal(error) or is_of_another_loop(error)
        ):
            return None
        now, number = self.clock(), call.attempt - call.uncounted
        result = None if results is None else self._invoker.seen_by_retry(results)
        attempt = EndedAttempt(number, now - call.started, call.waited, error, result)
        delay = retry.next_delay(attempt, self._rng)
        if delay is not None and not _is_too_late(call, now + delay):
            return delay
        # An attempt that could not begin before the deadline is not waited for.
        if error is None and self._sharing.keeps_results and retry.asks_again(attempt):
            self._sharing.leaves(call)  # the result stands for this row, and is not kept
        return None

    def _back_off(self, call: Call, seconds: float) -> None:
        self._park(call)
        self._backing_off.add(call)
        self._operator.waiting_has_changed()
        self._loop.call_later(seconds, self._retry, call)

    def _retry(self, call: Call) -> None:
        self._backing_off.discard(call)
        self._operator.waiting_has_changed()
        self.ready.append(call)
        self.pool.wake()

    def _park(self, call: Call) -> None:
        """No attempt of the call is under way."""
        self.counts.parks(call)
        call.pauses = self._health.throttle.paused_seconds(self.clock())

    def stop_deadline(self, entry: Entry) -> None:
        """Stop the deadline of the call with this first entry."""
        self._deadlines.stop(entry)

    def _give_back(self, call: Call) -> None:
        """Move the deadline of a call by the time that it has spent in pauses of all calls."""
        pauses = self._health.throttle.paused_seconds(self.clock())
        spent, call.pauses = pauses - call.pauses, pauses
        if call.deadline is not None:
            call.deadline += spent

    def conclude(
        self,
        call: Call,
        outcomes: Sequence[Results | BaseException],
        cause: BaseException | None = None,
        *,
        may_hold: bool = True,
    ) -> None:
        """No attempt follows: errors become results as `on_error` says, row by row.

        Args:
            cause: the error of a call whose outcomes were made by `on_timeout`.
            may_hold: whether the call may be held until it is known whether its service is dead.
        """
        if may_hold and self._health.held is not None and self._health.held.hold(call, outcomes, cause):
            if not call.slots:
                self._deadlines.stop(call.watched)
            self._park(call)
            self._loop.call_soon(self.evaluate_held)
            return
        completed: list[Results] = []
        failed: list[BaseException] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if self._policy.fails_task(outcome):
                    rows = [record.value for record in call.records]
                    self.counts.failed_task(call)
                    self.counts.ends_task(outcome, None if is_no_rows_fault(outcome) else "on_error")
                    self._operator.fail(self._policy.task_error(outcome, call.attempt, rows))
                    return
                result = self._policy.result(outcome, call.attempt, self.clock() - call.started)
                self.counts.failed(result)
                failed.append(outcome)
                completed.append((result,))
            else:
                completed.append(outcome)
        if failed and call.attempt:
            self.counts.call_failed()
        if self._failures is not None:
            self._failures.note(failed, len(call.records))
        self._complete(call, completed, outcomes, self.clock())

    def _complete(
        self, call: Call, completed: Sequence[Results], outcomes: Sequence[Results | BaseException], now: float
    ) -> None:
        """The rows of the call have their results. Every call that has a `Call` ends here."""
        call.done = True
        if not call.attempt:
            self.counts.uncalled(completed)
        else:
            self.counts.ended(call, completed, now)
        if not call.slots:
            self._deadlines.stop(call.watched)
        self._sharing.complete(call, completed, outcomes)
        self._operator.push()

    def _due(self, end: Callable[[Call], None], owner: Call | CallSlot) -> None:
        try:
            end(self.call_of(owner) if isinstance(owner, CallSlot) else owner)
        except BaseException as error:  # a timer's exception would only be logged
            self._operator.fail(error)

    def _expire(self, call: Call) -> None:
        """The deadline of a call has come: its rows are done, whatever still runs for them."""
        if call.parked is not None:
            self._give_back(call)
        if not (call.done or call.deadline is None or self._is_over(call)):  # the deadline was moved
            self._loop.call_later(call.deadline - self.clock(), self._expire_late, call)
            return
        self._abandon_slots(call)
        self._attempts.stop(call.watched)
        if not (call.done or call.is_held or self._waits_for_breaker(call)):
            self._time_out(call)
        self.admission.wake()  # it may have been the next, and the one behind it may cost less
        self.pool.wake()

    def _expire_late(self, call: Call) -> None:
        """A deadline that was moved may have come; if the call began anew another one runs."""
        if not (call.done or call.deadline is None):
            self._due(self._expire, call)

    def _attempt_expired(self, call: Call) -> None:
        """The limit of an attempt has come: this is an outcome like an exception, and may be retried."""
        if self._is_over(call):
            self._expire(call)
            return
        self._abandon_slots(call)
        self._attempts.stop(call.watched)
        self.counts.attempt_timed_out(call)
        limit = self._options.attempt_timeout
        self._outcome(call, None, AsyncTimeoutError(f"attempt {call.attempt} gave no result within {limit:g} s"))
        self.pool.wake()

    def _is_over(self, call: Call) -> bool:
        """Whether the deadline has come, though its timer may not have fired."""
        return call.deadline is not None and self.clock() + ROUNDING >= call.deadline

    def _waits_for_breaker(self, call: Call) -> bool:
        """Let all time of a call begin anew if it is late because its service is dead; returns whether that is so."""
        if not self._health.is_broken or (call.attempt and call.parked is None):
            return False
        self._renew(call)
        return True

    def _time_out(self, call: Call) -> None:
        self._sharing.leaves(call)  # the answer of `on_timeout` is for this row alone
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        answers = [self._checker.late(self._invoker, call, record, error) for record in call.records]
        is_at_work = call.parked is None
        self.counts.timed_out(call, answers)
        # A call that waits for its turn says nothing about the service.
        self.conclude(call, answers, error, may_hold=is_at_work)

    def _abandon_slots(self, call: Call) -> None:
        for slot in call.slots:
            self.pool.abandon(slot)
            self._report_end(slot, _NO_ANSWER)
        call.slots.clear()

    def evaluate_held(self) -> None:
        """Decide about held calls: an attempt has ended, the breaker has opened or closed, or nothing more comes."""
        held = self._health.held
        if held is None:
            return
        for call in held.excused():  # they are tried as if they had had no attempt
            self._renew(call)
            self._retry(call)
        self._fail_held(held.failed())
        if self._health.is_broken is not self._was_broken:
            self._was_broken = self._health.is_broken
            for call in [*self._backing_off, *self.ready]:
                if not (call.done or call.is_at_work):  # it has waited for the service to come back
                    self._renew(call)
        if self.pool.is_idle and not (self.ready or self._backing_off or self._operator.has_rows()):
            self._fail_held(held.failed(is_last=True))

    def _fail_held(self, failed: Iterable[tuple[Call, Sequence[Results | BaseException]]]) -> None:
        for call, outcomes in failed:
            self.counts.unparks(call)
            self.conclude(call, outcomes, may_hold=False)

    def _renew(self, call: Call) -> None:
        """Let all time of the call, and of the calls that share it, begin anew with its next attempt."""
        for one in (call, *self._sharing.renewed(call)):
            self._deadlines.stop(one.watched)
            one.uncounted, one.waited, one.deadline, one.refused = one.attempt, 0.0, None, None
            one.is_fresh, one.is_held, one.is_excused = True, False, one.is_excused or one.attempt > 0

    def count_open(self) -> None:
        """Bring up to date how long the open calls have taken."""
        # A first attempt gets no Call for this: each row takes its way whether or not it is looked at.
        first_attempts = [slot.state.started for slot in self.pool.at_work if slot.entry is not None]
        self.counts.count_open(self._open_calls(), first_attempts)

    def abandon(self) -> None:
        """The operator ends, and its open calls are given up."""
        for slot in self.pool.at_work:
            self.call_of(slot)
        self.counts.abandon(self._open_calls())

    def _open_calls(self) -> list[Call]:
        """The calls that are not done, but for first attempts that have no Call."""
        at_work = (slot.call for slot in self.pool.at_work if slot.call is not None)
        known = {*at_work, *self._backing_off, *self.ready, *(self._health.held or ())}
        return [call for call in known if not call.done]

    def close(self) -> None:
        """Stop all timers."""
        self._deadlines.close()
        self._attempts.close()


def _is_too_late(call: Call, when: float) -> bool:
    """Whether the deadline of a call comes before an attempt that begins then."""
    return call.deadline is not None and when >= call.deadline
