"""The account of time: each second of an operator's life belongs to exactly one of nine states."""

from __future__ import annotations

import enum
from collections.abc import Callable


class State(enum.Enum):
    """What an operator's time goes to; the value is the name that users see."""

    CALLS_BUSY = "calls busy"  # all call slots are in use
    HEAD_OF_LINE = "head of line"  # slots are free, but the queue is full behind rows that are not done
    INPUT = "input"  # slots are free, and there is nothing to start
    OUTPUT = "output"  # held back by Spark or by the next operator
    LIMIT = "limit"  # waits for a permit
    BREAKER = "breaker"  # the circuit breaker is open
    STORE = "store"  # waits for stored results
    BLOCKED_LOOP = "blocked loop"  # code that does not await keeps the event loop from everything else
    START_AND_END = "start and end"  # fewer rows are left than slots; also opening and closing


class TimeAccount:
    """Seconds in each state, from the start to the last look; those `waited` before it were without input.

    While Spark's thread is away, `INPUT` counts as `OUTPUT`.
    """

    # sum of _seconds == _since - the start; _since <= clock(); _looked: what they were when `look` was called last

    def __init__(
        self, clock: Callable[[], float], spark_thread: SparkThread | None = None, waited: float = 0.0
    ) -> None:
        self._clock = clock
        self._spark_thread = spark_thread
        self._since = clock()
        self._away = 0.0  # seconds for which Spark's thread had been away at `_since`
        self._seconds = dict.fromkeys(State, 0.0)
        self._seconds[State.INPUT] = waited
        self._looked = dict(self._seconds)
        self.state = State.START_AND_END

    def enter(self, state: State) -> None:
        """From now on time goes to this state."""
        if state is not self.state:
            self._add_passed()
            self.state = state

    def move(self, source: State, target: State) -> None:
        """Count all time that went to one state until now as time of another."""
        self._add_passed()
        self._seconds[target] += self._seconds[source]
        self._seconds[source] = 0.0

    def look(self, *, was_blocked: bool) -> dict[State, float]:
        """The account until now; it adds up to the time since the start.

        If the loop was blocked since the last look, all of that time counts as blocked.
        """
        self._add_passed()
        if was_blocked:
            passed = sum(self._seconds.values()) - sum(self._looked.values())
            self._seconds = dict(self._looked)
            self._seconds[State.BLOCKED_LOOP] += passed
        self._looked = dict(self._seconds)
        return dict(self._seconds)

    def _add_passed(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        if self._spark_thread is not None:
            before, self._away = self._away, self._spark_thread.away.seconds()
            if self.state is State.INPUT:
                away = min(passed, max(0.0, self._away - before))
                self._seconds[State.OUTPUT] += away
                passed -= away
        self._seconds[self.state] += passed


class Stopwatch:
    """How long something lasted, all times together; one thread starts and stops it, another may read it."""

    # _spent: how long it lasted before, and since when it does now (None: it does not); both are set in one step, so
    # that a reader in between counts no moment twice and misses none

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: tuple[float, float | None] = (0.0, None)

    def start(self) -> None:
        self._spent = (self.seconds(), self._clock())

    def stop(self) -> None:
        self._spent = (self.seconds(), None)

    @property
    def since(self) -> float | None:
        """When it has begun to last; None: it does not."""
        return self._spent[1]

    def seconds(self) -> float:
        before, since = self._spent
        return before if since is None else before + self._clock() - since


class SparkThread:
    """What Spark's thread is doing: it is away to pass results to Spark, and brings no input; or it waits for the loop.

    While it waits it does not keep the loop from running.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.away, self.waiting = Stopwatch(clock), Stopwatch(clock)


def seconds_without_processor() -> float:
    """How long this thread could have worked and was not let, since it began; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:  # Linux
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
