"""The limits of a function in one task: made, kept while its calls run, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from .._coordination.client import Coordinator
from .._coordination.failures import SharedFailures
from .._coordination.health import SharedHealth
from .._coordination.identity import TaskIdentity
from .._coordination.permits import SharedPermits
from .._coordination.share import CapacityShare
from .._coordination.spending import SharedSpending
from .._errors.exceptions import FatalError
from .._errors.records import error_text
from .._functions.signature import FunctionSpec
from .._policies.capacity import AdaptiveCapacity, CapacityPolicy
from .._policies.circuit_breaker import Breaker
from .._policies.options import Options
from .._policies.rate_limit import Bucket, RateLimit, Scope
from .._policies.service_signs import ServiceSign, sign_of
from .admission import Admission, Gate
from .call import Call
from .copies import copied
from .failure_budget import FailureBudget
from .gates import AdaptiveGate, BreakerGate, PermitGate, ShareGate, SpendGate
from .invokers import of_row
from .slots import SlotPool

__all__ = ("Limits", "signs_of")


def signs_of(
    function: str, options: Options, fail: Callable[[BaseException], None]
) -> Callable[[BaseException | None], ServiceSign]:
    """What tells of the service how an attempt has ended; never raises.

    Args:
        fail: ends the task, where the user's own `failure_on` cannot tell.
    """
    breaker = options.breaker
    if breaker is None or breaker.failure_on is None:
        return sign_of

    def told(error: BaseException | None) -> ServiceSign:
        try:
            return breaker.sign_of(error)
        except BaseException as own:  # code of the user's
            fatal = FatalError(
                f"failure_on of the circuit breaker of {function} must tell of any exception whether the service has "
                f"failed, and raised {error_text(own, options.redact)}"
            )
            fatal.__cause__ = own
            fail(fatal)
            return ServiceSign.NOTHING

    return told


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the limits of one function need of its operator.

    Args:
        identity: this task among those of the job; None: this task is the whole job.
        wanted: how many calls would be in flight if nothing but rows were missing.
        fail: ends the task.
        clock: seconds, of the task.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second.
    """

    spec: FunctionSpec
    options: Options
    identity: TaskIdentity | None
    admission: Admission
    pool: SlotPool
    failures: FailureBudget | None
    wanted: Callable[[], int]
    fail: Callable[[BaseException], None]
    clock: Callable[[], float]
    shared_clock: Callable[[], float]

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """While the block runs, attempts meet the limits.

        Raises:
            FatalError: at the end, when all rows are done and too many have failed.
        """
        async with contextlib.AsyncExitStack() as stack:
            coordinator = None
            if self.identity is not None:
                config = self.identity.config
                coordinator = Coordinator(config.url, config.namespace, clock=self.clock)
                await stack.enter_async_context(coordinator)
            health = None if coordinator is None else self._shared_health(stack, coordinator)
            self.admission.use(self._gates(stack, coordinator, health), self._costs(), health)
            self._share_failures(stack, coordinator)
            yield
            if self.failures is not None:
                self.failures.settle()
        if self.failures is not None and self.failures.error is not None:
            raise self.failures.error

    def _gates(
        self, stack: contextlib.AsyncExitStack, coordinator: Coordinator | None, health: SharedHealth | None
    ) -> list[Gate]:
        """In the order in which they are asked; the permits are the last, for they are taken when they are there."""
        gates: list[Gate] = []
        admission, options = self.admission, self.options
        if options.breaker is not None:
            own = Breaker(options.breaker)
            breaker: Any = health or own
            admission.breaks = lambda: breaker.open_since is not None
            admission.is_in_doubt = own.is_in_doubt  # never, where the job's breaker is told of the calls
            told = partial(error_text, redact=options.redact)
            gates.append(BreakerGate(breaker, options.breaker, self.spec.name, told))
        if isinstance(options.capacity, AdaptiveCapacity):
            gates.append(AdaptiveGate(CapacityPolicy(options.capacity), self.pool, self.shared_clock))
        if options.job_capacity is not None:
            gates.append(self._share(stack, coordinator, options.job_capacity))
        if options.max_calls is not None:
            gates.append(self._spending(stack, coordinator, options.max_calls))
        if options.rate_limit:
            gates.append(self._permits(stack, coordinator, options.rate_limit))
        return gates

    def _costs(self) -> Sequence[float] | None:
        """The permits of each attempt; None if they are not all alike."""
        limits = self.options.rate_limit or ()
        if any(callable(limit.cost) for limit in limits):
            self.admission.costs_of = partial(_costs, [_of_rows(limit, self.spec) for limit in limits])
            return None
        return [limit.cost_of(()) for limit in limits]

    def _shared_health(self, stack: contextlib.AsyncExitStack, coordinator: Coordinator) -> SharedHealth:
        assert self.identity is not None

        def wake() -> None:
            self.admission.look()
            self.admission.wake()

        name, task = self.identity.query, self.identity.task  # what one query has given up, another tries
        health = SharedHealth(coordinator, name, task, self.options.breaker, wake, self.fail)
        self.admission.heard = lambda: health.heard
        stack.push_async_callback(health.close)
        return health

    def _share(self, stack: contextlib.AsyncExitStack, coordinator: Coordinator | None, total: int) -> Gate:
        if coordinator is None:
            return ShareGate(self.pool, lambda: total, lambda: None)
        assert self.identity is not None
        demand = lambda: (self.pool.in_flight, self.wanted())  # noqa: E731
        name = self.identity.config.share(total)
        share = CapacityShare(coordinator, name, self.identity.task, total, demand, self.admission.wake, self.fail)
        stack.push_async_callback(share.close)
        return ShareGate(self.pool, lambda: share.limit, share.poke)

    def _spending(self, stack: contextlib.AsyncExitStack, coordinator: Coordinator | None, most: int) -> Gate:
        if coordinator is None:
            return SpendGate(_Spending(most), most, self.spec.name)
        assert self.identity is not None
        spending = SharedSpending(
            coordinator, self.identity.query, self.identity.task, most, self.admission.wake, self.fail
        )
        stack.push_async_callback(spending.close)
        return SpendGate(spending, most, self.spec.name)

    def _permits(
        self, stack: contextlib.AsyncExitStack, coordinator: Coordinator | None, limits: Sequence[RateLimit]
    ) -> Gate:
        places = [place for place, limit in enumerate(limits) if coordinator is not None and limit.scope is Scope.JOB]
        own = [(place, _bucket_of(limit)) for place, limit in enumerate(limits) if place not in places]
        if coordinator is None or not places:
            return PermitGate(own, None)
        assert self.identity is not None
        kept = [limits[place] for place in places]
        named = list(zip(_names(kept, self.identity.config.function), kept, strict=True))
        shared = SharedPermits(coordinator, named, self.admission.wake, self.fail)
        stack.push_async_callback(shared.close)
        return PermitGate(own, (places, shared))

    def _share_failures(self, stack: contextlib.AsyncExitStack, coordinator: Coordinator | None) -> None:
        if self.failures is None or coordinator is None:
            return
        assert self.identity is not None
        tally = SharedFailures(
            coordinator, self.identity.query, self.identity.part, self.failures.budget, self.failures.spent, self.fail
        )
        stack.push_async_callback(tally.close)
        self.failures.tally = tally


# Of limits with a name, which the functions of one event loop share.
_buckets: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Bucket]] = weakref.WeakKeyDictionary()


def _bucket_of(limit: RateLimit) -> Bucket:
    if limit.name is None:
        return Bucket(limit)
    named = _buckets.setdefault(asyncio.get_running_loop(), {})
    return named.setdefault((limit.name, limit.permits, limit.period, limit.saved), Bucket(limit))


class _Spending:
    """The calls of a task that is the whole job."""

    def __init__(self, total: int) -> None:
        self._left = total

    def has_call(self) -> bool:
        return self._left > 0

    def is_spent(self) -> bool:
        return self._left <= 0

    def use(self) -> None:
        self._left -= 1


def _names(limits: Sequence[RateLimit], function: str) -> list[str]:
    """Under which names tasks share limits, one each: no two of a function are one, also where their numbers are equal.

    A limit of the same numbers in another list of the same function, as `with_options` makes them, is the same.
    """
    names: list[str] = []
    for limit in limits:
        numbers = f"{function}:{float(limit.permits)!r}/{limit.period!r}:{limit.saved!r}"
        equal = sum(name.startswith(f"{numbers}:") for name in names)
        names.append(limit.name or f"{numbers}:{equal}")
    return names


def _of_rows(limit: RateLimit, spec: FunctionSpec) -> RateLimit:
    return dataclasses.replace(limit, cost=of_row(limit.cost, spec)) if callable(limit.cost) else limit


def _costs(limits: Sequence[RateLimit], call: Call) -> list[float]:
    """The permits of an attempt: a number counts once, a function for each row of a micro-batch."""
    return [
        sum(limit.cost_of(copied(_arguments(record.value))) for record in call.records)
        if callable(limit.cost)
        else limit.cost_of(())
        for limit in limits
    ]


def _arguments(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)
