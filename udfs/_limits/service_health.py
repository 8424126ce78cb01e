"""What a task knows about the service that its function calls: refusals, circuit breaker, failures it may excuse."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from .._coordination.health import SharedHealth
from .._errors.exceptions import FatalError
from .._errors.http import Refusal, refusal_of, retry_after, status_of
from .._errors.records import error_text, is_fatal, is_no_rows_fault
from .._metrics.time_account import State
from .._policies.call_outcome import CallOutcome, outcome_of
from .._policies.circuit_breaker import Breaker, CircuitBreaker
from .._policies.options import Options
from .._policies.rate_limit import ROUNDING
from .._policies.refused_for_good import RefusedForGood
from .._policies.throttle import Throttle
from .gates import Gate, LimitedOperator, PendingCall, Pool, Slot

__all__ = ("ServiceHealth",)


APART = 0.1  # seconds by which the clocks of two tasks may differ
NEWS = 5.0  # seconds after which a task knows at the latest that calls of another were accepted


class RefusalGate(Gate):
    """Refusals: all calls pause, or begin at a pace, when there is evidence that the service needs it.

    If the service refuses for good, the task ends, with one error for all its rows.
    """

    # longest: seconds; longer waits that a service asks for are capped; 0: refusals are errors like others
    # shared: what the other tasks know; None: this task has no coordinator

    def __init__(self, operator: LimitedOperator, options: Options, pool: Pool) -> None:
        self._operator = operator
        self._options = options
        self._pool = pool
        self._longest = options.longest_wait
        self.throttle = Throttle(operator.counters.clock())
        self.for_good = RefusedForGood(options.patience)
        self.shared: SharedHealth | None = None

    def share(self, shared: SharedHealth) -> None:
        """From now on the tasks of the job share what they know."""
        self.shared = shared
        self.for_good = RefusedForGood(self._options.patience + NEWS)

    def wait(self, call: PendingCall, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + APART and until > self.throttle.until + APART:
                self.throttle.pause(until, now)
        return 0.0 if self.throttle.is_free(now) else self.throttle.wait(self._pool.in_flight, now)

    def began(self, slot: Slot, call: PendingCall, now: float) -> None:
        self.throttle.began(now)

    def ended(self, slot: Slot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        # A call that did not have to ask has begun while calls were free.
        began = slot.began if slot.has_asked else now
        if outcome is CallOutcome.NOTHING:
            self.throttle.gave_up(began)
        elif error is None or (refusal := self.refusal_of(error)) is None:
            self.throttle.answered(1, began, now)
            if outcome is CallOutcome.ANSWERED:
                self.accepted(now)
        else:
            self.throttle.refused(now + refusal.seconds, began, now)
            if self.shared is not None and self.throttle.until > now:
                self.shared.pause(self.throttle.until)
            self._may_end(refusal, began, now, error)

    def accepted(self, now: float) -> None:
        """A call was not refused, whatever its answer was."""
        if self.for_good.is_counting:
            self.for_good.accepted()
        if self.shared is not None:
            self.shared.accepted = now

    def _may_end(self, refusal: Refusal, began: float, now: float, error: BaseException | None) -> None:
        """A call was refused: end the task if the service refuses for good."""
        for_good, elsewhere = self.for_good, -math.inf if self.shared is None else self.shared.accepted_elsewhere
        answers = self._operator.counters.calls_answered
        for_good.refused(now + refusal.seconds, began, now, answers=answers, elsewhere=elsewhere)
        if for_good.is_for_good(began) and for_good.is_for_good(self._pool.oldest):
            assert error is not None
            self._operator.fail(FatalError(self._given_up(error)))

    def _given_up(self, error: BaseException) -> str:
        options, status, wait = self._options, status_of(error), retry_after(error)
        takes = "as long as a row may take" if options.patience == options.timeout else "as long as it may"
        said = [] if status is None else [f"status {status}"]
        said.append("no wait asked" if wait is None else f"asks to wait {wait:g} s")
        return (
            f"the service of {self._operator.name} has refused all calls for {options.patience:g} s, {takes}; the last "
            f"with {error_text(error, options.redact)} ({', '.join(said)}). Results in a store= are kept: run the job "
            "again when the service accepts calls"
        )

    def refusal_of(self, error: BaseException | None) -> Refusal | None:
        """The refusal in an error, with its wait capped; None if there is none."""
        refusal = None if error is None or not self._longest or is_fatal(error) else refusal_of(error)
        return None if refusal is None else dataclasses.replace(refusal, wait=min(refusal.seconds, self._longest))


class BreakerGate(Gate):
    """The circuit breaker.

    Args:
        text_of: the text of an error, for the message of the error that ends the task.
    """

    # breaker: of the task, or of the job if the task has a coordinator
    # _last, _last_outcome: the last failure, for that message
    # _probe: the ticket of the last call that probed the service

    state = State.BREAKER

    def __init__(self, options: CircuitBreaker, function: str, text_of: Callable[[BaseException], str]) -> None:
        self.breaker: Breaker | SharedHealth = Breaker(options)
        _, self._max_open = options.times
        self._function = function
        self._text_of = text_of
        self._last: str | None = None
        self._last_outcome: CallOutcome | None = None
        self._probe: int | None = None

    def wait(self, call: PendingCall, now: float) -> float | None:
        if self.breaker.has_given_up(now):  # first, for there may always be one more call to probe with
            error = FatalError(self._given_up())
            error.option = "breaker"
            raise error
        wait = self.breaker.wait(now)
        if wait == 0.0:
            return wait
        assert self.breaker.open_since is not None
        if wait is None:
            self.breaker.admit(now)  # it admits no call, but learns that there is one to probe with
        end = max(ROUNDING, self.breaker.open_since + self._max_open - now)  # not 0.0, which lets a call begin
        return end if wait is None else min(wait, end)

    def _given_up(self) -> str:
        if self._last_outcome is CallOutcome.NOTHING:
            return (
                f"the circuit breaker of {self._function} has been open for {self._max_open:g} s, its max_open, and no "
                f"call has shown that the service is back: the last that tried it ended with {self._last}, which says "
                "nothing about a service. No row was given up for it: mend the function if the error is its own, and "
                "run the job again"
            )
        last = "" if self._last is None else f"; the last call that tried it ended with {self._last}"
        return (
            f"the service of {self._function} has given no answer for {self._max_open:g} s, the max_open of its "
            f"circuit breaker{last}. No row was given up for it: run the job again when the service is back"
        )

    def began(self, slot: Slot, call: PendingCall, now: float) -> None:
        is_open = self.breaker.open_since is not None
        slot.counts_for_breaker = is_open or not call.trouble.is_excused
        ticket = self.breaker.admit(now)
        assert ticket is not None
        slot.ticket = ticket
        if is_open:
            self._probe = ticket

    def ended(self, slot: Slot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
        if outcome is CallOutcome.DOWN and not slot.counts_for_breaker:
            outcome = CallOutcome.NOTHING
        if error is not None and (outcome is CallOutcome.DOWN or slot.ticket == self._probe):
            self._last, self._last_outcome = self._text_of(error), outcome
        self.breaker.ended(slot.ticket, outcome, now)


class ServiceHealth:
    """What a task knows of its service: the gates of refusals and breaker, and the failed calls that wait for it."""

    # attempts: how many have ended, of those that count for the breaker
    # _reported, _answered: how many had ended at the last reply of the coordinator, and at the one before
    # held: failed calls; None: there is no breaker

    def __init__(self, operator: LimitedOperator, options: Options, pool: Pool) -> None:
        self._operator = operator
        self._options = options
        self._refusals = RefusalGate(operator, options, pool)
        self.throttle = self._refusals.throttle
        self.refusal_of = self._refusals.refusal_of
        self.attempts = self._reported = self._answered = 0
        self.held: HeldFailures | None = None
        self.gates: list[Gate] = [self._refusals]
        self._breaker: BreakerGate | None = None
        if options.breaker is not None:
            self.held = HeldFailures(options.breaker.window, self)
            self._breaker = BreakerGate(options.breaker, operator.name, partial(error_text, redact=options.redact))
            self.gates.append(self._breaker)

    def share(self, shared: SharedHealth) -> None:
        """From now on the tasks of the job share what they know."""
        self._refusals.share(shared)
        shared.replied = self._replied
        if self._breaker is not None:
            self._breaker.breaker = shared

    @property
    def has_limits(self) -> bool:
        """Whether each attempt has to ask, even if nothing was refused."""
        return self._breaker is not None or self._refusals.shared is not None

    @property
    def is_broken(self) -> bool:
        """Whether the circuit breaker is open."""
        return self._breaker is not None and self._breaker.breaker.open_since is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the service may be dead though the breaker is closed."""
        return self._breaker is not None and self._breaker.breaker.is_in_doubt()

    def _replied(self) -> None:
        self._answered, self._reported = self._reported, self.attempts

    @property
    def answered(self) -> int:
        """Of how many attempts it is known whether they have opened the breaker; the coordinator has to say it."""
        return self.attempts if self._refusals.shared is None else self._answered

    def refused(self, slot: Slot, error: BaseException | None, answers: int, now: float) -> bool:
        """An attempt that did not have to ask was refused, after so many answers; returns whether calls stay free."""
        self.throttle.answered(answers, now, now)
        self._refusals.ended(slot, CallOutcome.THROTTLED, error, now)
        return self.throttle.is_free(now)

    @property
    def is_refused(self) -> bool:
        """Whether a call was refused, and none was accepted since, as far as it is known."""
        return self._refusals.for_good.is_counting

    def accepted(self, now: float) -> None:
        """A call was not refused, though it may have another error, or a result that is not good enough."""
        self._refusals.accepted(now)

    def outcome_of(self, error: BaseException | None) -> CallOutcome:
        """The outcome of an attempt that ended with this error; never raises."""
        breaker = self._options.breaker
        if breaker is None or breaker.failure_on is None:
            return outcome_of(error)
        try:
            return breaker.outcome_of(error)
        except BaseException as own:  # code of the user's
            fatal = FatalError(
                f"failure_on of the circuit breaker of {self._operator.name} must say of any exception whether the "
                f"service has failed, and raised {error_text(own, self._options.redact)}"
            )
            fatal.__cause__ = own
            self._operator.fail(fatal)
            return CallOutcome.NOTHING


@dataclasses.dataclass
class _Held:
    call: PendingCall
    outcomes: Sequence[Any]
    attempts: int  # that had ended by then


class HeldFailures:
    """Calls that failed as if the service were dead; they wait until the circuit breaker shows whether it is.

    Args:
        window: how many more attempts must end before a call has failed for good.
    """

    # The breaker opens because of failures among the last `window` attempts. A call whose failure is no longer among
    # them has failed by itself.

    def __init__(self, window: int, health: ServiceHealth) -> None:
        self._window = window
        self._health = health
        self._held: deque[_Held] = deque()  # in the order in which they failed

    def __iter__(self) -> Iterator[Any]:
        return (held.call for held in self._held)

    def hold(self, call: PendingCall, outcomes: Sequence[Any], cause: BaseException | None = None) -> bool:
        """Hold a failed call if the service may be dead; `cause`: its error, if the outcomes have none."""
        errors = [outcome for outcome in (*outcomes, cause) if isinstance(outcome, BaseException)]
        health = self._health
        is_down = any(health.outcome_of(error) is CallOutcome.DOWN for error in errors)
        if not is_down or any(map(is_no_rows_fault, errors)):
            return False
        call.own_trouble().is_held = True
        self._held.append(_Held(call, outcomes, health.attempts))
        return True

    def excused(self) -> Iterator[Any]:
        """Release all calls if the breaker has opened: they are to be called again."""
        if self._health.is_broken:
            held, self._held = self._held, deque()
            yield from (one.call for one in held)

    def failed(self, *, is_last: bool = False) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Release the calls that have failed for good, with their outcomes.

        Args:
            is_last: no attempt is in flight whose end could open the breaker.
        """
        while self._held and self._has_failed(self._held[0], is_last):
            held = self._held.popleft()
            held.call.own_trouble().is_held = False
            yield held.call, held.outcomes

    def _has_failed(self, held: _Held, is_last: bool) -> bool:
        if is_last:
            return held.attempts <= self._health.answered
        return held.attempts + self._window <= self._health.answered and not self._health.is_in_doubt
