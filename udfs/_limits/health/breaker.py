"""The circuit breaker of a task, and its gate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import FatalError
from ..._errors.failure import Failure
from ..._observe.time_account import State
from ..._observe.waits import Waiting
from ..gate import AskingAttempt, Gate
from ..rates.option import TIME_ROUNDING
from .option import WINDOWS_KEPT, CircuitBreaker

if TYPE_CHECKING:
    from .job import SharedHealth


class Breaker:
    """The circuit breaker of one task.

    Each call runs under a ticket. Its end counts only while that ticket is the newest: a call that began before the
    breaker opened, and ends while it is open, says nothing new.
    """

    # closed: open_since is None; every call gets the same ticket
    # open: calls wait; at _probe_at one of them, the probe, gets a ticket of its own; no other begins until it ends
    # _ticket grows whenever the breaker opens or closes, and for each probe
    # _failed: whether each of the last calls failed, the newest first; of those since it has closed

    def __init__(self, options: CircuitBreaker) -> None:
        self._options = options
        self._open_for, _ = options.times
        self._failed: deque[bool] = deque(maxlen=WINDOWS_KEPT * options.window)
        self._ticket = 0
        self._is_probing = False
        self._probe_at = 0.0
        self.open_since: float | None = None

    def admit(self, now: float) -> int | None:
        """The ticket of a call that may begin; None if it has to wait."""
        if self.open_since is not None:
            if self._is_probing or now < self._probe_at:
                return None
            self._is_probing = True
            self._ticket += 1
        return self._ticket

    def wait(self, now: float) -> float | None:
        """Seconds until a call may begin, 0.0 if one may now; None until the probe under way has ended."""
        if self.open_since is None:
            return 0.0
        return None if self._is_probing else max(0.0, self._probe_at - now)

    def ended(self, ticket: int, outcome: CallOutcome, now: float) -> None:
        """A call that was admitted is over; one that was cancelled too, as `NOTHING`."""
        if ticket != self._ticket:
            return
        if self._is_probing:
            self._is_probing = False
            if outcome in (CallOutcome.ANSWERED, CallOutcome.THROTTLED):
                self.open_since = None
                self._ticket += 1
                self._failed.clear()
            elif outcome is CallOutcome.DOWN:
                self._failed.appendleft(True)
                self._try_later(now)
        elif outcome in (CallOutcome.ANSWERED, CallOutcome.DOWN):
            self._failed.appendleft(outcome is CallOutcome.DOWN)
            if self.open_since is None and self._options.opens(self._failed):
                self.open_since = now
                self._ticket += 1
                self._try_later(now)

    def _try_later(self, now: float) -> None:
        self._probe_at = now + (self._open_for if self._options.is_dead(self._failed) else 0.0)

    @property
    def is_in_doubt(self) -> bool:
        """Whether more calls fail than chance explains, but too few to open the breaker."""
        return self._options.doubts(self._failed)


class BreakerGate(Gate):
    """The circuit breaker; `text_of` gives the text of an error for the message of the error that ends the task."""

    # breaker: of the task, or of the job if the task has a coordinator
    # _last, _last_outcome: the last failure, for that message
    # _probe: the ticket of the last call that probed the service
    # attempts: that have ended, and count

    state = State.BREAKER
    waiting = Waiting.BREAKER

    def __init__(self, options: CircuitBreaker, function: str, text_of: Callable[[BaseException], str]) -> None:
        self.breaker: Breaker | SharedHealth = Breaker(options)
        _, self._max_open = options.times
        self._function = function
        self._text_of = text_of
        self._last: str | None = None
        self._last_outcome: CallOutcome | None = None
        self._probe: int | None = None
        self.attempts = 0
        self._reported = self._replied = 0  # `attempts` at the last reply of the coordinator, and at the one before
        self._is_shared = False

    def share(self, shared: SharedHealth) -> None:
        """Use the circuit breaker of the whole job from now on."""
        self.breaker, self._is_shared, shared.replied = shared, True, self._note_reply

    def _note_reply(self) -> None:
        self._replied, self._reported = self._reported, self.attempts

    @property
    def judged(self) -> int:
        """How many attempts the breaker has judged; a breaker of the job judges when the coordinator answers."""
        return self._replied if self._is_shared else self.attempts

    @property
    def is_broken(self) -> bool:
        return self.breaker.open_since is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the service may be dead though it is closed."""
        return self.breaker.is_in_doubt

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        since = self.breaker.open_since
        # First, for there may always be one more call to probe with.
        if since is not None and now - since >= self._max_open:
            error = FatalError(self._given_up())
            error.option = "breaker"
            raise error
        wait = self.breaker.wait(now)
        if wait == 0.0:
            return wait
        assert since is not None
        end = max(TIME_ROUNDING, since + self._max_open - now)  # not 0.0, which lets a call begin
        return end if wait is None else min(wait, end)

    @property
    def closed_since(self) -> float | None:
        return self.breaker.open_since

    @property
    def longest(self) -> float:
        return self._max_open

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

    def began(self, attempt: AskingAttempt, now: float) -> None:
        is_open = self.breaker.open_since is not None
        attempt.counts_for_breaker = is_open or not attempt.is_excused
        ticket = self.breaker.admit(now)
        assert ticket is not None
        attempt.ticket = ticket
        if is_open:
            self._probe = ticket

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        if outcome is CallOutcome.DOWN and not attempt.counts_for_breaker:
            outcome = CallOutcome.NOTHING
        if failure is not None and (outcome is CallOutcome.DOWN or attempt.ticket == self._probe):
            self._last, self._last_outcome = self._text_of(failure.error), outcome
        self.breaker.ended(attempt.ticket, outcome, now)
        self.attempts += attempt.counts_for_breaker
