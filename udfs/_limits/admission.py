"""Admission: a call asks it before each attempt whether the limits of the function let the attempt begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.rate_limit import ROUNDING
from .gates import Gate, LimitedOperator, PendingCall, Pool, Slot
from .service_health import ServiceHealth

__all__ = ("Admission",)


class _FirstCall:
    """Stands for every row that was never called, where all attempts cost the same."""

    done = is_excused = is_held = False

    def __init__(self, costs: Sequence[float] | None) -> None:
        self.costs = costs


class Admission:
    """The gates of one function in one task.

    Args:
        costs: of each attempt, in permits of each rate limit; None if each call has costs of its own.
    """

    # One call at a time waits for a gate, in the slot that has taken it; the others wait in the input or in
    # `Calls.ready`. So rows begin in their order, and the slot that waits is the leader of the pool.
    #
    # is_open: no gate has to be asked before an attempt begins
    # may_begin_nowait: no call waits, and none was turned away since the last one passed, so `begin_nowait` may succeed
    # waiting: the call that waits
    # failed: how many attempts have ended with an error
    # _answers: the answers to calls that did not have to ask, when they were last counted

    def __init__(
        self,
        operator: LimitedOperator,
        pool: Pool,
        health: ServiceHealth,
        costs: Sequence[float] | None,
    ) -> None:
        self._operator = operator
        self._pool = pool
        counters: TaskCounters = operator.counters
        self._counters = counters
        self._account = counters.account
        self._clock = counters.clock
        self._health = health
        self._first_call = _FirstCall(costs)
        self._answers = self.failed = 0
        self._woken: asyncio.Future[None] | None = None
        self.waiting: Any = None
        self.use(())

    def use(self, gates: Sequence[Gate]) -> None:
        """From now on attempts ask these gates too, in this order; one whose `wait` takes permits must be the last."""
        self._gates = [*self._health.gates, *gates]
        self._on_begin = [gate.began for gate in self._gates if type(gate).began is not Gate.began]
        self._on_end = [gate.ended for gate in self._gates if type(gate).ended is not Gate.ended]
        self._has_limits = bool(gates) or self._health.has_limits
        self.is_open = not self._has_limits
        self.may_begin_nowait = self._first_call.costs is not None

    def begin_nowait(self, slot: Slot) -> float | None:
        """Begin the first attempt of a row in this slot; returns when it began, or None if it has to wait."""
        self._pool.lead(slot)
        call, now = self._first_call, self._clock()
        for gate in self._gates:
            if gate.wait(call, now) != 0.0:
                self.may_begin_nowait = False
                return None
        slot.admitted = now
        for began in self._on_begin:
            began(slot, call, now)
        return now

    async def begin(self, slot: Slot, call: PendingCall) -> bool:
        """Wait until an attempt of the call may begin; False if the call needs none by then."""
        has_waited = False
        self._pool.lead(slot)  # its last attempt is over, and no longer counts as in flight
        while not call.done:
            now = self._clock()
            closed = self._closed(call, now)
            if closed is None:
                slot.admitted = now
                for began in self._on_begin:
                    began(slot, call, now)
                if has_waited:
                    self._account.enter(State.CALLS_BUSY)
                if not (self.is_open or self._has_limits) and self._health.throttle.is_free(now):
                    self.is_open, self._answers = True, self._counters.calls_answered
                self.may_begin_nowait = self.is_open or (self._has_limits and self._first_call.costs is not None)
                return True
            has_waited, self.may_begin_nowait = True, False
            gate, wait = closed
            self._account.enter(gate.state)
            await self._wait(call, wait)
            if gate is self._gates[0]:  # the refusals
                self._counters.totals.refused_seconds += self._clock() - now
        return False

    def _closed(self, call: PendingCall, now: float) -> tuple[Gate, float | None] | None:
        """The first gate that the call has to wait for, and how long; None if it may begin."""
        for gate in self._gates:
            if (wait := gate.wait(call, now)) != 0.0:
                return gate, wait
        return None

    async def _wait(self, call: PendingCall, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        woken = self._woken = loop.create_future()
        timer = None if seconds is None else loop.call_later(max(seconds, ROUNDING), self.wake)
        self.waiting = call
        self._operator.call_waits()
        try:
            await woken
        finally:
            self.waiting = self._woken = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Let the call that waits ask again; may be called at any time, any number of times."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def ended(self, slot: Slot, error: BaseException | None) -> None:
        """An attempt is over. One that did not have to ask need not be reported, unless it has ended with an error."""
        self.failed += error is not None
        now = self._clock()
        if slot.admitted is None:
            if self.is_open and self._health.refusal_of(error) is not None:  # until now no attempt had to ask
                answers, self._answers = self._counters.calls_answered - self._answers, self._counters.calls_answered
                self.is_open = self.may_begin_nowait = self._health.refused(slot, error, max(0, answers), now)
            return
        outcome = self._health.outcome_of(error)
        for ended in self._on_end:
            ended(slot, outcome, error, now)
        slot.admitted = None
        self._health.attempts += slot.counts_for_breaker
        self.wake()
