"""Admission: a call asks it before each attempt whether the limits of the function let the attempt begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.call_outcome import CallOutcome
from .._policies.rate_limit import ROUNDING
from .gates import Gate, LimitedOperator, PendingCall, Pool, Slot
from .service_health import ServiceHealth

__all__ = ("Admission",)


class Admission:
    """The gates of one function in one task."""

    # No call waits here. One that may not begin is the next of `Calls.ready`, and one slot, the leader of the pool,
    # waits until `wake`: so calls begin in their order, whichever slot asks for the next one.
    #
    # is_open: no gate has to be asked before an attempt begins
    # closed_by: the gate that has turned a call away; no other call asks until `wake`
    # failed: how many attempts have ended with an error
    # _others: attempts that were not refused and ended with an error, or with a result that is not good enough
    # _answers: the answers to calls that did not have to ask, when they were last counted
    # _since: when `closed_by` turned the call away

    def __init__(
        self,
        operator: LimitedOperator,
        pool: Pool,
        health: ServiceHealth,
    ) -> None:
        self._operator = operator
        self._pool = pool
        counters: TaskCounters = operator.counters
        self._counters = counters
        self._limit_seconds = counters.totals.limit_seconds
        self._account = counters.account
        self._clock = counters.clock
        self._health = health
        self._answers = self._others = self.failed = 0
        self.closed_by: Gate | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._woken: asyncio.Future[None] | None = None
        self.use(())

    def use(self, gates: Sequence[Gate]) -> None:
        """From now on attempts ask these gates too, in this order; one whose `wait` takes permits must be the last."""
        self._gates = [*self._health.gates, *gates]
        self._on_begin = [gate.began for gate in self._gates if type(gate).began is not Gate.began]
        self._on_end = [gate.ended for gate in self._gates if type(gate).ended is not Gate.ended]
        self._limit_seconds.update(dict.fromkeys((limit for gate in gates for limit in gate.limits), 0.0))
        self._has_limits = bool(gates) or self._health.has_limits
        self.is_open = not self._has_limits

    def try_begin(self, slot: Slot, call: PendingCall) -> bool:
        """Begin an attempt of a call in this slot; False if it may not begin before `wake`."""
        slot.began = now = self._clock()
        self._pool.lead(slot)  # its last attempt is over, and no longer counts as in flight
        for gate in self._gates:
            if (wait := gate.wait(call, now)) != 0.0:
                self._close(gate, wait, now)
                return False
        slot.has_asked = True
        for began in self._on_begin:
            began(slot, call, now)
        if not self._has_limits and self._health.throttle.is_free(now):
            self.is_open, self._answers = True, self._answered
        return True

    def _close(self, gate: Gate, seconds: float | None, now: float) -> None:
        self.closed_by, self._since = gate, now
        self._account.enter(gate.state)
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(seconds, ROUNDING), self.wake)
        self._operator.calls_wait()

    async def opened(self) -> None:
        """Wait until calls may ask again; for one slot at a time."""
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        finally:
            self._woken = None
            self._open()

    def wake(self) -> None:
        """Let the next call ask again; may be called at any time, any number of times."""
        if self._woken is None:
            self._open()
        elif not self._woken.done():
            self._woken.set_result(None)

    def _open(self) -> None:
        if (gate := self.closed_by) is None:
            return
        self.closed_by = None
        self._account.enter(State.CALLS_BUSY)  # until it turns out that another gate is closed
        waited = self._clock() - self._since
        if gate is self._gates[0]:  # the refusals
            self._counters.totals.refused_seconds += waited
        elif gate.limits:
            self._limit_seconds[gate.limit] += waited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _answered(self) -> int:
        """How many attempts were not refused, of those that need not be reported."""
        return self._counters.calls_answered + self._others

    def ended(self, slot: Slot, error: BaseException | None, now: float) -> None:
        """An attempt is over. One that did not have to ask need not be reported, unless it has ended with an error."""
        self.failed += error is not None
        if not slot.has_asked:
            if self.is_open:
                self._ended_unasked(slot, error, now)
            return
        outcome = CallOutcome.ANSWERED if error is None else self._health.outcome_of(error)
        for ended in self._on_end:
            ended(slot, outcome, error, now)
        slot.has_asked = False
        self._health.attempts += slot.counts_for_breaker
        if self.closed_by is not None:
            self.slot_is_free()

    def _ended_unasked(self, slot: Slot, error: BaseException | None, now: float) -> None:
        if self._health.refusal_of(error) is not None:
            answers, self._answers = self._answered - self._answers, self._answered
            self.is_open = self._health.refused(slot, error, max(0, answers), now)
        else:
            self._others += 1
            if self._health.is_refused and self._health.outcome_of(error) is CallOutcome.ANSWERED:
                self._health.accepted(now)

    def unsatisfied(self, now: float) -> None:
        """An attempt has a result that is not good enough; it was not refused."""
        self._others += 1
        self._health.accepted(now)

    def slot_is_free(self) -> None:
        """A call has left its slot: a gate that counts calls in flight, or learns from their ends, may have opened."""
        if self.closed_by is not None and self.closed_by.follows_calls:
            self.wake()
