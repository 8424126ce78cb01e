"""The limits of a function as its attempts meet them, one gate for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .._coordination.permits import SharedPermits
from .._errors.exceptions import FatalError
from .._metrics.time_account import State
from .._policies.capacity import CapacityPolicy
from .._policies.circuit_breaker import CircuitBreaker
from .._policies.rate_limit import ROUNDING, Permits, take
from .._policies.service_signs import ServiceSign, sign_of
from .admission import NOT_NEEDED, Gate
from .call import Call
from .slots import CallSlot, SlotPool

__all__ = ("AdaptiveGate", "BreakerGate", "PermitGate", "ShareGate", "SpendGate")


class Health(Protocol):
    """A circuit breaker, of the task or of the job."""

    open_since: float | None

    def admit(self, now: float) -> int | None: ...
    def wait(self, now: float) -> float | None: ...
    def ended(self, ticket: int, sign: ServiceSign, now: float) -> None: ...
    def has_given_up(self, now: float) -> bool: ...


class BreakerGate(Gate):
    """The circuit breaker.

    Args:
        told: what an error says, for the one that ends the task.
    """

    state = State.BREAKER

    def __init__(
        self, health: Health, options: CircuitBreaker, function: str, told: Callable[[BaseException], str]
    ) -> None:
        self._health = health
        self._max_open: float = options.max_open  # type: ignore[assignment]
        self._function = function
        self._told = told
        self._last: str | None = None
        self._last_sign: ServiceSign | None = None
        self._probe: int | None = None  # the ticket of the last call that has tried a dead service

    def wait(self, call: Call, now: float) -> float | None:
        if self._health.has_given_up(now):  # before all else: there may always be one more call to try it with
            raise FatalError(self._given_up())
        wait = self._health.wait(now)
        if wait == 0.0:
            return wait
        assert self._health.open_since is not None
        if wait is None:
            self._health.admit(now)  # which lets nobody in, but tells that there is a call to try the service with
        end = max(ROUNDING, self._health.open_since + self._max_open - now)  # 0.0 would let it in
        return end if wait is None else min(wait, end)

    def _given_up(self) -> str:
        if self._last_sign is ServiceSign.NOTHING:
            return (
                f"the circuit breaker of {self._function} has been open for {self._max_open:g} s, its max_open, and no "
                f"call has shown that the service is back: the last that tried it ended with {self._last}, which tells "
                "nothing of a service. No row was given up for it: mend the function if the error is its own, and run "
                "the job again"
            )
        last = "" if self._last is None else f"; the last call that tried it ended with {self._last}"
        return (
            f"the service of {self._function} has given no answer for {self._max_open:g} s, the max_open of its "
            f"circuit breaker{last}. No row was given up for it: run the job again when the service is back"
        )

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        is_open = self._health.open_since is not None
        slot.is_evidence = is_open or not call.is_pardoned
        ticket = self._health.admit(now)
        assert ticket is not None
        slot.ticket = ticket
        if is_open:
            self._probe = ticket

    def ended(self, slot: CallSlot, sign: ServiceSign, error: BaseException | None, now: float) -> None:
        if sign is ServiceSign.DOWN and not slot.is_evidence:
            sign = ServiceSign.NOTHING
        has_tried = slot.ticket == self._probe and error is not NOT_NEEDED
        if error is not None and (sign is ServiceSign.DOWN or has_tried):
            self._last, self._last_sign = self._told(error), sign
        self._health.ended(slot.ticket, sign, now)


class AdaptiveGate(Gate):
    """As many calls in flight as the policy has found to be good.

    What a user's `failure_on` takes for a failure is the breaker's affair: a service that throttles or hangs is full.

    The pool has so many slots: only where there are fewer than a moment ago do calls wait here.

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

    def ended(self, slot: CallSlot, sign: ServiceSign, error: BaseException | None, now: float) -> None:
        assert slot.admitted is not None
        self._policy.ended(sign_of(error), now - slot.admitted, self._pool.in_flight, self._clock())
        self._pool.resize(self._policy.limit)


class ShareGate(Gate):
    """The task's share of the calls that the job may have in flight.

    Args:
        limit: how many these are now.
        poke: tells that more could be used.
    """

    def __init__(self, pool: SlotPool, limit: Callable[[], int], poke: Callable[[], None]) -> None:
        self._pool = pool
        self._limit = limit
        self._poke = poke

    def wait(self, call: Call, now: float) -> float | None:
        if self._pool.in_flight < self._limit():
            return 0.0
        self._poke()
        return None


class Budget(Protocol):
    """Calls that may be made, of the task or of the job."""

    def has_call(self) -> bool: ...
    def is_spent(self) -> bool: ...
    def use(self) -> None: ...


class SpendGate(Gate):
    """`max_calls`: when these are made the job ends."""

    def __init__(self, budget: Budget, most: int, function: str) -> None:
        self._budget = budget
        self._most = most
        self._function = function

    def wait(self, call: Call, now: float) -> float | None:
        if self._budget.has_call():
            return 0.0
        if self._budget.is_spent() and not call.undecided:  # a second call may also be left out
            raise FatalError(
                f"{self._function} has made the {self._most:,} calls that max_calls= allows in one query, and there "
                "are rows left. A store= keeps results that are paid for; asyncudf.dry_run(df) tells how many calls a "
                "query makes"
            )
        return None

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
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

    def wait(self, call: Call, now: float) -> float | None:
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
