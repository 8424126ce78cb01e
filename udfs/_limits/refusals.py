"""The gate of refusals: when a service asks for fewer calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from .._errors.answers import Refusal
from .._errors.call_outcome import CallOutcome
from .._errors.exceptions import FatalError
from .._errors.failure import Failure
from .._errors.records import error_text
from .._observe.waits import Waiting
from .gate import AskingAttempt, CallingTask, Gate, Slots
from .health import SharedHealth
from .throttle import RefusedForGood, Throttle

CLOCKS_APART = 0.1  # seconds by which the clocks of two tasks may differ
NEWS_WITHIN = 5.0  # seconds after which a task knows at the latest that calls of another were accepted


@dataclasses.dataclass(eq=False, repr=False)
class RefusalGate(Gate):
    """Refusals: all calls pause, or begin at a pace, when there is evidence that the service needs it.

    If the service refuses for good, for `patience` seconds, the task ends, with one error for all its rows. Waits are
    capped at the `longest_wait`; with 0 refusals are errors like others.
    """

    # shared: what the other tasks know; None: this task has no coordinator
    # _refused: the rows of the first call that was refused since one was accepted, as far as `accepted` was told

    task: CallingTask
    slots: Slots
    _: dataclasses.KW_ONLY
    longest_wait: float
    patience: float
    timeout: float | None
    redacted: bool
    shared: SharedHealth | None = dataclasses.field(default=None, init=False)
    _refused: Sequence[Any] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.task.counters.clock())
        self.for_good = RefusedForGood(self.patience)

    def share(self, shared: SharedHealth) -> None:
        """From now on the tasks of the job share what they know."""
        self.shared = shared
        self.for_good = RefusedForGood(self.patience + NEWS_WITHIN)

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + CLOCKS_APART and until > self.throttle.until + CLOCKS_APART:
                self.throttle.pause(until, now)
        return self.throttle.wait(self.slots.in_flight, now)

    waiting = Waiting.REFUSAL

    @property
    def closed_since(self) -> float | None:
        return self.throttle.refuses_since

    @property
    def longest(self) -> float:
        return self.patience

    def began(self, attempt: AskingAttempt, now: float) -> None:
        self.throttle.began(now)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        # A call that did not have to ask has begun while calls were free.
        began = attempt.began if attempt.has_asked else now
        if outcome is CallOutcome.NOTHING:
            self.throttle.gave_up(began)
        elif failure is None or (refusal := self.refusal_of(failure)) is None:
            self.throttle.answered(1, began, now)
            if outcome is CallOutcome.ANSWERED:
                self.accepted(now)
        else:
            self.throttle.refused(now + refusal.seconds, began, now)
            if self.shared is not None and self.throttle.until > now:
                self.shared.pause(self.throttle.until)
            self._refused = self._refused or attempt.rows
            is_one = len(attempt.rows) == 1 and self._refused[0] is attempt.rows[0]
            self._may_end(refusal, began, now, failure, is_one=is_one)

    def accepted(self, now: float) -> None:
        """A call was not refused, whatever its answer was."""
        self._refused = ()
        self.for_good.accepted()
        if self.shared is not None:
            self.shared.accepted = now

    def _may_end(self, refusal: Refusal, began: float, now: float, failure: Failure, *, is_one: bool) -> None:
        """A call was refused: end the task if the service refuses for good.

        `is_one`: no other row was refused since a call was accepted. If the deadline of such a row comes before the
        patience is over, that is its end, and what it fails with is its own.
        """
        for_good, elsewhere = self.for_good, -math.inf if self.shared is None else self.shared.accepted_elsewhere
        answers = self.task.counters.calls_answered
        for_good.refused(now + refusal.seconds, began, now, answers=answers, elsewhere=elsewhere)
        if is_one and self.timeout is not None and self.timeout < self.patience:
            return
        if for_good.is_for_good(began) and for_good.is_for_good(self.slots.oldest):
            self.task.fail(FatalError(self._given_up(failure)))

    def _given_up(self, failure: Failure) -> str:
        status, wait = failure.answer.status, failure.answer.wait
        takes = "as long as a row may take" if self.patience == self.timeout else "as long as it may"
        said = [] if status is None else [f"status {status}"]
        said.append("no wait asked" if wait is None else f"asks to wait {wait:g} s")
        return (
            f"the service of {self.task.name} has refused all calls for {self.patience:g} s, {takes}; the last "
            f"with {error_text(failure.error, redacted=self.redacted)} ({', '.join(said)}). Results in a store= are "
            "kept: run the job again when the service accepts calls"
        )

    def refusal_of(self, failure: Failure | None) -> Refusal | None:
        """The refusal in a failure, with its wait capped; None if there is none."""
        return None if failure is None else failure.refusal(self.longest_wait)
