"""The gates: one for each limit of a function, which every attempt asks before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .._coordination.permits import SharedPermits
from .._errors.exceptions import AsyncUDFError
from .._errors.task_faults import is_at_a_limit
from .._metrics.time_account import State
from .._policies.budget import Budget
from .._policies.call_outcome import CallOutcome, outcome_of
from .._policies.capacity import CapacityPolicy
from .._policies.rate_limit import Credit, Permits, RateLimit, limit_label, take, tightest
from .row import Call
from .slots import CallSlot, SlotPool


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

    def wait(self, call: Call, now: float) -> float | None:
        """0.0 if an attempt may begin now; else the seconds after which to ask again, None if the task is woken then.

        Raises:
            FatalError: no call may begin any more.
            BudgetSpentError: this one may not.
        """
        return 0.0

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        """An attempt of the call begins in this slot."""

    def ended(self, slot: CallSlot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
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

    def wait(self, call: Call, now: float) -> float | None:
        return 0.0 if self._pool.in_flight < self._policy.limit else None

    def ended(self, slot: CallSlot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        # The worker cannot take more calls, as a service that throttles: fewer in flight need fewer files and threads.
        outcome = CallOutcome.THROTTLED if error is not None and is_at_a_limit(error) else outcome_of(error)
        self._policy.ended(outcome, now - slot.began, self._pool.in_flight, self._clock())
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

    def wait(self, call: Call, now: float) -> float | None:
        if self._pool.in_flight < self._limit():
            return 0.0
        self._poke()
        return None


class SharedAmount(Protocol):
    """What is left of a budget, for the task or for all tasks: see `TaskBudget` and `SharedBudget`."""

    is_settled: bool

    def has(self, need: float) -> bool: ...
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
        costs: of each attempt; None if each call has costs of its own.
        error_of: makes the error of a call that will never begin, of what is spent and of what the call needs.
        ends_task: whether that error ends the task; then calls in flight, which are paid for, may end before.
    """

    def __init__(
        self,
        amount: SharedAmount,
        budget: Budget,
        place: int,
        costs: Sequence[float] | None,
        error_of: Callable[[float, float], AsyncUDFError],
        *,
        ends_task: bool,
    ) -> None:
        self.amount, self.place = amount, place
        self.learns = budget.learns
        self._most: float | None = None  # that an attempt did cost so far
        self._least = 1e-6 * budget.amount
        self._in_flight = 0
        self._costs, self._error_of, self._ends_task = costs, error_of, ends_task
        self.follows_calls = amount.is_settled or ends_task

    def need(self, call: Call) -> float:
        """What an attempt of this call reserves."""
        if self.learns:
            return self._least if self._most is None else self._most
        costs = call.trouble.costs if self._costs is None else self._costs
        assert costs is not None
        return costs[self.place]

    def wait(self, call: Call, now: float) -> float | None:
        if self.learns and self._most is None and self._in_flight:
            return None
        need = self.need(call)
        if self.amount.has(need):
            return 0.0
        if self.amount.is_spent(need) and not (self._ends_task and self._in_flight):
            raise self._error_of(self.amount.spent_by_all, need)
        return None

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        self._in_flight += 1
        self.amount.reserve(self.need(call))

    def ended(self, slot: CallSlot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        self._in_flight -= 1

    def settle(self, reserved: float, cost: float) -> None:
        """An attempt that had reserved so much did cost so much."""
        if cost > self._least:  # else it was free, or nobody has said what it cost
            self._most = max(self._most or 0.0, cost)
        self.amount.settle(reserved, cost)


class PermitGate(Gate):
    """`rate_limit`: `wait` takes the permits of an attempt that all other gates let begin.

    Args:
        limits: all of them.
        costs: of each attempt, in permits of each limit; None if each call has costs of its own.
        own: the permits of the task's own limits, each with its place in `rate_limit`.
        shared: the places of the limits of the job, and their permits.
    """

    def __init__(
        self,
        limits: Sequence[RateLimit],
        costs: Sequence[float] | None,
        own: Sequence[tuple[int, Permits]],
        shared: tuple[Sequence[int], SharedPermits] | None,
    ) -> None:
        self.limits = [*map(limit_label, limits)]
        self.limit = limit_label(max(limits, key=lambda limit: limit.interval))  # until it is known
        self._costs = costs
        self._credits = [*map(Credit, limits)]
        self.follows_calls = any(limit.settle is not None for limit in limits)
        self._own, self._places = [permits for _, permits in own], [place for place, _ in own]
        self._shared = shared

    def wait(self, call: Call, now: float) -> float | None:
        given = call.trouble.costs if self._costs is None else self._costs
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
