"""`capacity="auto"`: finds how many calls at once a service takes, from their latencies and outcomes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .._errors.exceptions import OptionError
from .call_outcome import CallOutcome, is_unlikely
from .checks import positive_int

CALLS_OF_ROUND = 100  # calls, at least, whose latencies are compared: the mean of fewer says little
CALLS_OF_FAST_ROUND = 10  # the same while the capacity doubles, which changes more than chance does
SLOW, FAST_SLOW, FAST_NEAR = 1.5, 2.0, 1.2  # times the best latency
UP, DOWN, HALF = 1.05, 0.9, 0.5
BELOW_SATURATION = 0.8  # of the limit where a service seems to be saturated: no call should wait there
RESTART = 0.6  # of the limit, when a service has become faster
FEW_DOWN, FEW_THROTTLED = 0.05, 0.02  # shares of a round that do not lower the limit
MORE_FAILURES = 1.25  # times the share that fails at any limit
RARE_BY_CHANCE = math.log(20)  # chance gives more once in 20 rounds
NEWEST_SHARE_WEIGHT = 0.1  # of that share; the rest is what it was
BEST_LATENCY_CALLS = 1000  # calls that the best latency is a mean of
HELD_ROUNDS = 3  # rounds
PERIOD, LATENCIES = 60.0, 300  # seconds, and times the best latency, between two measurements of it, at least
QUARTER, CALLS_OF_LONG_FAST_ROUND = 0.25, 40  # of the limit, where such a measurement begins; calls of its rounds
CLIFF_LATENCY = 2.0  # times the latency that a queue in the service explains
PATIENCE, MOST_PATIENCE = 16, 256  # rounds before a limit that broke the service is tried again: doubled each time
QUIET_AFTER_DOWN = 2.0  # times the best latency, after a step down, during which ends of calls say nothing
ROUNDING = 1e-6  # seconds: there is no logarithm of 0


@dataclasses.dataclass(frozen=True)
class AdaptiveCapacity:
    """As many calls in flight as the service can use, between `minimum` and `maximum` in each task.

    It doubles until calls begin to wait in the service. Then it goes up by a twentieth, at least 1, per round of good
    calls; down by a tenth when calls take clearly longer than the best did, or some are throttled or time out; down by
    half when most of the time goes to such calls. Once a minute, for some hundred calls, it goes down to a quarter, to
    measure how long calls take that do not wait for others.

    Raises:
        OptionError: values that cannot work.
    """

    minimum: int = 1
    maximum: int = 400

    def __post_init__(self) -> None:
        if positive_int(self.maximum, "maximum") < positive_int(self.minimum, "minimum"):
            raise OptionError(f"maximum must be at least minimum ({self.minimum}), not {self.maximum}")

    @classmethod
    def of(cls, value: Any, name: str = "capacity") -> int | AdaptiveCapacity:
        """What the option `capacity=` accepts: a number of calls, "auto", or a range."""
        if value == "auto":
            return cls()
        return value if isinstance(value, cls) else positive_int(value, name)


class _Round:
    """The calls of one round."""

    def __init__(self) -> None:
        self.calls = self.answered = self.throttled = self.down = 0
        self.logarithms = 0.0  # of the latencies of answered calls
        self.good_seconds = self.bad_seconds = 0.0
        self.peak = 0  # calls in flight

    def note(self, outcome: CallOutcome, latency: float, in_flight: int) -> None:
        self.calls += 1
        self.peak = max(self.peak, in_flight)
        if outcome is CallOutcome.ANSWERED:
            self.answered += 1
            self.good_seconds += latency
            self.logarithms += math.log(latency + ROUNDING)
        else:
            self.throttled += outcome is CallOutcome.THROTTLED
            self.down += outcome is CallOutcome.DOWN
            self.bad_seconds += latency

    @property
    def troubles(self) -> int:
        return self.throttled + self.down

    @property
    def latency(self) -> float:
        """The geometric mean of the latencies: a few very long calls do not hide the many."""
        return math.exp(self.logarithms / self.answered)


class CapacityPolicy:
    """The capacity of one task over time: `limit`, which changes at the end of a round of calls.

    As in TCP: additive increase and multiplicative decrease by rounds, with a slow start. TCP Vegas and the gradient of
    Netflix's concurrency-limits compare each call with the shortest; where latencies vary by themselves, as in most
    services, they stay at a fraction of what the service can do.
    """

    # minimum <= limit <= maximum
    # _best: the mean latency of calls that do not wait in the service, measured at limits up to _measured_at. Only
    #   there may it become longer: at higher limits it would follow the queue that these calls make.
    # _is_fast: the limit doubles, up to _half, which is three quarters of a limit that was too high
    # _start_over_at: when to measure _best again, for other clients of the service may have come or gone. All tasks
    #   share this time, so that they make room for each other.
    # _throttled_at: the limit when calls were last throttled; from near there it goes up only every few rounds
    # _refused_at: the limit when most calls of a round were throttled; if that happens there again, it is not by chance
    # _good_at: the limit of the last round whose calls did not take too long
    # _broke_at: the limit at which calls suddenly took far longer, as those of a service that begins to swap; it is
    #   tried again after _patience rounds below it
    # _top: the limit when calls first took too long; if they still do at half of it, the limit is not the cause
    # _failing_at: the limit when more calls failed than the share `_fails`; if they still do at half of it, the limit
    #   is not the cause, and `_fails` grows
    # _lowered_at: when the limit was lowered; calls that began before may time out long after it

    def __init__(self, options: AdaptiveCapacity) -> None:
        self._options = options
        self._limit = float(options.minimum)
        self._is_fast = True
        self._half = float(options.maximum)
        self._best: float | None = None
        self._measured_at = self._top = 0.0
        self._throttled_at = math.inf
        self._refused_at = self._good_at = 0.0
        self._broke_at, self._patience = math.inf, 0
        self._fails = self._failing_at = 0.0
        self._held = 0  # good rounds since the limit last went up
        self._of_calls = 0
        self._round = _Round()
        self._passed_over = 0  # ends of calls that began under another limit
        self._passed_until = self._lowered_at = -math.inf
        self._start_over_at = math.inf
        self._fast_round = CALLS_OF_FAST_ROUND

    @property
    def limit(self) -> int:
        """How many calls may be in flight."""
        return int(self._limit)

    def ended(self, outcome: CallOutcome, latency: float, in_flight: int, now: float) -> None:
        """An attempt is over.

        Args:
            latency: its seconds.
            in_flight: attempts under way with it.
            now: seconds, of a clock that all tasks which call the service share to within a tenth of a second.
        """
        if outcome is CallOutcome.NOTHING:
            return
        if self._passed_over > 0 or now < self._passed_until:
            self._passed_over -= 1
            return
        if outcome is CallOutcome.DOWN and now - latency < self._lowered_at:
            return
        self._round.note(outcome, latency, in_flight)
        full = max(self._limit, self._fast_round if self._is_fast else CALLS_OF_ROUND)
        if self._round.calls >= full or self._round.troubles >= max(4.0, self._limit / 2):
            before = self._limit
            if now >= self._start_over_at and not self._is_fast and not self._round.troubles:
                self._start_over(QUARTER * self._limit, self._limit)
            else:
                self._end_round()
            self._start_over_at = _next_time(now, self._best or 0.0)
            self._limit = min(float(self._options.maximum), max(float(self._options.minimum), self._limit))
            self._round = _Round()
            if not before <= self._limit <= UP * before + 1:  # calls in flight are of the old limit
                self._passed_over = in_flight
                self._passed_until = now
                if self._limit < before:
                    self._passed_until, self._lowered_at = now + QUIET_AFTER_DOWN * (self._best or 0.0), now

    def _end_round(self) -> None:
        ended = self._round
        is_failing = self._is_failing(ended)
        if (ended.throttled or is_failing) and ended.bad_seconds >= ended.good_seconds:
            is_known = ended.throttled > 0 and self._limit <= self._refused_at
            if ended.answered or is_known or not self._is_fast:  # a service that is down for long teaches nothing
                self._half = 0.75 * self._limit
            if ended.throttled:
                self._refused_at = self._limit
            self._limit *= HALF
            self._is_fast, self._top = self._limit < self._half, 0.0
        elif is_failing or ended.throttled > FEW_THROTTLED * ended.calls:
            if ended.throttled:
                self._throttled_at, self._held = self._limit, 0
            if self._is_fast and ended.throttled:
                self._measure_below(HALF)
            else:
                self._limit *= DOWN
        elif ended.answered:
            self._compare(ended.latency, ended)

    def _is_failing(self, ended: _Round) -> bool:
        """Whether more calls fail than would at half of the limit."""
        share = ended.down / ended.calls
        if share <= FEW_DOWN or not is_unlikely(ended.down, ended.calls, MORE_FAILURES * self._fails, RARE_BY_CHANCE):
            self._fails += NEWEST_SHARE_WEIGHT * (share - self._fails)
            self._failing_at = 0.0
            return False
        self._failing_at = max(self._failing_at, self._limit)
        if not ended.answered or self._options.minimum < self._limit > HALF * self._failing_at:
            return True
        self._fails, self._limit, self._failing_at = share, self._failing_at, 0.0
        return False

    def _compare(self, latency: float, ended: _Round) -> None:
        if self._best is not None and latency * SLOW < self._best and not self._is_fast:
            self._measure_below(RESTART)  # the service has become faster
            return
        if self._has_broken():
            self._broke_at = self._limit
            self._patience = min(MOST_PATIENCE, max(PATIENCE, 2 * self._patience))
            self._limit, self._held = self._good_at, 0
            return
        best = self._learn(latency, ended.answered)
        if latency <= SLOW * best:
            self._good_at = self._limit
        if self._is_fast:
            if latency > FAST_SLOW * best and self.limit > self._options.minimum:
                self._measure_below(BELOW_SATURATION * best / latency)  # Little's law: so many calls were not waiting
            elif self._is_used(ended):
                self._limit = min(2 * self._limit, max(self._half, self._limit))
                self._is_fast = self._limit < self._half
        elif latency > SLOW * best:
            self._top = max(self._top, self._limit)
            if self._limit <= HALF * self._top or self.limit <= self._options.minimum:
                self._start_over(0.0, 0.75 * self._top)
            else:
                self._limit *= DOWN
        elif self._is_used(ended):
            self._held += 1
            more = max(self._limit + 1, UP * self._limit)
            held = 0 if self._limit < DOWN * self._throttled_at else HELD_ROUNDS
            patience = self._patience if more >= self._broke_at else held
            if self._held > patience:
                self._limit, self._held = more, 0

    def _has_broken(self) -> bool:
        """Whether calls take far longer than the step up from the last good limit explains."""
        ended = self._round
        if self._is_fast or self._best is None or not self._good_at < self._limit:
            return False
        return ended.latency > CLIFF_LATENCY * SLOW * self._best * self._limit / self._good_at

    def _start_over(self, limit: float, half: float) -> None:
        """Measure the best latency anew: from this limit on, doubling up to `half`."""
        self._limit, self._half = max(limit, float(self._options.minimum)), half
        self._is_fast, self._best, self._top = self._limit < half, None, 0.0
        self._fast_round = CALLS_OF_LONG_FAST_ROUND

    def _measure_below(self, step: float) -> None:
        """Go down to a limit at which no call should wait, and measure the best latency there, in long rounds."""
        self._limit *= step
        self._is_fast, self._best, self._top = False, None, 0.0

    def _is_used(self, ended: _Round) -> bool:
        """Whether the limit was reached: if not, the round does not show that more calls could be in flight."""
        return ended.peak >= 0.9 * self.limit

    def _learn(self, latency: float, calls: int) -> float:
        """Learn the best latency from this round; returns it."""
        if self._best is None:
            self._measure_anew(latency, calls)
            return latency
        if self._is_fast:
            is_of_use = latency < FAST_NEAR * self._best
        else:
            is_of_use = latency < (SLOW if self._limit <= self._measured_at else 1.0) * self._best
        if is_of_use:
            self._of_calls = min(BEST_LATENCY_CALLS, self._of_calls + calls)
            self._best += min(1.0, calls / self._of_calls) * (latency - self._best)
            self._measured_at = max(self._measured_at, self._limit) if self._is_fast else self._measured_at
        return self._best

    def _measure_anew(self, latency: float, calls: int) -> None:
        self._best, self._of_calls, self._measured_at = latency, calls, self._limit


def _next_time(now: float, best: float) -> float:
    """When to start over: at multiples of one, two, four ... minutes, so that all tasks share some of the times."""
    period = PERIOD
    while period < LATENCIES * best:
        period *= 2
    return (now // period + 1) * period
