"""The limits of a function as its attempts meet them, one gate for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .._coordination.permits import SharedPermits
from .._errors.exceptions import FatalError
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.call_outcome import CallOutcome, outcome_of
from .._policies.capacity import CapacityPolicy
from .._policies.rate_limit import Permits, take

__all__ = (
    "NOT_NEEDED",
    "AdaptiveGate",
    "Gate",
    "LimitedOperator",
    "PendingCall",
    "PermitGate",
    "Pool",
    "ShareGate",
    "Slot",
    "SpendGate",
)


NOT_NEEDED = asyncio.CancelledError()  # how an attempt has ended that we have cancelled: it tells nobody anything


class PendingCall(Protocol):
    """A call of which an attempt is to begin.

    Attributes:
        costs: of the attempt, in permits of each rate limit.
        is_excused: an outage has excused its failures; later ones do not show another.
        is_held: it has failed, and waits among the `HeldFailures`.
        undecided: the slots in which an answer to it is waited for already.
    """

    costs: Sequence[float] | None
    done: bool
    is_excused: bool
    is_held: bool

    @property
    def undecided(self) -> Sequence[Any]: ...


class Slot(Protocol):
    """Where an attempt runs.

    Attributes:
        admitted: when it was let in, until the gates are told that it is over.
        ticket: under which the circuit breaker has let it in.
        counts_for_breaker: whether a failure tells of the service, and not of its row.
    """

    admitted: float | None
    ticket: int
    counts_for_breaker: bool


class LimitedOperator(Protocol):
    """The operator whose calls are limited.

    Attributes:
        name: of its function.
        counters: of its calls; their clock is the operator's.
    """

    name: str
    counters: TaskCounters

    def wanted_calls(self) -> int:
        """How many calls would be in flight if limits allowed them."""

    def call_waits(self) -> None:
        """A call begins to wait for a limit, and no other may begin; it is `Admission.waiting`."""

    def health_changed(self) -> None:
        """The coordinator has said what the tasks of the job know of the service."""

    def fail(self, error: BaseException) -> None:
        """The task must end with this error."""


class Pool(Protocol):
    """The slots of a function."""

    @property
    def in_flight(self) -> int: ...
    def lead(self, slot: Any) -> None: ...
    def resize(self, capacity: int) -> None: ...


class Gate:
    """One limit, as attempts meet it; every method is called on the event loop.

    Attributes:
        state: what the time goes to while a call waits here.
    """

    state = State.LIMIT

    def wait(self, call: PendingCall, now: float) -> float | None:
        """0.0 if an attempt may begin now; else the seconds after which to ask again; None if it is told when.

        Raises:
            FatalError: no call may begin any more.
        """
        return 0.0

    def began(self, slot: Slot, call: PendingCall, now: float) -> None:
        """An attempt of the call begins in this slot."""

    def ended(self, slot: Slot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        """The attempt is over; called once for each that began."""


class AdaptiveGate(Gate):
    """As many calls in flight as the policy has found to be good.

    What a user's `failure_on` takes for a failure is the breaker's affair: a service that throttles or hangs is full.

    The pool has so many slots: only where there are fewer than a moment ago do calls wait here.

    Args:
        clock: seconds, of a clock that the tasks of the job share.
    """

    state = State.CALLS_BUSY

    def __init__(self, policy: CapacityPolicy, pool: Pool, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._pool = pool
        self._clock = clock
        pool.resize(policy.limit)

    def wait(self, call: PendingCall, now: float) -> float | None:
        return 0.0 if self._pool.in_flight < self._policy.limit else None

    def ended(self, slot: Slot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        assert slot.admitted is not None
        self._policy.ended(outcome_of(error), now - slot.admitted, self._pool.in_flight, self._clock())
        self._pool.resize(self._policy.limit)


class ShareGate(Gate):
    """The task's share of the calls that the job may have in flight.

    Args:
        limit: how many these are now.
        poke: tells that more could be used.
    """

    def __init__(self, pool: Pool, limit: Callable[[], int], poke: Callable[[], None]) -> None:
        self._pool = pool
        self._limit = limit
        self._poke = poke

    def wait(self, call: PendingCall, now: float) -> float | None:
        if self._pool.in_flight < self._limit():
            return 0.0
        self._poke()
        return None


class CallBudget(Protocol):
    """Calls that may be made, of the task or of the job."""

    def has_call(self) -> bool: ...
    def is_spent(self) -> bool: ...
    def use(self) -> None: ...


class SpendGate(Gate):
    """`max_calls`: when these are made the job ends."""

    def __init__(self, budget: CallBudget, most: int, function: str) -> None:
        self._budget = budget
        self._most = most
        self._function = function

    def wait(self, call: PendingCall, now: float) -> float | None:
        if self._budget.has_call():
            return 0.0
        if self._budget.is_spent() and not call.undecided:  # a second call may also be left out
            raise FatalError(
                f"{self._function} has made the {self._most:,} calls that max_calls= allows in one query, and there "
                "are rows left. A store= keeps results that are paid for; asyncudf.dry_run(df) tells how many calls a "
                "query makes"
            )
        return None

    def began(self, slot: Slot, call: PendingCall, now: float) -> None:
        self._budget.use()


class PermitGate(Gate):
    """The rate limits; permits are taken when an attempt has passed all other gates.

    Args:
        own: those of this task, with their places among all.
        shared: those of the job.
    """

    def __init__(self, own: Sequence[tuple[int, Permits]], shared: tuple[Sequence[int], SharedPermits] | None) -> None:
        self._own = own
        self._shared = shared

    def wait(self, call: PendingCall, now: float) -> float | None:
        costs = call.costs
        assert costs is not None
        own, own_costs = [permits for _, permits in self._own], [costs[place] for place, _ in self._own]
        if self._shared is None:
            return take(own, own_costs, now)
        begin = max((permits.due(cost, now) or now for permits, cost in zip(own, own_costs, strict=True)), default=now)
        if begin > now:
            return begin - now
        places, shared = self._shared
        if not shared.take([costs[place] for place in places]):
            return None
        take(own, own_costs, now)
        return 0.0
