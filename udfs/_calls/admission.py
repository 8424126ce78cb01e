"""What a call asks before each of its attempts begins: whether the limits of the function have room for it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from .._errors.http import Refusal, refusal_of
from .._errors.records import is_fatal
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.rate_limit import ROUNDING
from .._policies.service_signs import ServiceSign
from .._policies.throttle import Throttle
from .call import Call
from .slots import CallSlot, SlotPool

__all__ = ("NOT_NEEDED", "Admission", "Gate")


APART = 0.1  # seconds: the same time, on the clocks of two tasks
NOT_NEEDED = asyncio.CancelledError()  # how an attempt has ended that we have cancelled: it tells nobody anything


class Gate:
    """One limit, as attempts meet it; every method is called on the event loop.

    Attributes:
        state: what the time goes to while a call waits here.
    """

    state = State.LIMIT

    def wait(self, call: Call, now: float) -> float | None:
        """0.0 if an attempt may begin now; else the seconds after which to ask again; None if `wake` tells when.

        Raises:
            FatalError: no call may begin any more.
        """
        return 0.0

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        """An attempt of the call begins in this slot."""

    def ended(self, slot: CallSlot, sign: ServiceSign, error: BaseException | None, now: float) -> None:
        """The attempt is over; called once for each that began."""


class SharedPause(Protocol):
    """The pause of a function's calls, as the tasks of a job share it."""

    paused_until: float | None  # None: not known yet

    def pause(self, until: float) -> None: ...


class ThrottleGate(Gate):
    """The refusals of the service: all calls pause, or go on at a pace, when there is evidence that it needs that.

    Args:
        longest: seconds; longer waits that a service asks for are capped; 0: refusals are errors like others.
    """

    # shared: the pauses of the other tasks of the job; None: there are none, or none that this task learns of

    def __init__(self, pool: SlotPool, longest: float, now: float) -> None:
        self._pool = pool
        self._longest = longest
        self.throttle = Throttle(now)
        self.shared: SharedPause | None = None

    def wait(self, call: Call, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + APART and until > self.throttle.until + APART:
                self.throttle.pause(until, now)
        return self.throttle.wait(self._pool.in_flight, now)

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        self.throttle.began(now)

    def ended(self, slot: CallSlot, sign: ServiceSign, error: BaseException | None, now: float) -> None:
        # A call that did not ask has begun while there was no limit.
        began = now if slot.admitted is None else slot.admitted
        if sign is ServiceSign.NOTHING:
            self.throttle.gave_up(began)
        elif (refusal := self.refusal_of(error)) is None:
            self.throttle.answered(1, began, now)
        else:
            self.throttle.refused(now + refusal.seconds, began, now)
            if self.shared is not None and self.throttle.until > now:
                self.shared.pause(self.throttle.until)

    def refusal_of(self, error: BaseException | None) -> Refusal | None:
        """The refusal in an error, with its wait capped; None if the error is none."""
        refusal = None if error is None or not self._longest or is_fatal(error) else refusal_of(error)
        return None if refusal is None else dataclasses.replace(refusal, wait=min(refusal.seconds, self._longest))


class Admission:
    """The gates of one function in one task.

    Args:
        sign_of: what the end of an attempt tells of the service.
    """

    # One call waits at the gates, in the slot that has pulled it; the others wait where they are, in the input or in
    # `Calls.ready`. So rows begin in their order, and the slot that waits counts as the one that pulls.
    #
    # is_open: no gate has to be asked, so that calls may begin without a word
    # lets_in: no call waits, and none was turned away since the last one passed, so that `admits` may be asked
    # newcomer: stands for all rows that were never called; None if each has costs of its own, which only its call knows
    # waiting: the call that waits
    # attempts: that have ended, of those that tell of the service
    # look: called when one has, or the breaker may have opened, or nothing more may come
    # begins_to_wait: called when a call does, `waiting` is set
    # heard: how often it has been heard what other tasks know, see Suspects
    # costs_of: the permits of an attempt, for each rate limit; the user's own code
    # refuse: called with a call that has no costs, and why

    def __init__(
        self,
        pool: SlotPool,
        counters: TaskCounters,
        loop: asyncio.AbstractEventLoop,
        sign_of: Callable[[BaseException | None], ServiceSign],
        longest_wait: float,
    ) -> None:
        self._pool = pool
        self._counters = counters
        self._account = counters.account
        self._clock = counters.clock
        self._loop = loop
        self._sign_of = sign_of
        self.refusals = ThrottleGate(pool, longest_wait, self._clock())
        self._has_limits = False
        self._calls_before = 0
        self._woken: asyncio.Future[None] | None = None
        self.use(())
        self.look: Callable[[], None] = lambda: None
        self.begins_to_wait: Callable[[], None] = lambda: None
        self.breaks: Callable[[], bool] = lambda: False
        self.is_in_doubt: Callable[[], bool] = lambda: False
        self.heard: Callable[[], int] = itertools.count(step=2).__next__  # where nobody else has to be heard
        self.costs_of: Callable[[Call], Sequence[float]] | None = None
        self.refuse: Callable[[Call, BaseException], None]
        self.attempts = 0
        self.waiting: Call | None = None

    def use(self, gates: Sequence[Gate], costs: Sequence[float] | None = (), shared: SharedPause | None = None) -> None:
        """From now on attempts ask these, in their order; one whose `wait` takes what it grants is the last.

        Args:
            costs: of each attempt, in permits of each rate limit; None: `costs_of` tells.
            shared: the pauses of other tasks.
        """
        self.refusals.shared = shared
        self._gates = [self.refusals, *gates]
        self._told_begin = [gate.began for gate in self._gates if type(gate).began is not Gate.began]
        self._told_end = [gate.ended for gate in self._gates if type(gate).ended is not Gate.ended]
        self._has_limits = bool(gates) or shared is not None
        self.is_open = not self._has_limits
        self.lets_in = costs is not None
        self.newcomer: Call | None = None
        if costs is not None:
            self.newcomer = Call((), (), 0.0)
            self.newcomer.costs = costs

    @property
    def is_broken(self) -> bool:
        """Whether the circuit breaker is open."""
        return self.breaks()

    def is_down(self, error: BaseException) -> bool:
        """Whether an attempt that ended so tells that the service is down."""
        return self._sign_of(error) is ServiceSign.DOWN

    def admits(self, slot: CallSlot) -> float | None:
        """Begin the first attempt of a row in this slot, and tell when that was; None if it has to wait."""
        self._pool.pulls(slot)
        call, now = self.newcomer, self._clock()
        for gate in self._gates:
            if gate.wait(call, now) != 0.0:  # type: ignore[arg-type]
                self.lets_in = False
                return None
        slot.admitted = now
        for began in self._told_begin:
            began(slot, call, now)  # type: ignore[arg-type]
        return now

    async def begin(self, slot: CallSlot, call: Call) -> bool:
        """Wait until an attempt of the call may begin; False if it needs none by then."""
        if self.newcomer is not None:
            call.costs = self.newcomer.costs
        elif self.costs_of is not None and call.costs is None:
            try:
                call.costs = self.costs_of(call)
            except BaseException as error:  # code of the user's
                self.refuse(call, error)
                return False
        has_waited = False
        is_second = bool(call.undecided)
        self._pool.pulls(slot)  # what it was in until now is over, and takes no room of a limit
        while not (call.done or (is_second and not call.undecided)):
            now = self._clock()
            closed = self._closed(call, now)
            if closed is None:
                slot.admitted = now
                for began in self._told_begin:
                    began(slot, call, now)
                if has_waited:
                    self._account.enter(State.CALLS_BUSY)
                self._open_again(now)
                self.lets_in = self.is_open or (self._has_limits and self.newcomer is not None)
                return True
            has_waited, self.lets_in = True, False
            gate, wait = closed
            self._account.enter(gate.state)
            await self._wait(call, wait)
            if gate is self.refusals:
                self._counters.totals.refused_seconds += self._clock() - now
        return False

    def _closed(self, call: Call, now: float) -> tuple[Gate, float | None] | None:
        """What the call has to wait for, and how long; None if it may begin."""
        for gate in self._gates:
            if (wait := gate.wait(call, now)) != 0.0:
                return gate, wait
        return None

    async def _wait(self, call: Call, seconds: float | None) -> None:
        woken = self._woken = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(max(seconds, ROUNDING), self.wake)
        self.waiting = call
        self.begins_to_wait()
        try:
            await woken
        finally:
            self.waiting = self._woken = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Let the call that waits ask again; may be called at any time, and once too often does no harm."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def ended(self, slot: CallSlot, error: BaseException | None) -> None:
        """An attempt is over: one that the gates have let in, or one that has ended with an error."""
        if slot.admitted is None:
            if self.is_open and self.refusals.refusal_of(error) is not None:
                self._refused_while_open(slot, error)
            return
        sign = ServiceSign.NOTHING if error is NOT_NEEDED else self._sign_of(error)
        now = self._clock()
        for ended in self._told_end:
            ended(slot, sign, error, now)
        slot.admitted = None
        self.attempts += slot.is_evidence
        self.look()
        self.wake()

    def _refused_while_open(self, slot: CallSlot, error: BaseException | None) -> None:
        """The service has refused an attempt; so far none had to ask before it began, and nobody counts answers."""
        throttle, now, calls = self.refusals.throttle, self._clock(), self._counters.calls_answered
        throttle.answered(max(0, calls - self._calls_before), now, now)
        self._calls_before = calls
        self.refusals.ended(slot, ServiceSign.THROTTLED, error, now)
        self.is_open = self.lets_in = throttle.is_free(now)

    def _open_again(self, now: float) -> None:
        if not (self.is_open or self._has_limits) and self.refusals.throttle.is_free(now):
            self.is_open, self._calls_before = True, self._counters.calls_answered
