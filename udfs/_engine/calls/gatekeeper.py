"""Everything that may say "not now" to an attempt, and what a task knows of the service that its function calls."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..._errors.failure import Failure
from ..._functions.options import OnSpent, Options, limits_of
from ..._functions.signature import FunctionSpec
from ..._limits.budgets.spending import Spending
from ..._limits.gate import Aside, Gate, LimitKey
from ..._limits.health.health import Health
from ..._limits.limited_task import LimitedTask
from ..._limits.own_limits import OwnLimits
from ..._limits.rates.option import TIME_ROUNDING
from ..._observe.time_account import State
from ..._observe.waits import Wait, Waiting
from ..loop.event_loops import seconds_until
from .arguments import settlement_call
from .attempt import Attempt
from .held import HeldFailures
from .key_lines import KeyLines
from .slots import HostOperator, Slot, SlotPool
from .spent_budgets import spent_error

if TYPE_CHECKING:
    from ..._limits.coordinator.client import Coordinator
    from ..._limits.coordinator.link import TaskLink
    from ..._limits.coordinator.names import TaskIdentity
    from ..._limits.rates.learned import Learner


class Gatekeeper:
    """Says of each attempt of a task whether it may begin: limits, refusals of the service, its circuit breaker.

    `try_begin` asks each of its gates whether an attempt may begin; `ended` tells each how the attempt has ended.

    Attributes:
        asks_nothing: no gate has to be asked before an attempt begins; so it is without limits, until the service
            has refused so many calls that `Throttle` sees evidence. One refusal delays its own row alone.
        has_rate_limit: all calls take permits of one rate, so a call of few rows wastes permits.
    """

    # No call waits here. One that may not begin is the next of the `Backlog`, and one slot, the leader of the pool,
    # waits until `reopen`: so calls begin in their order, whichever slot asks for the next one.

    def __init__(
        self,
        operator: HostOperator,
        options: Options,
        pool: SlotPool,
        spec: FunctionSpec,
        *,
        identity: TaskIdentity | None = None,
        shared_clock: Callable[[], float] | None = None,
        own_limits: OwnLimits | None = None,
    ) -> None:
        self._operator = operator
        self._options = options
        self._pool = pool
        self._identity = identity
        self._own_limits = OwnLimits() if own_limits is None else own_limits
        self._own_name = self._own_limits.name_of(spec.function)
        self._counters = operator.counters
        self._clock = operator.counters.clock
        self._shared_clock = shared_clock or self._clock
        self.closed_by: Gate | None = None  # it has turned a call away; no other call asks until `reopen`
        self._since = 0.0  # when it did so
        self._holds_keys: Gate | None = None  # the last one that has held back a key
        self._coordinator: Coordinator | None = None
        self.failed = 0  # attempts that have ended with an error
        self._limited = 0.0  # seconds of `State.LIMIT` of which it is counted who has held back calls
        self._timer: asyncio.TimerHandle | None = None
        self._woken: asyncio.Future[None] | None = None
        self.health = Health(operator, pool, options)
        self.spending = Spending(
            operator,
            options.rate_limit,
            options.budgets,
            settlement_call(spec),
            is_refusal=lambda failure: self.health.refusal_of(failure) is not None,
            spent_error=partial(spent_error, operator, options, spec),
            ends_task=options.on_spent is OnSpent.RAISE,
            redacted=options.redacted,
        )
        learners = (limit.learner(operator, operator.loop, self._shared_clock) for limit, _ in limits_of(options))
        self.learner: Learner | None = next((one for one in learners if one is not None), None)
        if self.learner is not None:
            self.learner.listeners.append(self.reopen)
        self._observers: list[Gate] = []
        self.held_failures: HeldFailures | None = None
        if options.breaker is not None and self.health.breaker is not None:
            self.held_failures = HeldFailures(options.breaker.window, self.health.breaker)
        self._use(())

    # Its gates.

    @contextlib.asynccontextmanager
    async def running(self, aside: KeyLines) -> AsyncIterator[None]:
        """While the block runs, attempts meet the limits; FatalError at its end if too many rows have failed."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.spending.note_budgets)  # when they are closed
            identity = self._identity
            link = None if identity is None else await self._linked(identity, stack)
            limited = LimitedTask(
                self._operator,
                self._pool,
                function=self._own_name if identity is None else identity.config.function,
                own_function=self._own_name,
                query=self._own_name if identity is None else identity.query,
                own=self._own_limits,
                link=link,
                shared_clock=self._shared_clock,
                wake=self.reopen,
                ask_again=aside.ask_again,
                waiting=aside.waiting,
                wanted_calls=self._operator.wanted_calls,
                spending=self.spending,
                learner=self.learner,
                store=self._options.store,
                closing=stack,
            )
            gates = [*self._observers]
            for limit, first in limits_of(self._options):
                gates += await limit.gates(limited, first)
            self._use(gates)
            yield
            if (failures := self.health.failures) is not None:
                failures.finish()
        if failures is not None and failures.error is not None:
            raise failures.error

    async def _linked(self, identity: TaskIdentity, stack: contextlib.AsyncExitStack) -> TaskLink:
        """Connect to the coordinator, and share with the other tasks what is known of the service."""
        from ..._limits.coordinator.client import Coordinator
        from ..._limits.coordinator.link import TaskLink

        operator, config = self._operator, identity.config
        self._coordinator = coordinator = Coordinator(config.url, config.namespace, clock=self._clock)
        await stack.enter_async_context(coordinator)
        link = TaskLink(coordinator, identity.task, self.reopen, operator.fail)
        self.health.share(link, identity, stack)
        return link

    def observe(self, observer: Gate) -> None:
        """Ask this gate before the limits; before `running`."""
        self._observers.append(observer)

    def _use(self, gates: Sequence[Gate]) -> None:
        """From now on attempts ask these gates in this order, after the gates of the service's health."""
        self._gates = [*self.health.gates, *gates]
        self._by_place = {gate.place: gate for gate in gates}
        self._on_begin = [gate.began for gate in self._gates if type(gate).began is not Gate.began]
        self._on_withdrawal = [gate.withdrawn for gate in self._gates if type(gate).withdrawn is not Gate.withdrawn]
        self._on_end = [gate.ended for gate in self._gates if type(gate).ended is not Gate.ended]
        limits = [limit for gate in gates for limit in gate.limits]
        self._counters.totals.limit_seconds.update(dict.fromkeys(limits, 0.0))
        self.has_rate_limit = any(gate.takes_permits for gate in gates)
        self._is_settled = self.spending.is_settled
        self._has_limits = bool(gates) or self.health.has_to_be_asked
        self.asks_nothing = not self._has_limits

    # An attempt begins and ends.

    def try_begin(self, slot: Slot, attempt: Attempt) -> bool | Aside:
        """Let an attempt begin in this slot; False: none may begin before `reopen`; `Aside`: none of its key may."""
        attempt.began = now = self._clock()
        self._pool.lead(slot)  # its last attempt is over, and no longer counts as in flight
        for gate in self._gates:
            if (wait := gate.wait(attempt, now)) != 0.0:
                if type(wait) is Aside:
                    self._holds_keys = gate
                    return wait
                self._close(gate, wait, now)  # type: ignore[arg-type]
                return False
        attempt.has_asked = True
        for began in self._on_begin:
            began(attempt, now)
        if self._is_settled:
            attempt.reserved = self.spending.reserved(attempt)
        if not self._has_limits and self.health.is_free(now):
            self.asks_nothing = True
        return True

    def _close(self, gate: Gate, seconds: float | None, now: float) -> None:
        self.closed_by, self._since = gate, now
        self._counters.account.enter(gate.state)
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(seconds, TIME_ROUNDING), self.reopen)
        self._operator.calls_wait()

    async def reopened(self) -> None:
        """Wait until calls may ask again; for one slot at a time."""
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        finally:
            self._woken = None
            self._open()

    def reopen(self) -> None:
        """Let the next call ask again; may be called at any time, any number of times."""
        if self._woken is None:
            self._open()
        elif not self._woken.done():
            self._woken.set_result(None)

    def _open(self) -> None:
        if (gate := self.closed_by) is None:
            return
        self.closed_by = None
        self._counters.account.enter(State.CALLS_BUSY)  # until it turns out that another gate is closed
        waited = self._clock() - self._since
        if gate.state is State.LIMIT:
            self._limited += waited
        if gate.waiting is Waiting.REFUSAL:
            self._counters.totals.refused_seconds += waited
        elif gate.limits:
            self._counters.totals.limit_seconds[gate.limit] += waited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def count_aside(self) -> None:
        """Count the time in which slots were free because the keys of all waiting rows were held back."""
        gate, totals = self._holds_keys, self._counters.totals
        if gate is not None and gate.limits and self.closed_by is None:
            waited = max(0.0, totals.time[State.LIMIT] - self._limited)
            totals.limit_seconds[gate.limit] += waited
            self._limited += waited

    def withdrawn(self, attempt: Attempt) -> None:
        """An attempt with keys, which may have asked, is not to begin any more."""
        for withdrawn in self._on_withdrawal:
            withdrawn(attempt)

    def ended(self, attempt: Attempt, failure: Failure | None, now: float) -> None:
        """An attempt is over. An attempt that did not have to ask is only reported if it has failed."""
        self.failed += failure is not None
        if not attempt.has_asked:
            if self.asks_nothing:
                self.asks_nothing = self.health.ended_unasked(attempt, failure, now)
            return
        outcome = self.health.outcome_of(failure)
        for ended in self._on_end:
            ended(attempt, outcome, failure, now)
        attempt.has_asked = False
        if self.closed_by is not None:
            self.slot_is_free()

    def slot_is_free(self) -> None:
        """A call has left its slot: a gate that counts calls in flight, or learns from their ends, may have opened."""
        if self.closed_by is not None and self.closed_by.follows_calls:
            self.reopen()

    def waits(self, begun: int, aside: KeyLines) -> Iterator[Wait]:
        """What holds back calls now: all calls, or the calls of a key that are `aside`; `begun` calls are in flight."""
        name, coordinator = self._operator.name, self._coordinator
        if coordinator is not None and coordinator.away_since is not None:  # gates wait for its answer
            yield Wait(Waiting.COORDINATOR, name, coordinator.away_since, coordinator.patience)
            return
        gate = self.closed_by
        if gate is None:
            if (held := aside.longest(self._awaits_calls)) is not None:
                place, since, left = held
                detail = f"{self._by_place[place].limit} for one of its keys"
                yield Wait(Waiting.PERMIT, name, since, self._clock() - since + left, detail)
        elif gate.state is not State.CALLS_BUSY:  # that one waits for the calls in flight
            detail = gate.limit if gate.waiting is Waiting.PERMIT else ""
            left = seconds_until(self._timer, self._operator.loop) if gate.longest == math.inf else math.inf
            yield Wait(gate.waiting, name, gate.closed_since, gate.longest, detail, begun, left)

    def _awaits_calls(self, key: LimitKey) -> bool:
        place, of = key
        return self._by_place[place].awaits_calls(of)
