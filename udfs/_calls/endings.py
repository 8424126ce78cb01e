"""What becomes of a call whose attempt is over: it is done, or tried again, or nobody knows yet why it failed."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence

from .._errors.exceptions import AsyncTimeoutError
from .._errors.http import Refusal
from .._errors.records import is_fatal
from .._functions.async_function import Results
from .._functions.context import RuntimeContext
from .._functions.signature import FunctionSpec
from .._limits.admission import Admission
from .._limits.failure_budget import FailureBudget
from .._limits.service_health import ServiceHealth
from .._metrics.counters import TaskCounters
from .._policies.options import Options
from .._policies.retry import Attempt
from .answers import Answers, Validate
from .call import Call, CallHooks
from .costs import Costs
from .counting import CallCounts
from .deadlines import Deadlines
from .error_policy import ErrorPolicy
from .hedges import Hedges
from .invokers import Invoker
from .slots import CallSlot, SlotPool

__all__ = ("CallEndings",)


class CallEndings(ABC):
    """The calls between two attempts, and the ends of all.

    Args:
        counts: is told of each end.
        deadlines: of all calls that are not done.
    """

    # A call that is not done is in one place: at work in a slot, at the gates of `Admission`, in back-off (a timer of
    # the loop), in `ready`, or held until it is known whether its service is dead.

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        validate: Validate | None,
        context: RuntimeContext,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        pool: SlotPool,
        counters: TaskCounters,
        costs: Costs,
        health: ServiceHealth,
        admission: Admission,
        hooks: CallHooks,
    ) -> None:
        self._invoker: Invoker
        self._deadlines: Deadlines[Call | CallSlot]
        self._options = options
        self._policy = ErrorPolicy(options, spec.name, context.partition)
        self._rng = rng
        self._loop = loop
        self._clock = counters.clock
        self._pool = pool
        self._latencies = counters.latencies
        self._costs, self._health, self._admission = costs, health, admission
        self._answers = Answers(validate)
        self._hooks = hooks
        self.failures: FailureBudget | None = None
        if options.max_failures is not None:
            self.failures = FailureBudget(options, spec.name, counters, hooks.failed)
        is_even = not (spec.many_results or spec.has_context or spec.vectorized)
        self.counts = CallCounts(counters, options.redact, self._begun, is_even=is_even)
        self.ready: deque[Call] = deque()  # whose back-off is over
        self._backing_off: set[Call] = set()
        self._was_broken = False
        self._hedges = None if options.hedge is None else Hedges(options.hedge, loop, pool.wake)
        self._takes_any_result = options.retry is None or not options.retry.checks_results

    @abstractmethod
    def call_of(self, slot: CallSlot) -> Call | None:
        """The call whose attempt is undecided in a slot, if there is one."""

    def _begun(self) -> set[Call]:
        waiting = () if self._admission.waiting is None else (self._admission.waiting,)
        at_work = map(self.call_of, self._pool.at_work)
        return {*filter(None, at_work), *self._backing_off, *self.ready, *waiting, *(self._health.held or ())}

    def _time_out(self, call: Call) -> None:
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        answers = [self._answers.late(self._invoker, call, record, error) for record in call.records]
        is_at_work = call.parked is None
        self.counts.timed_out(call, answers)
        # One that has waited for its turn tells nothing of the service, and is in another place.
        self._conclude(call, answers, error, may_hold=is_at_work)

    def _waits_for_breaker(self, call: Call) -> bool:
        """Whether a call is late because the service is dead, and not at work; then it has all its time anew."""
        if not self._health.is_broken or (call.attempt and call.parked is None):
            return False
        self._renew(call)
        return True

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

    def _back_off(self, call: Call, seconds: float) -> None:
        self._park(call)
        self._backing_off.add(call)
        self._loop.call_later(seconds, self._retry, call)

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

    def _begin_anew(self, call: Call) -> None:
        """The call is tried as if it had never been."""
        self._renew(call)
        self._retry(call)

    def _renew(self, call: Call) -> None:
        self._deadlines.stop(call.watched)
        call.uncounted, call.waited, call.deadline = call.attempt, 0.0, None
        call.is_fresh, call.is_held, call.is_excused = True, False, call.is_excused or call.attempt > 0

    @property
    def has_ready(self) -> bool:
        """Whether there is a call to be made of a row that has one already."""
        return bool(self.ready) or (self._hedges is not None and self._hedges.has_call)

    @property
    def has_new(self) -> bool:
        """Whether the next of these was never made."""
        return bool(self.ready) and not self.ready[0].attempt

    def _tell_end(self, slot: CallSlot, error: BaseException | None) -> None:
        """An attempt is over."""
        self._admission.ended(slot, error)
        if self._health.held is not None:
            self.settle()

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

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        retry = self._options.retry
        if retry is None or (error is None and not retry.checks_results) or is_fatal(error):
            return None
        now, number = self._clock(), call.attempt - call.uncounted
        result = None if results is None else self._invoker.seen_by_retry(results)
        delay = retry.next_delay(Attempt(number, now - call.started, call.waited, error, result), self._rng)
        # A row does not wait for an attempt that its deadline would cut off before it begins.
        return None if delay is None or _is_too_late(call, now + delay) else delay

    def _retry(self, call: Call) -> None:
        self._backing_off.discard(call)
        self.ready.append(call)
        self._pool.wake()

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
        if self.failures is not None:
            self.failures.note(failed, len(call.records))
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


def _is_too_late(call: Call, when: float) -> bool:
    """Whether a call would be cut off by its deadline before it begins."""
    return call.deadline is not None and when >= call.deadline
