"""What refusals of the service say: calls pause, or begin at a pace; and when the service refuses for good."""

from __future__ import annotations

import dataclasses
import math

from .._coordination.health import SharedHealth
from .._errors.exceptions import FatalError
from .._errors.http import Refusal, refusal_of, retry_after, status_of
from .._errors.records import error_text, is_fatal
from .._policies.call_outcome import CallOutcome
from .._policies.options import Options
from .._policies.throttle import RefusedForGood, Throttle
from .gates import Gate
from .interfaces import CallingOperator
from .row import Call
from .slots import CallSlot, SlotPool

CLOCKS_APART = 0.1  # seconds by which the clocks of two tasks may differ
NEWS_WITHIN = 5.0  # seconds after which a task knows at the latest that calls of another were accepted


class RefusalGate(Gate):
    """Refusals: all calls pause, or begin at a pace, when there is evidence that the service needs it.

    If the service refuses for good, the task ends, with one error for all its rows.
    """

    # longest: seconds; longer waits that a service asks for are capped; 0: refusals are errors like others
    # shared: what the other tasks know; None: this task has no coordinator

    def __init__(self, operator: CallingOperator, options: Options, pool: SlotPool) -> None:
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
        self.for_good = RefusedForGood(self._options.patience + NEWS_WITHIN)

    def wait(self, call: Call, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + CLOCKS_APART and until > self.throttle.until + CLOCKS_APART:
                self.throttle.pause(until, now)
        return 0.0 if self.throttle.is_free(now) else self.throttle.wait(self._pool.in_flight, now)

    def began(self, slot: CallSlot, call: Call, now: float) -> None:
        self.throttle.began(now)

    def ended(self, slot: CallSlot, outcome: CallOutcome, error: BaseException | None, now: float) -> None:
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
