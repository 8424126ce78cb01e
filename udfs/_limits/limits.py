"""The limits of a function in one task: made, kept while its calls run, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import weakref
from collections.abc import AsyncIterator, Callable
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
from .gates import AdaptiveGate, Gate, PermitGate, Pool, ShareGate, SpendGate
from .service_health import ServiceHealth

__all__ = ("Limits",)


Kept = TypeVar("Kept", bound=PeriodicTask)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the limits of one function need of its operator.

    Args:
        identity: this task among those of the job; None: this task is the whole job.
        wanted: how many calls would be in flight if nothing but rows were missing.
        heard: called when the tasks of the job know something new of the service.
        fail: ends the task.
        clock: seconds, of the task.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second.
    """

    function: str
    options: Options
    identity: TaskIdentity | None
    health: ServiceHealth
    admission: Admission
    pool: Pool
    failures: FailureBudget | None
    wanted: Callable[[], int]
    heard: Callable[[], None]
    fail: Callable[[BaseException], None]
    clock: Callable[[], float]
    shared_clock: Callable[[], float]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the block runs, attempts meet the limits.

        Raises:
            FatalError: at the end, when all rows are done and too many have failed.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self.identity is None:
                gates = self._own_gates()
            else:
                config = self.identity.config
                coordinator = Coordinator(config.url, config.namespace, clock=self.clock)
                await stack.enter_async_context(coordinator)
                gates = self._shared_gates(self.identity, coordinator, stack)
            adaptive: list[Gate] = []
            if isinstance(self.options.capacity, AdaptiveCapacity):
                adaptive.append(AdaptiveGate(CapacityPolicy(self.options.capacity), self.pool, self.shared_clock))
            self.admission.use([*adaptive, *gates])
            yield
            if self.failures is not None:
                self.failures.settle()
        if self.failures is not None and self.failures.error is not None:
            raise self.failures.error

    # Both in the order in which they are asked: the permits are the last, for they are taken when they are there.

    def _own_gates(self) -> list[Gate]:
        """Of a task that is the whole job."""
        options, gates = self.options, list[Gate]()
        if (total := options.job_capacity) is not None:
            gates.append(ShareGate(self.pool, lambda: total, lambda: None))
        if options.max_calls is not None:
            gates.append(SpendGate(_TaskSpending(options.max_calls), options.max_calls, self.function))
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
            self.heard()
            wake()

        options, wake, fail, gates = self.options, self.admission.wake, self.fail, list[Gate]()
        query, task, function = identity.query, identity.task, self.function
        # What one query has given up, another tries.
        self.health.share(kept(SharedHealth(coordinator, query, task, options.breaker, heard, fail)))
        if (total := options.job_capacity) is not None:
            demand = lambda: (self.pool.in_flight, self.wanted())  # noqa: E731
            name = identity.config.share(total)
            share = kept(CapacityShare(coordinator, name, task, total, demand, wake, fail))
            gates.append(ShareGate(self.pool, lambda: share.limit, share.poke))
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
