"""The gates, one for each limit of a function: every attempt asks them before it begins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from .._coordination.health import SharedHealth
from .._coordination.permits import SharedPermits
from .._errors.exceptions import AsyncUDFError, FatalError
from .._errors.http import Refusal
from .._errors.records import error_text
from .._errors.task_faults import AT_A_LIMIT
from .._metrics.time_account import State
from .._policies.budget import Budget
from .._policies.call_outcome import CallOutcome
from .._policies.capacity import CapacityPolicy
from .._policies.error_budget import EXAMPLES, Failures
from .._policies.failure import Failure
from .._policies.options import Options
from .._policies.rate_limit import Credit, Permits, RateLimit, limit_label, take, tightest
from .._policies.throttle import RefusedForGood, Throttle
from .._text.safe import type_name
from .attempt import Attempt
from .slots import CallingOperator, SlotPool


class Gate:
    """One limit; every method is called on the event loop.

    Attributes:
        state: where the time goes while a call waits for this gate.
        follows_calls: whether its answer may change when a call ends.
        limits: what it bounds calls by, as people are shown it; empty where they have said no limit.
        limit: that of them which the last call that it turned away waits for.
    """

    state = State.LIMIT
    follows_calls = True
    limits: Sequence[str] = ()
    limit = ""

    def wait(self, attempt: Attempt, now: float) -> float | None:
        """0.0 if an attempt may begin now; else the seconds after which to ask again, None if the task is woken then.

        Raises:
            FatalError: no call may begin any more.
            BudgetSpentError: this one may not.
        """
        return 0.0

    def began(self, attempt: Attempt, now: float) -> None:
        """The attempt begins."""

    def ended(self, attempt: Attempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        """The attempt is over; called once for each that began."""


class AdaptiveGate(Gate):
    """`capacity="auto"`: as many calls in flight as the policy has found to be good.

    A user's `failure_on` is for the breaker alone: for this gate a service is full when it throttles or hangs.

    The pool has as many slots, so calls wait here only after their number has been lowered.

    Args:
        clock: seconds, of a clock that the tasks of the job share.
    """

    state = State.CALLS_BUSY

    def __init__(self, policy: CapacityPolicy, pool: SlotPool, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._pool = pool
        self._clock = clock
        pool.resize(policy.limit)

    def wait(self, attempt: Attempt, now: float) -> float | None:
        return 0.0 if self._pool.in_flight < self._policy.limit else None

    def ended(self, attempt: Attempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        # The worker cannot take more calls, as a service that throttles: fewer in flight need fewer files and threads.
        if failure is not None:
            outcome = CallOutcome.THROTTLED if failure.fault in AT_A_LIMIT else failure.outcome
        self._policy.ended(outcome, now - attempt.began, self._pool.in_flight, self._clock())
        self._pool.resize(self._policy.limit)


class ShareGate(Gate):
    """`job_capacity`: the task's share of the calls that the job may have in flight.

    Args:
        limit: returns the share.
        poke: called when the task could use a larger share.
    """

    limits = ("job_capacity",)
    limit = "job_capacity"

    def __init__(self, pool: SlotPool, limit: Callable[[], int], poke: Callable[[], None]) -> None:
        self._pool = pool
        self._limit = limit
        self._poke = poke

    def wait(self, attempt: Attempt, now: float) -> float | None:
        if self._pool.in_flight < self._limit():
            return 0.0
        self._poke()
        return None


# Without reserve=, attempts whose costs nobody says would reserve nothing, and the budget would hold none of them back.
MOST_UNTOLD = 5


class SharedAmount(Protocol):
    """What is left of a budget, for the task or for all tasks: see `TaskBudget` and `SharedBudget`."""

    is_settled: bool

    def ask(self, need: float) -> bool: ...
    def is_spent(self, need: float) -> bool: ...
    def reserve(self, need: float) -> None: ...
    def settle(self, reserved: float, cost: float) -> None: ...
    @property
    def spent_by_all(self) -> float: ...


class BudgetGate(Gate):
    """One budget: an attempt begins when what it may cost at most is reserved.

    Args:
        budget: whose amount it is.
        place: of the budget's reservations among the costs of an attempt.
        error_of: makes the error of a call that will never begin, of what is spent and of what the call needs; None:
            nobody knows what a call needs.
        ends_task: whether that error ends the task; then calls in flight, which are paid for, may end before.
    """

    def __init__(
        self,
        amount: SharedAmount,
        budget: Budget,
        place: int,
        error_of: Callable[[float, float | None], AsyncUDFError],
        *,
        ends_task: bool,
    ) -> None:
        self.amount, self.place = amount, place
        self.learns = budget.learns
        self._most: float | None = None  # that an attempt did cost so far
        self._least = 1e-6 * budget.amount
        self._untold = 0  # attempts of which nobody has said what they cost, before the first that did
        self._in_flight = 0
        self._error_of, self._ends_task = error_of, ends_task
        self.follows_calls = amount.is_settled or ends_task

    def need(self, attempt: Attempt) -> float:
        """What this attempt reserves."""
        if self.learns:
            return self._least if self._most is None else self._most
        assert attempt.costs is not None
        return attempt.costs[self.place]

    def wait(self, attempt: Attempt, now: float) -> float | None:
        if self.learns and self._most is None:
            if self._in_flight:
                return None
            if self._untold >= MOST_UNTOLD:
                raise self._error_of(self.amount.spent_by_all, None)
        need = self.need(attempt)
        if self.amount.ask(need):
            return 0.0
        if self.amount.is_spent(need) and not (self._ends_task and self._in_flight):
            raise self._error_of(self.amount.spent_by_all, need)
        return None

    def began(self, attempt: Attempt, now: float) -> None:
        self._in_flight += 1
        self.amount.reserve(self.need(attempt))

    def ended(self, attempt: Attempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        self._in_flight -= 1

    def settle(self, reserved: float, cost: float, *, is_untold: bool) -> None:
        """An attempt that had reserved so much did cost so much; `is_untold`: as far as anybody has said."""
        if cost > self._least:  # else it was free, or nobody has said what it cost
            self._most = max(self._most or 0.0, cost)
        self._untold += is_untold
        self.amount.settle(reserved, cost)


class PermitGate(Gate):
    """`rate_limit`: `wait` takes the permits of an attempt that all other gates let begin.

    Args:
        limits: all of them.
        own: the permits of the task's own limits, each with its place in `rate_limit`.
        shared: the places of the limits of the job, and their permits.
    """

    def __init__(
        self,
        limits: Sequence[RateLimit],
        own: Sequence[tuple[int, Permits]],
        shared: tuple[Sequence[int], SharedPermits] | None,
    ) -> None:
        self.limits = [*map(limit_label, limits)]
        self.limit = limit_label(max(limits, key=lambda limit: limit.interval))  # until it is known
        self._credits = [*map(Credit, limits)]
        self.follows_calls = any(limit.settle is not None for limit in limits)
        self._own, self._places = [permits for _, permits in own], [place for place, _ in own]
        self._shared = shared

    def wait(self, attempt: Attempt, now: float) -> float | None:
        given = attempt.costs
        assert given is not None
        costs = [max(0.0, cost - credit.left(now)) for cost, credit in zip(given, self._credits, strict=False)]
        own, own_costs = self._own, [costs[place] for place in self._places]
        if self._shared is None:
            wait = take(own, own_costs, now)
        else:
            dues = (permits.due(cost, now) or now for permits, cost in zip(own, own_costs, strict=True))
            wait = max(dues, default=now) - now
        if wait != 0.0:
            self._turns_away(tightest(own, own_costs, now), self._places)
        elif self._shared is not None:
            places, shared = self._shared
            shared_costs = [costs[place] for place in places]
            if not shared.take(shared_costs):
                self._turns_away(shared.tightest(shared_costs), places)
                return None
            take(own, own_costs, now)
        if wait == 0.0:
            for credit, cost, taken in zip(self._credits, given, costs, strict=False):
                credit.use(cost - taken)
        return wait

    def settle(self, place: int, reserved: float, used: float, now: float) -> None:
        """A call that was thought to cost so many permits of a limit has used other ones: later calls get the rest."""
        self._credits[place].add(reserved - used, now)

    def _turns_away(self, number: int | None, places: Sequence[int]) -> None:
        """Note which limit a call waits for; while permits are asked for it is the one that calls waited for before."""
        for credit in self._credits:
            credit.is_wanted = True
        if number is not None:
            self.limit = self.limits[places[number]]


CLOCKS_APART = 0.1  # seconds by which the clocks of two tasks may differ
NEWS_WITHIN = 5.0  # seconds after which a task knows at the latest that calls of another were accepted


class RefusalGate(Gate):
    """Refusals: all calls pause, or begin at a pace, when there is evidence that the service needs it.

    If the service refuses for good, the task ends, with one error for all its rows.
    """

    # longest: seconds; longer waits that a service asks for are capped; 0: refusals are errors like others
    # shared: what the other tasks know; None: this task has no coordinator

    def __init__(self, operator: CallingOperator, options: Options, pool: SlotPool) -> None:
        self._operator = operator
        self._options = options
        self._pool = pool
        self._longest = options.longest_wait
        self.throttle = Throttle(operator.counters.clock())
        self.for_good = RefusedForGood(options.patience)
        self.shared: SharedHealth | None = None

    def share(self, shared: SharedHealth) -> None:
        """From now on the tasks of the job share what they know."""
        self.shared = shared
        self.for_good = RefusedForGood(self._options.patience + NEWS_WITHIN)

    def wait(self, attempt: Attempt, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + CLOCKS_APART and until > self.throttle.until + CLOCKS_APART:
                self.throttle.pause(until, now)
        return self.throttle.wait(self._pool.in_flight, now)

    def began(self, attempt: Attempt, now: float) -> None:
        self.throttle.began(now)

    def ended(self, attempt: Attempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        # A call that did not have to ask has begun while calls were free.
        began = attempt.began if attempt.has_asked else now
        if outcome is CallOutcome.NOTHING:
            self.throttle.gave_up(began)
        elif failure is None or (refusal := self.refusal_of(failure)) is None:
            self.throttle.answered(1, began, now)
            if outcome is CallOutcome.ANSWERED:
                self.accepted(now)
        else:
            self.throttle.refused(now + refusal.seconds, began, now)
            if self.shared is not None and self.throttle.until > now:
                self.shared.pause(self.throttle.until)
            self._may_end(refusal, began, now, failure)

    def accepted(self, now: float) -> None:
        """A call was not refused, whatever its answer was."""
        if self.for_good.is_counting:
            self.for_good.accepted()
        if self.shared is not None:
            self.shared.accepted = now

    def _may_end(self, refusal: Refusal, began: float, now: float, failure: Failure) -> None:
        """A call was refused: end the task if the service refuses for good."""
        for_good, elsewhere = self.for_good, -math.inf if self.shared is None else self.shared.accepted_elsewhere
        answers = self._operator.counters.calls_answered
        for_good.refused(now + refusal.seconds, began, now, answers=answers, elsewhere=elsewhere)
        if for_good.is_for_good(began) and for_good.is_for_good(self._pool.oldest):
            self._operator.fail(FatalError(self._given_up(failure)))

    def _given_up(self, failure: Failure) -> str:
        options, status, wait = self._options, failure.answer.status, failure.answer.wait
        takes = "as long as a row may take" if options.patience == options.timeout else "as long as it may"
        said = [] if status is None else [f"status {status}"]
        said.append("no wait asked" if wait is None else f"asks to wait {wait:g} s")
        return (
            f"the service of {self._operator.name} has refused all calls for {options.patience:g} s, {takes}; the last "
            f"with {error_text(failure.error, redacted=options.redacted)} ({', '.join(said)}). Results in a store= are "
            "kept: run the job again when the service accepts calls"
        )

    def refusal_of(self, failure: Failure | None) -> Refusal | None:
        """The refusal in a failure, with its wait capped; None if there is none."""
        return None if failure is None else failure.refusal(self._longest)


class Tally(Protocol):
    """Adds up the failed rows of all tasks."""

    def add(self, rows: int, types: dict[str, int], examples: list[str]) -> None: ...


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # The operator counts the rows that are done; the budget looks at the counter when a row fails, and at the end.
    #
    # _added: rows that are in the tally already
    # tally: of the job; None: only this task counts

    def __init__(self, operator: CallingOperator, options: Options) -> None:
        assert options.max_failures is not None
        self.budget = options.max_failures
        self._redacted = options.redacted
        self._operator = operator
        self._own = Failures()
        self._added = 0
        self.tally: Tally | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if errors:
            examples = [error_text(error, redacted=self._redacted) for error in errors[:EXAMPLES]]
            self._add(Counter(map(type_name, errors)), examples, rows)

    def finish(self) -> None:
        """All rows are done."""
        self._add({}, [], 0)

    def spent(self, failures: Failures) -> None:
        """These failures have spent the budget: end the task."""
        if self.error is None:
            self.error = FatalError(self.budget.message(self._operator.name, failures))
            self.error.option = "max_failures"
            self._operator.fail(self.error)

    def _add(self, types: dict[str, int], examples: list[str], rows_of_call: int) -> None:
        done = self._operator.counters.rows_done + rows_of_call  # the counter does not have these yet
        rows, self._added = max(0, done - self._added), max(done, self._added)
        if self.tally is not None:
            self.tally.add(rows, types, examples)
            return
        self._own.add(rows, types, examples)
        if self.budget.is_spent(self._own):
            self.spent(self._own)
