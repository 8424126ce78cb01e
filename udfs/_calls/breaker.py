"""The circuit breaker, and the failed rows that wait until it shows whether their service is dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from .._coordination.health import SharedHealth
from .._errors.exceptions import FatalError
from .._metrics.time_account import State
from .._policies.call_outcome import CallOutcome
from .._policies.circuit_breaker import Breaker, CircuitBreaker
from .._policies.failure import Failure
from .._policies.rate_limit import ROUNDING
from .attempt import Attempt
from .gates import Gate
from .row import NO_TROUBLE, Row


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

    def wait(self, attempt: Attempt, now: float) -> float | None:
        if self.breaker.has_given_up(now):  # first, for there may always be one more call to probe with
            error = FatalError(self._given_up())
            error.option = "breaker"
            raise error
        wait = self.breaker.wait(now)
        if wait == 0.0:
            return wait
        assert self.breaker.open_since is not None
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

    def began(self, attempt: Attempt, now: float) -> None:
        is_open = self.breaker.open_since is not None
        attempt.counts_for_breaker = (
            is_open or attempt.rows[0].trouble is NO_TROUBLE or not all(row.trouble.is_excused for row in attempt.rows)
        )
        ticket = self.breaker.admit(now)
        assert ticket is not None
        attempt.ticket = ticket
        if is_open:
            self._probe = ticket

    def ended(self, attempt: Attempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        if outcome is CallOutcome.DOWN and not attempt.counts_for_breaker:
            outcome = CallOutcome.NOTHING
        if failure is not None and (outcome is CallOutcome.DOWN or attempt.ticket == self._probe):
            self._last, self._last_outcome = self._text_of(failure.error), outcome
        self.breaker.ended(attempt.ticket, outcome, now)


class JudgedService(Protocol):
    """What a task knows of its service.

    Attributes:
        attempts: how many have ended, of those that count for the breaker.
    """

    attempts: int

    @property
    def judged(self) -> int: ...  # of how many attempts it is known whether they have opened the breaker
    @property
    def is_broken(self) -> bool: ...
    @property
    def is_in_doubt(self) -> bool: ...


class _Held(NamedTuple):
    row: Row
    outcome: Any
    failure: Failure  # of its last attempt
    attempts: int  # that had ended by then


class HeldFailures:
    """Rows that failed as if the service were dead; they wait until the circuit breaker shows whether it is.

    Args:
        window: how many more attempts must end before a row has failed for good.
    """

    # The breaker opens because of failures among the last `window` attempts. A row whose failure is no longer among
    # them has failed by itself.

    def __init__(self, window: int, service: JudgedService) -> None:
        self._window = window
        self._service = service
        self._held: deque[_Held] = deque()  # in the order in which they failed

    def __iter__(self) -> Iterator[Row]:
        return (held.row for held in self._held)

    def hold(self, row: Row, outcome: Any, failure: Failure) -> None:
        """Hold a row that has failed, with what it comes to if its service lives."""
        self._held.append(_Held(row, outcome, failure, self._service.attempts))

    def excused(self) -> Iterator[tuple[Row, Failure]]:
        """Release all rows if the breaker has opened, with their failures: they are to be called again."""
        if self._service.is_broken:
            held, self._held = self._held, deque()
            yield from ((one.row, one.failure) for one in held)

    def failed(self, *, is_last: bool = False) -> Iterator[tuple[Row, Any]]:
        """Release the rows that have failed for good, with their outcomes.

        Args:
            is_last: no attempt is in flight whose end could open the breaker.
        """
        while self._held and self._has_failed(self._held[0], is_last):
            held = self._held.popleft()
            yield held.row, held.outcome

    def _has_failed(self, held: _Held, is_last: bool) -> bool:
        if is_last:
            return held.attempts <= self._service.judged
        return held.attempts + self._window <= self._service.judged and not self._service.is_in_doubt
