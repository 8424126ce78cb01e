"""The limits of a function in one task: its gates, the health of its service, and `max_failures`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, TypeVar

from .._coordination.budgets import SharedFailures, SharedSpending
from .._coordination.client import Coordinator
from .._coordination.config import TaskIdentity
from .._coordination.health import SharedHealth
from .._coordination.periodic import PeriodicTask, TaskLink
from .._coordination.permits import SharedPermits
from .._coordination.share import CapacityShare
from .._errors.exceptions import FatalError
from .._errors.records import error_text
from .._policies.capacity import AdaptiveCapacity, CapacityPolicy
from .._policies.error_budget import EXAMPLES, Failures
from .._policies.options import Options
from .._policies.rate_limit import Bucket, RateLimit, Scope, limit_label
from .._text.safe import type_name
from .admission import Admission
from .gates import AdaptiveGate, CallBudget, Gate, LimitedOperator, PermitGate, Pool, ShareGate, SpendGate
from .service_health import ServiceHealth

__all__ = ("Limits",)


Shared = TypeVar("Shared", bound=PeriodicTask)


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
        self.admission = Admission(operator, pool, self.health)
        self._costs = costs
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

    # Both give the gates in the order in which they are asked. PermitGate is the last: its `wait` takes permits.

    def _own_gates(self) -> list[Gate]:
        """The gates of a task that is the whole job."""
        options, gates = self._options, list[Gate]()
        if (total := options.job_capacity) is not None:
            gates.append(ShareGate(self._pool, lambda: total, lambda: None))
        if options.max_calls is not None:
            gates.append(self._spend_gate(_TaskSpending(options.max_calls), options.max_calls))
        if options.rate_limit:
            gates.append(
                PermitGate(
                    [*map(limit_label, options.rate_limit)],
                    self._costs,
                    [(place, _bucket_of(limit)) for place, limit in enumerate(options.rate_limit)],
                    None,
                )
            )
        return gates

    def _spend_gate(self, budget: CallBudget, most: int) -> SpendGate:
        return SpendGate(budget, most, self._operator.name, has_store=self._options.store is not None)

    def _shared_gates(
        self, identity: TaskIdentity, coordinator: Coordinator, stack: contextlib.AsyncExitStack
    ) -> list[Gate]:
        """The gates of a task that shares its limits with others."""

        def running(shared: Shared) -> Shared:
            stack.push_async_callback(shared.close)
            return shared

        operator, options, gates = self._operator, self._options, list[Gate]()
        query, names, wake = identity.query, identity.config, self.admission.wake
        link = TaskLink(coordinator, identity.task, wake, operator.fail)

        def health_changed() -> None:
            operator.health_changed()
            wake()

        # The breaker is of one query: the next one tries a service that this one has given up.
        news = dataclasses.replace(link, wake=health_changed)
        self.health.share(running(SharedHealth(news, query, options.breaker)))
        if (total := options.job_capacity) is not None:
            demand = lambda: (self._pool.in_flight, operator.wanted_calls())  # noqa: E731
            share = running(CapacityShare(link, names.share(total), total, demand))
            gates.append(ShareGate(self._pool, lambda: share.limit, share.poke))
        if (most := options.max_calls) is not None:
            gates.append(self._spend_gate(running(SharedSpending(link, query, most)), most))
        if limits := options.rate_limit:
            places = [place for place, limit in enumerate(limits) if limit.scope is Scope.JOB]
            own = [(place, _bucket_of(limit)) for place, limit in enumerate(limits) if place not in places]
            shared = (places, running(SharedPermits(link, names.rates(limits)))) if places else None
            gates.append(PermitGate([*map(limit_label, limits)], self._costs, own, shared))
        if (failures := self.failures) is not None:
            failures.tally = running(SharedFailures(link, query, identity.part, failures.budget, failures.spent))
        return gates


# The functions of one event loop share a limit of one name.
_buckets: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Bucket]] = weakref.WeakKeyDictionary()


def _bucket_of(limit: RateLimit) -> Bucket:
    if limit.name is None:
        return Bucket(limit)
    named = _buckets.setdefault(asyncio.get_running_loop(), {})
    return named.setdefault((limit.name, limit.permits, limit.period, limit.saved), Bucket(limit))


class _TaskSpending:
    """`max_calls` of a task that is the whole job."""

    def __init__(self, total: int) -> None:
        self._left = total

    def has_call(self) -> bool:
        return self._left > 0

    def is_spent(self) -> bool:
        return self._left <= 0

    def use(self) -> None:
        self._left -= 1


class Tally(Protocol):
    """Adds up the failed rows of all tasks."""

    def add(self, rows: int, types: dict[str, int], examples: list[str]) -> None: ...


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # The operator counts the rows that are done; the budget looks at the counter when a row fails, and at the end.
    #
    # _added: rows that are in the tally already
    # tally: of the job; None: only this task counts

    def __init__(self, operator: LimitedOperator, options: Options) -> None:
        assert options.max_failures is not None
        self.budget = options.max_failures
        self._redact = options.redact
        self._operator = operator
        self._own = Failures()
        self._added = 0
        self.tally: Tally | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if errors:
            examples = [error_text(error, self._redact) for error in errors[:EXAMPLES]]
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
