"""The limits of a function in one task: made, kept while its calls run, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from .._coordination.client import Coordinator
from .._coordination.failures import SharedFailures
from .._coordination.health import SharedHealth
from .._coordination.identity import TaskIdentity
from .._coordination.periodic import PeriodicTask
from .._coordination.permits import SharedPermits
from .._coordination.share import CapacityShare
from .._coordination.spending import SharedSpending
from .._policies.capacity import AdaptiveCapacity, CapacityPolicy
from .._policies.options import Options
from .._policies.rate_limit import Bucket, RateLimit, Scope
from .admission import Admission
from .failure_budget import FailureBudget
from .gates import AdaptiveGate, Gate, LimitedOperator, PermitGate, Pool, ShareGate, SpendGate
from .service_health import ServiceHealth

__all__ = ("Limits",)


Kept = TypeVar("Kept", bound=PeriodicTask)


class Limits:
    """The limits of one function in one task: what its attempts ask before they begin, and are reported to.

    Args:
        costs: of each attempt, in permits of each rate limit; None if each call has costs of its own.
        identity: this task among those of the job; None: this task is the whole job.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second; the task's if left out.
    """

    def __init__(
        self,
        operator: LimitedOperator,
        options: Options,
        pool: Pool,
        costs: Sequence[float] | None,
        *,
        identity: TaskIdentity | None = None,
        shared_clock: Callable[[], float] | None = None,
    ) -> None:
        self._operator = operator
        self._options = options
        self._pool = pool
        self._identity = identity
        self._shared_clock = shared_clock or operator.counters.clock
        self.health = ServiceHealth(operator, options, pool)
        self.admission = Admission(operator, pool, self.health, costs)
        self.failures = None if options.max_failures is None else FailureBudget(operator, options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block runs, attempts meet the limits.

        Raises:
            FatalError: at the end, when all rows are done and too many have failed.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._identity is None:
                gates = self._own_gates()
            else:
                config = self._identity.config
                coordinator = Coordinator(config.url, config.namespace, clock=self._operator.counters.clock)
                await stack.enter_async_context(coordinator)
                gates = self._shared_gates(self._identity, coordinator, stack)
            adaptive: list[Gate] = []
            if isinstance(self._options.capacity, AdaptiveCapacity):
                adaptive.append(AdaptiveGate(CapacityPolicy(self._options.capacity), self._pool, self._shared_clock))
            self.admission.use([*adaptive, *gates])
            yield
            if self.failures is not None:
                self.failures.finish()
        if self.failures is not None and self.failures.error is not None:
            raise self.failures.error

    # Both in the order in which they are asked: the permits are the last, for they are taken when they are there.

    def _own_gates(self) -> list[Gate]:
        """Of a task that is the whole job."""
        options, gates = self._options, list[Gate]()
        if (total := options.job_capacity) is not None:
            gates.append(ShareGate(self._pool, lambda: total, lambda: None))
        if options.max_calls is not None:
            gates.append(SpendGate(_TaskSpending(options.max_calls), options.max_calls, self._operator.name))
        if options.rate_limit:
            gates.append(
                PermitGate([(place, _bucket_of(limit)) for place, limit in enumerate(options.rate_limit)], None)
            )
        return gates

    def _shared_gates(
        self, identity: TaskIdentity, coordinator: Coordinator, stack: contextlib.AsyncExitStack
    ) -> list[Gate]:
        """Of a task among others."""

        def kept(shared: Kept) -> Kept:
            stack.push_async_callback(shared.close)
            return shared

        def heard() -> None:
            self._operator.health_changed()
            wake()

        options, wake, fail, gates = self._options, self.admission.wake, self._operator.fail, list[Gate]()
        query, task, function = identity.query, identity.task, self._operator.name
        # What one query has given up, another tries.
        self.health.share(kept(SharedHealth(coordinator, query, task, options.breaker, heard, fail)))
        if (total := options.job_capacity) is not None:
            demand = lambda: (self._pool.in_flight, self._operator.wanted_calls())  # noqa: E731
            name = identity.config.share(total)
            share = kept(CapacityShare(coordinator, name, task, total, demand, wake, fail))
            gates.append(ShareGate(self._pool, lambda: share.limit, share.poke))
        if (most := options.max_calls) is not None:
            spending = kept(SharedSpending(coordinator, query, task, most, wake, fail))
            gates.append(SpendGate(spending, most, function))
        if options.rate_limit:
            limits = options.rate_limit
            places = [place for place, limit in enumerate(limits) if limit.scope is Scope.JOB]
            own = [(place, _bucket_of(limit)) for place, limit in enumerate(limits) if place not in places]
            named = identity.config.rates(limits)
            permits = (places, kept(SharedPermits(coordinator, named, wake, fail))) if named else None
            gates.append(PermitGate(own, permits))
        if (failures := self.failures) is not None:
            told = (identity.part, failures.budget, failures.spent, fail)
            failures.tally = kept(SharedFailures(coordinator, query, *told))
        return gates


# Of limits with a name, which the functions of one event loop share.
_buckets: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Bucket]] = weakref.WeakKeyDictionary()


def _bucket_of(limit: RateLimit) -> Bucket:
    if limit.name is None:
        return Bucket(limit)
    named = _buckets.setdefault(asyncio.get_running_loop(), {})
    return named.setdefault((limit.name, limit.permits, limit.period, limit.saved), Bucket(limit))


class _TaskSpending:
    """The calls of a task that is the whole job."""

    def __init__(self, total: int) -> None:
        self._left = total

    def has_call(self) -> bool:
        return self._left > 0

    def is_spent(self) -> bool:
        return self._left <= 0

    def use(self) -> None:
        self._left -= 1
