"""The account of time: each second of an operator's life belongs to exactly one state."""

from __future__ import annotations

import enum
from collections.abc import Callable

from .spark_thread import SparkThread

__all__ = ("State", "TimeAccount")


class State(enum.Enum):
    """What an operator's time goes to; the value is what people read."""

    CALLS_BUSY = "calls busy"  # all call slots are in use
    HEAD_OF_LINE = "head of line"  # slots are free, but the queue is full behind rows that are not done
    INPUT = "input"  # slots are free, and there is nothing to start
    OUTPUT = "output"  # held back by Spark or by the next operator
    LIMIT = "limit"  # waits for a permit
    BREAKER = "breaker"  # the circuit breaker is open
    STORE = "store"  # waits for stored results
    BLOCKED_LOOP = "blocked loop"  # code that does not give way keeps the event loop from everything else
    WINDING_DOWN = "winding down"  # fewer rows are left than slots; also opening and closing


class TimeAccount:
    """Seconds in each state, from the start to the last look.

    Args:
        clock: seconds.
        spark_thread: tells of `INPUT` how much was `OUTPUT`.
        waited: seconds that have passed before, without any input.
    """

    # sum of _seconds == _since - the start; _since <= clock(); _looked: what they were when `look` was called last

    def __init__(
        self, clock: Callable[[], float], spark_thread: SparkThread | None = None, waited: float = 0.0
    ) -> None:
        self._clock = clock
        self._spark_thread = spark_thread
        self._since = clock()
        self._away = 0.0  # how long Spark's thread had been by then
        self._seconds = dict.fromkeys(State, 0.0)
        self._seconds[State.INPUT] = waited
        self._looked = dict(self._seconds)
        self.state = State.WINDING_DOWN

    def enter(self, state: State) -> None:
        """From now on time goes to this state."""
        if state is not self.state:
            self._settle()
            self.state = state

    def look(self, *, was_blocked: bool) -> dict[State, float]:
        """The account until now; it adds up to the time since the start.

        Args:
            was_blocked: nothing of it since the last look was spent as it seemed: the loop was blocked.
        """
        self._settle()
        if was_blocked:
            passed = sum(self._seconds.values()) - sum(self._looked.values())
            self._seconds = dict(self._looked)
            self._seconds[State.BLOCKED_LOOP] += passed
        self._looked = dict(self._seconds)
        return dict(self._seconds)

    def _settle(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        if self._spark_thread is not None:
            before, self._away = self._away, self._spark_thread.seconds_away()
            if self.state is State.INPUT:
                away = min(passed, max(0.0, self._away - before))
                self._seconds[State.OUTPUT] += away
                passed -= away
        self._seconds[self.state] += passed
