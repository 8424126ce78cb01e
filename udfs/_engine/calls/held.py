"""Failed rows that wait until the circuit breaker shows whether their service is dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ..._errors.failure import Failure
from .row import Row


class _Held(NamedTuple):
    row: Row
    outcome: Any
    failure: Failure  # of its last attempt
    attempts: int  # that had ended by then


class BreakerView(Protocol):
    """What the circuit breaker has seen and decided; see `Gatekeeper`."""

    attempts: int  # that have ended

    @property
    def judged(self) -> int: ...
    @property
    def is_broken(self) -> bool: ...
    @property
    def is_in_doubt(self) -> bool: ...


class HeldFailures:
    """Rows that failed as if the service were dead; they wait until the circuit breaker shows whether it is.

    A row has failed for good when as many more attempts have ended as the window of the breaker has.
    """

    # The breaker opens because of failures among the last `window` attempts. A row whose failure is no longer among
    # these has failed by itself.

    def __init__(self, window: int, breaker: BreakerView) -> None:
        self._window = window
        self._breaker = breaker
        self._held: deque[_Held] = deque()  # in the order in which they failed

    def __iter__(self) -> Iterator[Row]:
        return (held.row for held in self._held)

    def hold(self, row: Row, outcome: Any, failure: Failure) -> None:
        """Hold a row that has failed, with its outcome for the case that the service lives."""
        self._held.append(_Held(row, outcome, failure, self._breaker.attempts))

    def excused(self) -> Iterator[tuple[Row, Failure]]:
        """Release all rows if the breaker has opened, with their failures: they are to be called again."""
        if self._breaker.is_broken:
            held, self._held = self._held, deque()
            yield from ((one.row, one.failure) for one in held)

    def failed(self, *, is_last: bool = False) -> Iterator[tuple[Row, Any]]:
        """Release the rows that have failed for good; `is_last`: no attempt's end can open the breaker any more."""
        while self._held and self._has_failed(self._held[0], is_last):
            held = self._held.popleft()
            yield held.row, held.outcome

    def _has_failed(self, held: _Held, is_last: bool) -> bool:
        if is_last:
            return held.attempts <= self._breaker.judged
        return held.attempts + self._window <= self._breaker.judged and not self._breaker.is_in_doubt
