"""`capacity="auto"`: finds how many calls at once a service takes, from their latencies and outcomes."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from ..._errors.call_outcome import CallOutcome
from ..._errors.failure import Failure
from ..._errors.task_faults import AT_A_LIMIT
from ..._observe.time_account import State
from ..gate import AskingAttempt, Gate, Slots
from ..health.chance import is_unlikely
from .option import AdaptiveCapacity

CALLS_OF_ROUND = 100  # calls, at least, whose latencies are compared: the mean of fewer says little
CALLS_OF_FAST_ROUND = 10  # the same while the capacity doubles, which changes more than chance does
SLOW, FAST_SLOW, FAST_NEAR = 1.5, 2.0, 1.2  # times the best latency
UP, DOWN, HALF = 1.05, 0.9, 0.5
BELOW_SATURATION = 0.8  # of the limit where a service seems to be saturated: no call should wait there
RESTART = 0.6  # of the limit, when a service has become faster
FEW_DOWN, FEW_THROTTLED = 0.05, 0.02  # shares of a round that do not lower the limit
MORE_FAILURES = 1.25  # times the share that fails at any limit
RARE_IN_ROUNDS = math.log(20)  # chance gives more once in 20 rounds
NEWEST_SHARE_WEIGHT = 0.1  # of that share; the rest is what it was
BEST_LATENCY_CALLS = 1000  # calls that the best latency is a mean of
HELD_ROUNDS = 3  # rounds
PERIOD, BEST_LATENCIES = 60.0, 300  # seconds, and times the best latency, between two measurements of it, at least
QUARTER, CALLS_OF_LONG_FAST_ROUND = 0.25, 40  # of the limit, where such a measurement begins; calls of its rounds
CLIFF_LATENCY = 2.0  # times the latency that a queue in the service explains
BROKEN_ROUNDS, MOST_BROKEN_ROUNDS = 16, 256  # rounds before a limit that broke the service is tried again: doubled
QUIET_AFTER_DOWN = 2.0  # times the best latency, after a step down, during which ends of calls say nothing
SHORTEST_LATENCY = 1e-6  # seconds: there is no logarithm of 0


class _Round:
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
            self.logarithms += math.log(latency + SHORTEST_LATENCY)
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


class _Failures(enum.Enum):
    """What the failures of a round say about the limit."""

    FEW = "few"  # not clearly more than fail at any limit
    TOO_MANY = "too many"  # fewer may fail at a lower limit
    AT_ANY_LIMIT = "at any limit"  # as many fail at half of the limit


class CapacityPolicy:
    """The capacity of one task over time: `limit`, which changes at the end of a round of calls.

    As in TCP: additive increase and multiplicative decrease by rounds, with a slow start. TCP Vegas and the gradient of
    Netflix's concurrency-limits compare each call with the shortest; where latencies vary by themselves, as in most
    services, they stay at a fraction of what the service can do.
    """

    # minimum <= limit <= maximum
    # _is_fast: the limit doubles, until it is _threshold
    # _best: the mean latency of calls that do not wait in the service, measured at limits up to _measured_limit. Only
    #   there may it become longer: at higher limits it would follow the queue that these calls make.
    # _start_over_time: when to measure _best again, for other clients of the service may have come or gone. All tasks
    #   share this time, so that all of them make few calls then.
    # _throttled_limit: when calls were last throttled; from near there the limit goes up only every few rounds
    # _refused_limit: when most calls of a round were throttled; if that happens there again, it is not by chance
    # _good_limit: of the last round whose calls did not take too long
    # _broken_limit: at which calls suddenly took far longer, as those of a service that begins to swap; it is tried
    #   again after _patience rounds below it
    # _slow_limit: when calls first took too long; if they still do at half of it, the limit is not the cause
    # _failing_share: of the calls, which fail at any limit
    # _failing_limit: when more calls failed; if they still do at half of it, the limit is not the cause, and
    #   _failing_share grows
    # _lowered_time: when the limit was lowered; calls that began before may time out long after it

    def __init__(self, options: AdaptiveCapacity) -> None:
        self._options = options
        self._limit = float(options.minimum)
        self._is_fast = True
        self._threshold = float(options.maximum)
        self._best: float | None = None
        self._measured_limit = self._slow_limit = 0.0
        self._throttled_limit = math.inf
        self._refused_limit = self._good_limit = 0.0
        self._broken_limit, self._patience = math.inf, 0
        self._failing_share = self._failing_limit = 0.0
        self._good_rounds = 0  # good rounds since the limit last went up
        self._of_calls = 0
        self._round = _Round()
        self._passed_over = 0  # ends of calls that began under another limit
        self._passed_until = self._lowered_time = -math.inf
        self._start_over_time = math.inf
        self._fast_round = CALLS_OF_FAST_ROUND

    @property
    def limit(self) -> int:
        """How many calls may be in flight."""
        return int(self._limit)

    def ended(self, outcome: CallOutcome, latency: float, in_flight: int, now: float) -> None:
        """An attempt of so many seconds is over; `now` is of a clock that tasks share to within a tenth of a second."""
        if outcome is CallOutcome.NOTHING:
            return
        if self._passed_over > 0 or now < self._passed_until:
            self._passed_over -= 1
            return
        if outcome is CallOutcome.DOWN and now - latency < self._lowered_time:
            return
        self._round.note(outcome, latency, in_flight)
        full = max(self._limit, self._fast_round if self._is_fast else CALLS_OF_ROUND)
        if self._round.calls >= full or self._round.troubles >= max(4.0, self._limit / 2):
            before = self._limit
            if now >= self._start_over_time and not self._is_fast and not self._round.troubles:
                self._measure(QUARTER * self._limit, self._limit)
            else:
                self._end_round()
            self._start_over_time = _next_time(now, self._best or 0.0)
            self._limit = min(float(self._options.maximum), max(float(self._options.minimum), self._limit))
            self._round = _Round()
            if not before <= self._limit <= UP * before + 1:  # calls in flight are of the old limit
                self._passed_over = in_flight
                self._passed_until = now
                if self._limit < before:
                    self._passed_until, self._lowered_time = now + QUIET_AFTER_DOWN * (self._best or 0.0), now

    def _end_round(self) -> None:
        ended, failures = self._round, self._failures()
        is_throttled = ended.throttled > FEW_THROTTLED * ended.calls
        if failures is _Failures.AT_ANY_LIMIT and not is_throttled:
            self._limit, self._failing_limit = self._failing_limit, 0.0  # of which this round shows nothing
            return
        is_failing = failures is _Failures.TOO_MANY
        if (ended.throttled or is_failing) and ended.bad_seconds >= ended.good_seconds:
            is_known = ended.throttled > 0 and self._limit <= self._refused_limit
            if ended.answered or is_known or not self._is_fast:  # a service that is down for long teaches nothing
                self._threshold = 0.75 * self._limit
            if ended.throttled:
                self._refused_limit = self._limit
            self._limit *= HALF
            self._is_fast, self._slow_limit = self._limit < self._threshold, 0.0
        elif is_failing or is_throttled:
            if ended.throttled:
                self._throttled_limit, self._good_rounds = self._limit, 0
            if self._is_fast and ended.throttled:
                self._measure(HALF * self._limit)
            else:
                self._limit *= DOWN
        elif ended.answered:
            self._compare(ended.latency)

    def _failures(self) -> _Failures:
        ended, usual = self._round, MORE_FAILURES * self._failing_share
        share = ended.down / ended.calls
        if share <= FEW_DOWN or not is_unlikely(ended.down, ended.calls, usual, RARE_IN_ROUNDS):
            self._failing_share += NEWEST_SHARE_WEIGHT * (share - self._failing_share)
            self._failing_limit = 0.0
            return _Failures.FEW
        self._failing_limit = max(self._failing_limit, self._limit)
        if not ended.answered or self._options.minimum < self._limit > HALF * self._failing_limit:
            return _Failures.TOO_MANY
        self._failing_share = share
        return _Failures.AT_ANY_LIMIT

    def _compare(self, latency: float) -> None:
        if self._best is not None and latency * SLOW < self._best and not self._is_fast:
            self._measure(RESTART * self._limit)  # the service has become faster
            return
        if self._has_broken(latency):
            self._broken_limit = self._limit
            self._patience = min(MOST_BROKEN_ROUNDS, max(BROKEN_ROUNDS, 2 * self._patience))
            self._limit, self._good_rounds = self._good_limit, 0
            return
        best = self._learn(latency)
        if latency <= SLOW * best:
            self._good_limit = self._limit
        if self._is_fast:
            if latency > FAST_SLOW * best and self.limit > self._options.minimum:
                # Little's law: so many calls were not waiting.
                self._measure(BELOW_SATURATION * best / latency * self._limit)
            elif self._is_used():
                self._limit = min(2 * self._limit, max(self._threshold, self._limit))
                self._is_fast = self._limit < self._threshold
        elif latency > SLOW * best:
            self._slow_limit = max(self._slow_limit, self._limit)
            if self._limit <= HALF * self._slow_limit or self.limit <= self._options.minimum:
                self._measure(0.0, 0.75 * self._slow_limit)
            else:
                self._limit *= DOWN
        elif self._is_used():
            self._good_rounds += 1
            more = max(self._limit + 1, UP * self._limit)
            held = 0 if self._limit < DOWN * self._throttled_limit else HELD_ROUNDS
            patience = self._patience if more >= self._broken_limit else held
            if self._good_rounds > patience:
                self._limit, self._good_rounds = more, 0

    def _has_broken(self, latency: float) -> bool:
        """Whether calls take far longer than the step up from the last good limit explains."""
        if self._is_fast or self._best is None or not self._good_limit < self._limit:
            return False
        return latency > CLIFF_LATENCY * SLOW * self._best * self._limit / self._good_limit

    def _measure(self, limit: float, threshold: float = 0.0) -> None:
        """Go down to a limit at which no call should wait, and measure the best latency there.

        From there it doubles up to the threshold; if the limit is not below that, it stays for a long round.
        """
        self._limit, self._threshold = max(limit, float(self._options.minimum)), threshold
        self._is_fast, self._best, self._slow_limit = self._limit < threshold, None, 0.0
        if self._is_fast:
            self._fast_round = CALLS_OF_LONG_FAST_ROUND

    def _is_used(self) -> bool:
        """Whether the limit was reached: if not, the round does not show that more calls could be in flight."""
        return self._round.peak >= 0.9 * self.limit

    def _learn(self, latency: float) -> float:
        """Learn the best latency from this round; returns it."""
        calls = self._round.answered
        if self._best is None:
            self._best, self._of_calls, self._measured_limit = latency, calls, self._limit
            return latency
        if self._is_fast:
            is_of_use = latency < FAST_NEAR * self._best
        else:
            is_of_use = latency < (SLOW if self._limit <= self._measured_limit else 1.0) * self._best
        if is_of_use:
            self._of_calls = min(BEST_LATENCY_CALLS, self._of_calls + calls)
            self._best += min(1.0, calls / self._of_calls) * (latency - self._best)
            self._measured_limit = max(self._measured_limit, self._limit) if self._is_fast else self._measured_limit
        return self._best


def _next_time(now: float, best: float) -> float:
    """When to start over: at multiples of one, two, four ... minutes, so that all tasks share some of the times."""
    period = PERIOD
    while period < BEST_LATENCIES * best:
        period *= 2
    return (now // period + 1) * period


class AdaptiveGate(Gate):
    """`capacity="auto"`: as many calls in flight as the policy has found to be good.

    A user's `failure_on` is for the breaker alone: for this gate a service is full when it throttles or hangs. The pool
    has as many slots, so calls wait here only after their number has been lowered.
    """

    state = State.CALLS_BUSY

    def __init__(self, policy: CapacityPolicy, slots: Slots, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._slots = slots
        self._clock = clock
        slots.resize(policy.limit)

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        return 0.0 if self._slots.in_flight < self._policy.limit else None

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        # The worker cannot take more calls, as a service that throttles: fewer in flight need fewer files and threads.
        if failure is not None:
            outcome = CallOutcome.THROTTLED if failure.fault in AT_A_LIMIT else failure.outcome
        self._policy.ended(outcome, now - attempt.began, self._slots.in_flight, self._clock())
        self._slots.resize(self._policy.limit)
