"""The calls of an operator: each from its first attempt to the results of its rows.

The order of wrapping, outermost first, with the code that does it:

    deadline(               start_deadline, _expire     covers all attempts and back-offs
      retry(                _decide, _back_off          a call in back-off holds no slot
        breaker( limits(    Service                     a call that may not begin is the next of those that are ready
          slot(             SlotPool                    one slot, one attempt
            attempt_timeout(  attempt, _attempt_expired
              function)))))   Invoker.invoke
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from .._errors.exceptions import AsyncTimeoutError, BudgetSpentError, ResultError
from .._errors.http import Refusal
from .._errors.task_faults import OF_LOOPS
from .._errors.traces import forget_frames
from .._functions.async_function import Results
from .._functions.signature import FunctionSpec
from .._policies.failure import Failure
from .._policies.options import Options
from .._policies.retry import EndedAttempt
from .._policies.side_outputs import SideRecord
from .deadlines import ROUNDING, Deadlines
from .invokers import BatchBounds, Costs, Invoker, copied, with_own_arguments
from .outcomes import CallCounts, ErrorPolicy, Outcome, ResultChecker, Validate, usual_error
from .row import NO_TROUBLE, Batch, Call, JointAttempt, Row, RowSharing, element_of
from .service import Service
from .slots import CallingOperator, CallSlot, SlotPool

LONGEST_PAUSE = 0.01  # seconds
GATHERED_FOR = 1.0  # seconds for which rows to be called again wait for others, where a rate limit makes calls precious
TIMERS_EARLY = 0.002  # seconds, at most: uvloop counts whole milliseconds
MOST_REFUSED = 3600.0  # seconds for which refusals keep a row that has no deadline
_NO_ANSWER = Failure(AsyncTimeoutError("no answer"))  # reported to the gates for attempts that were given up


class Calls:
    """The calls of an operator, from the first attempt of each to its result.

    Args:
        may_edit: whether arguments may be lists or dicts, which an attempt could edit.

    Attributes:
        asks: whether the function can ask which row it works on.
        function: what is called for a row, if the function takes one row and returns one result; else None.
        looks_at_results: whether the retry strategy does.
        limit: seconds that a call, or an attempt of it, may take.
        pause: seconds of calls that return at once, after which a slot yields to the event loop.
    """

    # A call that is not over, and that was not left to the sharing of rows, is at work in a slot, in back-off (a timer
    # of the loop), in `ready`, or held until it is known whether its service is dead. One in `ready` may be there
    # twice, or held meanwhile, if an outage has renewed it: `next_ready` looks.
    #
    # An attempt may end by its coroutine, its ResultFuture, its own limit or the row's deadline, or by several of them.
    # The first counts: each of `returned`, `_end` and `_abandon_slots` takes the call away from its slot, so that later
    # ones find none.
    #
    # A `Batch` is one call until its rows end differently. Then it is over, and each of its rows that is not done is a
    # call: it backs off alone, and is called again in a `JointAttempt` with others that are ready.

    def __init__(
        self,
        operator: CallingOperator,
        spec: FunctionSpec,
        options: Options,
        pool: SlotPool,
        service: Service,
        costs: Costs,
        bounds: BatchBounds,
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
        self._costs = costs
        self._bounds = bounds
        self.service = service
        self._rng = rng
        self._loop = operator.loop
        self.clock = counters.clock
        self._latencies = counters.latencies
        self.validate = validate
        self._checker = ResultChecker(validate)
        self._policy = ErrorPolicy(options, spec.name, partition)
        self.counts = CallCounts(counters, redacted=options.redacted)
        self.function: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._invoker: Invoker
        self._sharing: RowSharing | None = None
        self.ready: deque[Call] = deque()  # calls whose next attempt may begin
        self._backing_off: set[Call] = set()
        self._ends_with: BaseException | None = None  # the task, which shows it
        self._was_broken = False  # when `evaluate_held` last looked at the breaker
        self.looks_at_results = options.retry is not None and options.retry.checks_results
        self.deadlines = Deadlines(self._loop, self.clock, options.timeout, partial(self._due, self._expire))
        self.attempt_deadlines = Deadlines(
            self._loop, self.clock, options.attempt_timeout, partial(self._due, self._attempt_expired)
        )
        self._limits_attempts = options.attempt_timeout is not None
        limits_of_calls = [limit for limit in (options.timeout, options.attempt_timeout) if limit is not None]
        self.limit = min(limits_of_calls, default=math.inf)
        self.pause = min(LONGEST_PAUSE, self.limit)  # or deadlines would be seen too late
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
        if invoker.direct is not None:
            self.function = with_own_arguments(invoker.direct) if self._copies else invoker.direct

    # A call begins.

    @property
    def backing_off(self) -> int:
        """How many calls are in back-off."""
        return len(self._backing_off)

    @property
    def has_new(self) -> bool:
        """Whether the next ready call had no attempt yet."""
        return bool(self.ready) and not self.ready[0].attempt

    def next_ready(self) -> Call | None:
        """The next call whose attempt may begin."""
        while self.ready:
            call = self.ready.popleft()
            if type(call) is JointAttempt:
                if call.keep([row for row in call.rows if self._may_go_on(row)]):
                    return call
            elif self._may_go_on(call):
                return self._joint(call) if type(call) is Row and call.attempt and self._bounds.is_many else call
        return None

    def waits_for_more(self) -> bool:
        """Whether the rows to be called again are few, and should wait a little for others: each call costs permits."""
        if not (self._bounds.is_many and self.service.has_rate_limit):
            return False
        first = self.ready[0]
        if type(first) is not Row or not first.attempt or len(self.ready) >= self._bounds.size:
            return False
        end = first.trouble.ready + GATHERED_FOR - TIMERS_EARLY
        return self.clock() < end and not _is_too_late(first, end)

    def _may_go_on(self, call: Call) -> bool:
        """Whether a ready call still needs an attempt."""
        if self._is_late(call):
            self._expire(call)
        return not (call.is_over or call.trouble.is_held or call.slot is not None)  # it may be twice among them

    def _joint(self, row: Row) -> JointAttempt | None:
        """An attempt of this row and of those behind it that are to be called again, as many as one call takes."""
        rows, ready, bounds = [row], self.ready, self._bounds
        weight = self.weight_of(row)
        while weight is not None and ready and len(rows) < bounds.size:
            other = ready[0]
            if type(other) is not Row or not other.attempt:
                break
            if not self._may_go_on(ready.popleft()) or (more := self.weight_of(other)) is None:
                continue
            if (weight := weight + more) > bounds.most_weight:
                ready.appendleft(other)
                break
            rows.append(other)
        return self.next_ready() if weight is None else JointAttempt(rows)  # type: ignore[return-value]

    def weight_of(self, row: Row) -> float | None:
        """What a row weighs in its batch; a row of which that cannot be told has failed."""
        if not self._bounds.weighs:
            return 0.0
        try:
            return self._bounds.weight_of(row.record[0])
        except BaseException as error:  # code of the user's
            self._not_called(row, error)
            return None

    def _not_called(self, call: Call, error: BaseException) -> None:
        """Code of the user's that a call needs before it begins has failed, and so have its rows."""
        failure = Failure(error)
        self.counts.failure(failure)
        self.conclude(call, [failure] * len(call.rows))

    def begin(self, slot: CallSlot, call: Call) -> bool:
        """Begin an attempt of a call, if the limits allow it now; if not, the call is the next of the ready calls.

        A call whose costs cannot be told has failed.
        """
        if self.service.is_free:
            slot.began = self.clock()
            return True
        if self._costs.of_each is None and call.trouble.costs is None:
            try:
                call.own_trouble().costs = self._costs.of(call.values)
            except BaseException as error:  # code of the user's
                self._not_called(call, error)
                return False
        may_begin = False
        try:
            may_begin = self.service.try_begin(slot, call)
        except BudgetSpentError as error:
            self.conclude(call, [Failure(error)] * len(call.rows))
            return False
        except BaseException:
            self.ready.appendleft(call)
            raise
        if not may_begin:
            self.ready.appendleft(call)
        return may_begin

    def attempt(self, slot: CallSlot, call: Call) -> Awaitable[Any]:
        """The next attempt of a call, which has begun in this slot, for the slot to await."""
        now = slot.began
        if call.trouble.parked is not None:
            self._give_back(call)
            self.counts.begins_again(call)
        call.attempt = number = call.attempt + 1
        slot.call, call.slot = call, slot
        if type(call) is JointAttempt:
            self._begin_jointly(call, slot, now)
        elif (is_fresh := call.is_fresh) or number == 1:
            if is_fresh:
                self.start_deadline(call, now)
            else:  # its deadline runs already
                self._give_back(call)
                call.started = now
            if self._sharing is not None:
                self._sharing.begins(call, now)
        if self.asks:
            state = slot.begin_attempt(element_of(call), number)
            state.started, state.deadline, state.is_batch = now, call.earliest_deadline(), len(call.rows) > 1
            state.last_error = next((e for p in call.parts if (e := p.trouble.last_error) is not None), None)
        if self._limits_attempts:
            self.attempt_deadlines.start(call, now)
        if self.function is not None:
            return self.function(*call.record[0])  # type: ignore[attr-defined]
        values = call.values
        deliver = partial(self._delivered, slot, call, number)
        return self._invoker.invoke(copied(values) if self._copies else values, deliver)

    def _begin_jointly(self, call: JointAttempt, slot: CallSlot, now: float) -> None:
        """An attempt of several calls begins: of each row, and no new call."""
        self.counts.begins_jointly()
        call.began = now
        for row in call.rows:
            self._give_back(row)
            self.counts.unparks(row)
            self.counts.begins_for(row)
            row.attempt += 1
            row.slot = slot
            if row.is_fresh:  # an outage has excused it
                self.start_deadline(row, now)
                if self._sharing is not None:
                    self._sharing.begins(row, now)

    def follow(self, call: Call, now: float) -> None:
        """Start the deadline of a call that shares the call of another one."""
        self.start_deadline(call, now)
        call.own_trouble().pauses = self.service.paused_seconds()

    def start_deadline(self, call: Call, now: float) -> None:
        """Start the time and the deadline of a call."""
        call.started, call.is_fresh = now, False
        if call.trouble is not NO_TROUBLE:
            call.trouble.idle = 0.0
        if (timeout := self._options.timeout) is not None:  # as `Deadlines.start`, once for each call
            deadlines = self.deadlines
            deadlines.line[call] = call.deadline = now + timeout
            if deadlines.timer is None:
                deadlines.watch_for(now + timeout)

    # Its attempt ends.

    def returning(self, complete: Callable[[Row, Any], object]) -> Callable[[CallSlot, Row, Any], None]:
        """Makes a function that takes what the coroutine of a function of one row and one result has returned.

        Args:
            complete: gives a row the only result of its first attempt, and emits what may leave.
        """
        # Most attempts end here: the first of their rows, in time, and their result is all that there is to it. What
        # never changes is looked up once.
        clock, validate, latencies, service, asks = self.clock, self.validate, self._latencies, self.service, self.asks
        watched, attempts, looks_at_results = self.deadlines.line, self.attempt_deadlines.line, self.looks_at_results

        def returned(slot: CallSlot, row: Row, result: Any) -> None:
            now, deadline = clock(), row.deadline
            if (
                row.trouble is not NO_TROUBLE
                or (deadline is not None and now - ROUNDING > deadline)
                or (attempts and now - ROUNDING > attempts.get(row, now))
                or (asks and (slot.state.side or slot.state.spent))
                or looks_at_results
            ):
                self.coroutine_ended(slot, row, [(result,)], None)
                return
            try:
                value = result if validate is None else validate(result)
            except BaseException as error:  # to check it again would run code of the user's again
                if slot.costs is not None:  # it has its price, though it does not fit
                    service.spending.settle(slot, row, (result,), None, is_cut=False)
                self.coroutine_ended(slot, row, None, error)
                return
            slot.call = row.slot = None
            row.is_over = True
            if slot.costs is not None:
                service.spending.settle(slot, row, (result,), None, is_cut=False)
            if slot.has_asked:
                service.ended(slot, None, now)
                if service.held_failures is not None:
                    self.evaluate_held()
            latencies.append(now - row.started)
            if deadline is not None:
                del watched[row]
            if attempts:
                attempts.pop(row, None)
            try:
                complete(row, value)
            except BaseException as error:  # the output's; raised here, a StopIteration would become a RuntimeError
                self._operator.fail(error)

        return returned

    def coroutine_ended(
        self, slot: CallSlot, call: Call, results: Sequence[Results] | None, error: BaseException | None
    ) -> None:
        """The coroutine of an attempt is over."""
        if slot.abandoned:
            return
        if slot.call is call:
            self._end(call, slot, results, error)
            return
        if slot in call.trouble.running_on:  # a ResultFuture has ended the attempt before
            call.trouble.running_on = [one for one in call.trouble.running_on if one is not slot]
            if call.is_over and not call.trouble.running_on:  # the deadline was for its coroutine
                self.deadlines.stop(call)

    def _delivered(
        self, slot: CallSlot, call: Call, attempt: int, results: Results | None, error: BaseException | None
    ) -> None:
        """A ResultFuture was completed: its attempt is decided, though the coroutine may run on."""
        if slot.call is call and call.attempt == attempt and not slot.abandoned:  # not a future of an earlier attempt
            trouble = call.own_trouble()
            trouble.running_on = [*trouble.running_on, slot]
            self._end(call, slot, None if results is None else [results], error)
            self._operator.pump()

    def _end(self, call: Call, slot: CallSlot, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The attempt of a call in a slot has ended, in time or not."""
        slot.call = None
        for part in call.parts:
            part.slot = None
        failure = None if error is None else Failure(error)
        if slot.costs is not None or slot.state.spent:
            seen_results = results if results is None else [self._invoker.seen_by_settle(one) for one in results]
            self.service.spending.settle(slot, call, seen_results, failure, is_cut=False)
        seen = failure
        if results is not None and len(call.rows) > 1:
            usual = usual_error([one for one in results if isinstance(one, BaseException)], len(results))
            seen = None if usual is None else Failure(usual)
        if slot.has_asked or seen is not None:
            self._report_end(slot, seen)
        self._outcome(call, results, failure, slot.state.side)

    def _report_end(self, slot: CallSlot, failure: Failure | None) -> None:
        """Report the end of an attempt to the limits."""
        self.service.ended(slot, failure, self.clock())
        if self.service.held_failures is not None:
            self.evaluate_held()

    def _outcome(
        self,
        call: Call,
        results: Sequence[Results] | None,
        failure: Failure | None,
        side: Sequence[SideRecord] = (),
    ) -> None:
        """An attempt has ended, in time or not.

        Args:
            failure: of the attempt as a whole; None if each row has an outcome of its own.
        """
        # The clock decides, not the timer: after a call has blocked the loop, a late result may come before its timer.
        now = self.clock() - ROUNDING
        if call.deadline is not None and now > call.deadline:
            self._expire(call)  # the loop was too busy to notice it in time
            return
        if self._limits_attempts and now > (self.attempt_deadlines.stop(call) or now):
            self._attempt_expired(call)
            return
        if call.is_over:
            return
        outcomes: Sequence[Outcome]
        if failure is None:
            outcomes, first = self._checker.checked(results or (), side)
        else:
            outcomes, first = [failure] * len(call.rows), failure
        if type(call) is JointAttempt or (type(call) is Batch and failure is None and first is not None):
            self._decide_each(call, results, outcomes, failure, now)
        else:
            self._decide(call, results, outcomes, first, now)

    def _decide(
        self,
        call: Call,
        results: Sequence[Results] | None,
        outcomes: Sequence[Outcome],
        failure: Failure | None,
        now: float,
    ) -> None:
        """An attempt has ended in time: the rows are done, or the call is tried again.

        Args:
            results: as the function gave them.
            outcomes: of each row, checked.
            failure: of the call, or of its first row that has one.
        """
        if failure is None and not self.looks_at_results:
            self._complete(call, outcomes, outcomes, now)  # type: ignore[arg-type]
            return
        if failure is not None:
            self.counts.failure(failure)
        delay, outcomes = self._delay_of(call, results, outcomes, failure, now, self._rng.random())
        if delay is not None:
            self._back_off(call.parts, delay)
        elif type(call) is Batch and outcomes[0] is failure and len(call.rows) > 1 and self._may_split(failure):
            self._take_apart(call, True, now)
            self._halve(call.rows, failure)
            self._watch_each(call.rows)
        else:
            self.conclude(call, outcomes)

    def _decide_each(
        self,
        call: Batch,
        results: Sequence[Results] | None,
        outcomes: Sequence[Outcome],
        failure: Failure | None,
        now: float,
    ) -> None:
        """The same for an attempt whose rows go on each for itself.

        Args:
            failure: of the attempt as a whole; None if each row has an outcome of its own.
        """
        if type(call) is JointAttempt:
            self.counts.ended_jointly(call, now)
        else:
            errors = [outcome.error for outcome in outcomes if type(outcome) is Failure]
            self._take_apart(call, usual_error(errors, len(outcomes)) is not None, now)
        good, bad = list[int](), list[int]()
        for number, (row, outcome) in enumerate(zip(call.rows, outcomes, strict=True)):
            if not row.is_over and row.deadline is not None and now > row.deadline:
                self._expire(row)
            if not row.is_over:
                (bad if type(outcome) is Failure else good).append(number)
        self.counts.failures_of_rows([failure] if failure is not None else [outcomes[number] for number in bad])
        if good:
            done = JointAttempt([call.rows[number] for number in good])
            self._decide(done, [results[number] for number in good], [outcomes[number] for number in good], None, now)  # type: ignore[index]
        draw = self._rng.random()  # one for all: rows of equal delays come back together, and are called together
        later: dict[float, list[Call]] = {}
        to_split: list[Row] = []
        throttled = self.counts.throttled_attempts
        for number in bad:
            row, outcome = call.rows[number], outcomes[number]
            assert type(outcome) is Failure
            result = None if results is None else [results[number]]
            delay, (stands,) = self._delay_of(row, result, [outcome], outcome, now, draw)
            if delay is not None:
                later.setdefault(delay, []).append(row)
            elif stands is failure and len(bad) > 1 and self._may_split(failure):
                to_split.append(row)
            else:
                self.conclude(row, [stands])
        self.counts.throttled_attempts = min(throttled + 1, self.counts.throttled_attempts)
        for delay, rows in later.items():
            self._back_off(rows, delay)
        self._halve(to_split, failure)
        self._watch_each(call.rows)

    def _take_apart(self, call: Batch, has_failed: bool, now: float) -> None:
        """A call of many rows is over; its rows that are not done go on alone."""
        call.release()
        self.deadlines.stop(call)
        self.counts.ended_in_part(call, has_failed, now)

    def _watch_each(self, rows: Sequence[Row]) -> None:
        """Each row that goes on alone has a timer of its own, unless it has one from an earlier attempt."""
        now = self.clock()
        for row in rows:
            if not row.is_over and row.deadline is not None and row.trouble.timer is None:
                row.trouble.timer = self._loop.call_later(row.deadline - now, self._expire_late, row)

    def _may_split(self, failure: Failure | None) -> bool:
        """Whether a call that has so failed as a whole is split, to find the rows because of which it did."""
        if failure is None or not self._options.split_failed or self.service.is_broken:
            return False
        return not (failure.is_no_rows_fault or issubclass(type(failure.error), ResultError))

    def _halve(self, rows: Sequence[Row], failure: Failure | None) -> None:
        """Call each half of these rows, whose call has so failed as a whole."""
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            for row in half:
                self._note_last(row, failure, None)
                self._park(row)
            if half:
                self.ready.append(JointAttempt(half))
        if failure is not None:
            self._forget_frames(failure.error)
        self.pool.wake()

    def _delay_of(
        self,
        call: Call,
        results: Sequence[Results] | None,
        outcomes: Sequence[Outcome],
        failure: Failure | None,
        now: float,
        draw: float,
    ) -> tuple[float | None, Sequence[Outcome]]:
        """Seconds until the next attempt of a call, None if none follows; and the outcomes that stand then."""
        if failure is not None:
            if (code := failure.answer.quota) is not None:
                return None, [Failure(self._policy.used_up(failure.error, code))] * len(call.rows)
            if (refusal := self.service.refusal_of(failure)) is not None:
                if (wait := self._refused(call, refusal)) is not None:
                    self._note_last(call, failure, results)
                return wait, outcomes
        try:
            delay = self._next_delay(call, failure, results, draw)
        except BaseException as own:  # a predicate of the retry strategy failed
            return None, [Failure(own)] * len(call.rows)
        if delay is not None:
            self._note_last(call, failure, results)
            if failure is None:
                self.service.unsatisfied(now)
            for part in call.parts:
                part.own_trouble().waited += delay
                if self.service.is_broken:
                    self._renew(part)
        return delay, outcomes

    def _note_last(self, call: Call, failure: Failure | None, results: Sequence[Results] | None) -> None:
        """Keep what an attempt has ended with for the next one, if the function can ask for it."""
        if self.asks:
            last = self._invoker.seen_by_retry(results or ()) if failure is None else failure.error
            for part in call.parts:
                part.own_trouble().last_error = last

    def _forget_frames(self, error: Any) -> None:
        """Let go of what the frames of a noted error keep alive, once it is decided about all rows that have it."""
        if self.asks and error is not self._ends_with:
            forget_frames(error)

    def _refused(self, call: Call, refusal: Refusal) -> float | None:
        """Seconds for which a refused call waits alone, without using an attempt; None if it has failed."""
        now, trouble = self.clock(), call.own_trouble()
        if trouble.refused is None:
            trouble.refused = now
        end = trouble.refused + MOST_REFUSED if call.deadline is None else call.deadline
        if not refusal.may_retry or now + refusal.seconds >= end:
            return None
        trouble.uncounted += 1
        self.counts.throttled_attempts += 1
        return refusal.seconds

    def _next_delay(
        self, call: Call, failure: Failure | None, results: Sequence[Results] | None, draw: float
    ) -> float | None:
        """Seconds until the next attempt; None if no attempt follows."""
        retry = self._options.retry
        if retry is None or (
            not retry.checks_results if failure is None else failure.is_fatal or failure.fault in OF_LOOPS
        ):
            return None
        now, number = self.clock(), call.counted_attempts
        result = None if results is None else self._invoker.seen_by_retry(results)
        error, asked = (None, None) if failure is None else (failure.error, failure.answer.wait)
        attempt = EndedAttempt(number, now - call.started, call.trouble.waited, error, result, asked)
        delay = retry.next_delay(attempt, draw)
        if delay is not None and not _is_too_late(call, now + delay):
            return delay
        # An attempt that could not begin before the deadline is not waited for.
        if error is None and self._sharing is not None and retry.asks_again(attempt):
            self._sharing.leaves(call)  # the result stands for this row, and is not kept
        return None

    def _back_off(self, calls: Sequence[Call], seconds: float) -> None:
        for call in calls:
            self._park(call)
            self._forget_frames(call.trouble.last_error)
        self._backing_off.update(calls)
        self._operator.waiting_has_changed()
        self._loop.call_later(seconds, self._retry, calls)

    def _retry(self, calls: Sequence[Call]) -> None:
        self._backing_off.difference_update(calls)
        self._operator.waiting_has_changed()
        now = self.clock()
        for call in calls:
            call.own_trouble().ready = now
        self.ready.extend(calls)
        self.pool.wake()
        if self._bounds.is_many and self.service.has_rate_limit:
            self._loop.call_later(GATHERED_FOR, self.pool.wake)

    def _park(self, call: Call) -> None:
        """No attempt of the call is under way."""
        self.counts.parks(call)
        call.own_trouble().pauses = self.service.paused_seconds()

    def _give_back(self, call: Call) -> None:
        """Move the deadline of a call by the time that it has spent in pauses of all calls."""
        pauses, trouble = self.service.paused_seconds(), call.own_trouble()
        spent, trouble.pauses = pauses - trouble.pauses, pauses
        if call.deadline is not None:
            call.deadline += spent

    def conclude(
        self,
        call: Call,
        outcomes: Sequence[Outcome],
        cause: Failure | None = None,
        *,
        may_hold: bool = True,
    ) -> None:
        """No attempt follows: errors become results as `on_error` says, row by row.

        Args:
            cause: the failure of a call whose outcomes were made by `on_timeout`.
            may_hold: whether the call may be held until it is known whether its service is dead.
        """
        if type(call) is JointAttempt:
            for row, outcome in zip(call.rows, outcomes, strict=True):
                self.conclude(row, [outcome], cause, may_hold=may_hold)
            return
        if (
            may_hold
            and self.service.held_failures is not None
            and self.service.held_failures.hold(call, outcomes, cause)
        ):
            if not call.trouble.running_on:
                self.deadlines.stop(call)
            self._park(call)
            self._loop.call_soon(self.evaluate_held)
            return
        completed: list[Results] = []
        failed: list[BaseException] = []
        for outcome in outcomes:
            if type(outcome) is Failure:
                if self._policy.fails_task(outcome):
                    self._ends_with = outcome.error
                    self.counts.failed_task(call)
                    self.counts.ends_task(outcome.error, None if outcome.is_no_rows_fault else "on_error")
                    self._operator.fail(self._policy.task_error(outcome, call.attempt, call.values))
                    return
                result = self._policy.result(outcome, call.attempt, call.elapsed(self.clock()))
                self.counts.failed(result)
                if type(outcome.error) is BudgetSpentError:
                    self.counts.unpaid()
                else:
                    failed.append(outcome.error)
                completed.append((result,))
            else:
                completed.append(outcome)
        if failed and call.attempt and not call.trouble.is_part:
            self.counts.call_failed()
        if self.service.failures is not None:
            self.service.failures.note(failed, len(call.rows))
        self._complete(call, completed, outcomes, self.clock())

    def _complete(self, call: Call, completed: Sequence[Results], outcomes: Sequence[Outcome], now: float) -> None:
        """The rows of the call have their results."""
        if type(call) is JointAttempt:
            for row, results in zip(call.rows, completed, strict=True):
                self._over(row, [results], now)
        else:
            self._over(call, completed, now)
        if self._sharing is not None:
            self._sharing.complete(call, completed, outcomes)
        else:
            for row, results in zip(call.rows, completed, strict=True):
                row.complete(results)
        self._operator.pump()

    def _over(self, call: Call, completed: Sequence[Results], now: float) -> None:
        trouble = call.trouble
        call.is_over = True
        if not call.attempt or trouble.is_part:
            self.counts.uncalled(completed)
        else:
            self.counts.ended(call, completed, now)
        if trouble.timer is not None:
            trouble.timer.cancel()
            trouble.timer = None
        if not trouble.running_on:
            self.deadlines.stop(call)

    def _due(self, end: Callable[[Call], None], call: Call) -> None:
        try:
            end(call)
        except BaseException as error:  # a timer's exception would only be logged
            self._operator.fail(error)

    def _expire(self, call: Call) -> None:
        """The deadline of a call has come: its rows are done, whatever still runs for them."""
        if call.is_waiting:
            self._give_back(call)
        if not (call.is_over or call.deadline is None or self._is_late(call)):  # the deadline was moved
            self._loop.call_later(call.deadline - self.clock(), self._expire_late, call)
            return
        goes_on = self._abandon_slots(call)
        self.attempt_deadlines.stop(call)
        if not (call.is_over or call.trouble.is_held or self._renewed_by_outage(call)):
            self._time_out(call, goes_on=goes_on)
        self.service.wake()  # it may have been the next, and the one behind it may cost less
        self.pool.wake()

    def _expire_late(self, call: Call) -> None:
        """A deadline that was moved may have come; if the call began anew another one runs."""
        if not (call.is_over or call.deadline is None):
            self._due(self._expire, call)

    def _attempt_expired(self, call: Call) -> None:
        """The limit of an attempt has come: this is an outcome like an exception, and may be retried."""
        if self._is_late(call):
            self._expire(call)
            return
        self._abandon_slots(call)
        self.attempt_deadlines.stop(call)
        self.counts.attempt_timed_out(call)
        limit = self._options.attempt_timeout
        error = AsyncTimeoutError(f"attempt {call.attempt} gave no result within {limit:g} s")
        self._outcome(call, None, Failure(error))
        self.pool.wake()

    def _is_late(self, call: Call) -> bool:
        """Whether the deadline has come, though its timer may not have fired."""
        return call.deadline is not None and self.clock() + ROUNDING >= call.deadline

    def _renewed_by_outage(self, call: Call) -> bool:
        """Let all time of a call begin anew if it is late because its service is dead; returns whether that is so."""
        if not (self.service.is_broken and call.is_waiting):
            return False
        self._renew(call)
        return True

    def _time_out(self, call: Call, *, goes_on: bool) -> None:
        """A call is late; its attempt may go on for other rows."""
        if self._sharing is not None:
            self._sharing.leaves(call)  # the answer of `on_timeout` is for this row alone
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        answers = [self._checker.late(self._invoker, call, row.element, error) for row in call.rows]  # type: ignore[arg-type]
        is_at_work = call.trouble.parked is None  # or the call that it follows
        self.counts.timed_out(call, answers, goes_on=goes_on)
        # A call that waits for its turn says nothing about the service.
        self.conclude(call, answers, Failure(error), may_hold=is_at_work)

    def _abandon_slots(self, call: Call) -> bool:
        """End the attempt of a call that is given up; returns whether it goes on, as it is that of other rows too."""
        for slot in call.trouble.running_on:  # their attempts have ended before
            self.pool.abandon(slot)
        if call.trouble.running_on:
            call.trouble.running_on = ()
        if (slot := call.slot) is not None:
            for part in call.parts:
                part.slot = None
            call.slot = None
            if (whole := slot.call) is not call:
                if any(row.slot is slot for row in whole.rows):
                    return True
                whole.slot = None
                self.attempt_deadlines.stop(whole)
            if slot.costs is not None or slot.state.spent:
                self.service.spending.settle(slot, whole, None, _NO_ANSWER, is_cut=True)
            slot.call = None
            self.pool.abandon(slot)
            self._report_end(slot, _NO_ANSWER)
        return False

    def evaluate_held(self) -> None:
        """Decide about held calls: an attempt has ended, the breaker has opened or closed, or nothing more comes."""
        held = self.service.held_failures
        if held is None:
            return
        for call, failure in held.excused():  # they are tried as if they had had no attempt
            self._renew(call)
            self._note_last(call, failure, None)
            self._forget_frames(failure.error)
            self._retry([call])
        self._fail_held(held.failed())
        if self.service.is_broken is not self._was_broken:
            self._was_broken = self.service.is_broken
            for call in [*self._backing_off, *self.ready]:
                for part in call.parts:
                    if not (part.is_over or part.slot is not None):  # it has waited for the service to come back
                        self._renew(part)
        if self.pool.is_idle and not (self.ready or self._backing_off or self._operator.has_rows()):
            self._fail_held(held.failed(is_last=True))

    def _fail_held(self, failed: Iterable[tuple[Call, Sequence[Outcome]]]) -> None:
        for call, outcomes in failed:
            self.conclude(call, outcomes, may_hold=False)

    def _renew(self, call: Call) -> None:
        """Let all time of the call, and of the calls that share it, begin anew with its next attempt."""
        for one in (call, *(() if self._sharing is None else self._sharing.renewed(call))):
            self.deadlines.stop(one)
            one.deadline, one.is_fresh, trouble = None, True, one.own_trouble()
            trouble.uncounted, trouble.waited, trouble.refused = one.attempt, 0.0, None
            trouble.is_held, trouble.is_excused = False, trouble.is_excused or one.attempt > 0

    # Figures, and the end.

    def count_open(self) -> None:
        """Bring up to date how long the open calls have taken."""
        self.counts.count_open(self._open_calls())

    def abandon(self) -> None:
        """The operator ends, and its open calls are given up: one that catches its cancellation has no row any more."""
        self.counts.abandon(self._open_calls())
        for slot in self.pool.at_work:
            if slot.call is not None and (slot.costs is not None or slot.state.spent):
                self.service.spending.settle(slot, slot.call, None, _NO_ANSWER, is_cut=True)
            slot.call = None

    def _open_calls(self) -> list[Call]:
        """The calls that are not over."""
        at_work = (slot.call for slot in self.pool.at_work if slot.call is not None)
        found = (*at_work, *self._backing_off, *self.ready, *(self.service.held_failures or ()))
        joined = (row for call in found if type(call) is JointAttempt for row in call.rows)
        known = {*found, *joined}
        return [call for call in known if not (call.is_over or call.trouble.is_part or type(call) is JointAttempt)]

    def close(self) -> None:
        """Stop all timers."""
        self.deadlines.close()
        self.attempt_deadlines.close()


def _is_too_late(call: Call, when: float) -> bool:
    """Whether the deadline of a call comes before an attempt that begins then."""
    return (deadline := call.earliest_deadline()) is not None and when >= deadline
