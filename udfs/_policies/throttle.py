"""What refusals say of a service: nothing yet, that all calls should pause, or at which pace they should go on."""

from __future__ import annotations

import enum
import math
import statistics
from collections import deque
from typing import NamedTuple

from .call_outcome import is_unlikely

__all__ = ("Throttle",)


ENOUGH = 10  # refusals, of the last answers that are twice as many, are evidence of a limit for all calls
FEW, LAST = 5, 100  # refusals among the last answers that correct a pace, without a pause
STEADY = 1.0  # seconds between two corrections, at least
GROWTH, SLOWEST_GROWTH = 5.0, 20.0  # seconds in which a pace doubles: at first, and at most after corrections
FREE_AFTER = 4.0  # times the growth: then the pace is lifted
GROWN, IN_VAIN = 1.05, 3  # a pace that has grown less; corrections of such, one after another, that helped nothing
BURST = 0.01  # seconds: calls begin together that are due within these, for timers come late
FIRST_CALLS = 2  # in flight in a slow start
PATIENCE = 1.0  # seconds after which another call may probe, for one that hangs must not hold up all
MOST_PAUSED = 300.0  # seconds without an accepted call that deadlines are moved by: rows must end in the end
SHORTEST = 1e-3  # seconds in which a pace can be measured
# Chance explains a share of refusals up to 5%, or a quarter more than were seen before; beyond that, only what comes
# once in a million answers pauses all, and once in a thousand corrects a pace.
LEAST_SHARE, MORE, KNOWN = 0.05, 1.25, 50
RARE, VERY_RARE = math.log(1e3), math.log(1e6)


class Phase(enum.Enum):
    """How calls may begin."""

    FREE = "free"  # at once
    PAUSED = "paused"  # not before a given time, and then one call probes
    PACED = "paced"  # at the pace that the service has shown


class _Refusal(NamedTuple):
    until: float  # when the refused call may be made again
    answers: int  # that had come before it since the phase began
    refusals: int  # the same


class Throttle:
    """Decides when calls may begin while a service refuses some.

    A refusal concerns its own row. All calls pause only if at least 10 of the last 20 answers were refusals, and chance
    does not explain it. After the pause one call probes. Then calls begin at the pace that the
    service has shown: accepted calls divided by the time between the ends of the last two pauses. The pace grows, is
    corrected where calls are still refused, and is lifted after a time without contradiction.

    Only answers to calls that began since the last change count: `since` is when that was.
    """

    # A service may refuse a share of its calls at random, however few come: a bad node, tenants with limits of their
    # own. That share, `_background`, is what it refused in FREE before; or in PACED, if lower paces did not change it.
    #
    # _refusals: the newest last, with no more than a pause or a correction needs
    # _answers, _refused: answers and refusals since the phase began
    # _ends: of the last pause; _until: when the next call may begin in one
    # _refuses_since: when the first of these pauses began, of those without an accepted call in between
    # _accepted: answers since `_measured`, the end of the last pause
    # _pace: calls per second at `since`; 0: a slow start, of few calls in flight and one more for each answer

    def __init__(self, now: float) -> None:
        self._phase = Phase.FREE
        self.since = self._measured = self._refuses_since = now
        self._accepted = self._in_vain = 0
        self._until = self._ends = self._next = self._pace = self._background = 0.0
        self._paused = 0.0
        self._enter(Phase.FREE, now)

    @property
    def until(self) -> float:
        """The end of the pause of all calls, if there is one."""
        return self._ends if self._phase is Phase.PAUSED else -math.inf

    def is_free(self, now: float) -> bool:
        """Whether calls begin at once, and none has to be reported by `began`."""
        if self._phase is Phase.PACED and now >= self._free_at:
            self._enter(Phase.FREE, now)
        return self._phase is Phase.FREE

    @property
    def _free_at(self) -> float:
        return self.since + FREE_AFTER * self._growth

    def paused_seconds(self, now: float) -> float:
        """How long calls were paused in all; of pauses without an accepted call in between, at most `MOST_PAUSED`."""
        return self._paused + (min(MOST_PAUSED, now - self._refuses_since) if self._phase is Phase.PAUSED else 0.0)

    def wait(self, in_flight: int, now: float) -> float:
        """Seconds until a call may begin; it may be sooner, when another call has ended."""
        if self.is_free(now):
            return 0.0
        if self._phase is Phase.PAUSED:
            return max(0.0, self._until - now)
        if not self._pace and in_flight < FIRST_CALLS + self._answers:
            return 0.0
        return max(0.0, min(self._next, self._free_at) - now) if self._pace else self._free_at - now

    def began(self, now: float) -> None:
        """A call begins."""
        if self._phase is Phase.PAUSED:
            self._is_probing = True
            self._until = now + PATIENCE
        elif self._phase is Phase.PACED and self._pace:
            self._next = max(self._next, now - BURST) + 1.0 / self._pace_at(now)

    def gave_up(self, began: float) -> None:
        """A call that began then ends, and its end says nothing of the service."""
        if began >= self.since and self._is_probing:
            self._is_probing, self._until = False, self._ends

    def answered(self, calls: int, began: float, now: float) -> None:
        """So many calls have ended otherwise than with a refusal, of which the first began then."""
        self._accepted += calls
        if began < self.since:
            return
        if self._phase is not Phase.PAUSED:
            self._answers += calls
        elif self._is_probing:
            # Up to the end of the pause: from then on there may have been no call to probe with.
            seconds = max(SHORTEST, self._ends - self._measured)
            self._pace = self._accepted / seconds if self._accepted >= FEW else 0.0
            self._measured, self._accepted = now, 0
            self._enter(Phase.PACED, now)

    def refused(self, until: float, began: float, now: float) -> None:
        """A call that began then was refused, and may be made again at `until`."""
        if began < self.since:
            return
        if self._phase is Phase.PAUSED:
            self._measured += now - self.since  # a service that is away for long has not become slower
            # One answer may be wrong: the next pause is at most twice as long.
            self.pause(min(until, now + max(PATIENCE, 2.0 * (self._ends - self.since))), now)
            return
        self._refusals.append(_Refusal(until, self._answers, self._refused))
        self._refused += 1
        free = self.is_free(now)
        in_vain = self._in_vain + 1 if not free and self._pace_at(now) < GROWN * self._pace else 0
        if self._is_refusing(free):
            self._in_vain = in_vain
            # Not the longest of their waits: one server of many may be wrong.
            self.pause(statistics.median_high(one.until for one in list(self._refusals)[-ENOUGH:]), now)
        elif not free and self._pace and now - self.since >= STEADY:
            self._correct(in_vain, now)

    def pause(self, until: float, now: float) -> None:
        """All calls wait until then, for a reason that this task has seen, or another one."""
        self._until = self._ends = max(until, self.until, now)  # of two tasks the one that waits longer is right
        self._enter(Phase.PAUSED, now)

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is not self._phase or phase is not Phase.PAUSED:
            self._paused, self._refuses_since = self.paused_seconds(now), now
        if phase is Phase.FREE:
            self._growth = GROWTH
        self._phase, self.since, self._next = phase, now, now
        self._is_probing = False
        self._answers = self._refused = 0
        self._refusals: deque[_Refusal] = deque(maxlen=LAST)

    def _pace_at(self, now: float) -> float:
        """The pace grows as CUBIC's window: slowly about what was accepted, and fast beyond."""
        return self._pace * (1.0 + ((now - self.since) / self._growth) ** 3)

    def _is_refusing(self, free: bool) -> bool:
        """Whether the service refuses half of the last calls or more, and not by chance."""
        if len(self._refused_of(2 * ENOUGH)) < ENOUGH:
            return False
        for count, refusal in enumerate(reversed(self._refusals), 1):
            calls, before = self._calls_since(refusal, count), refusal.answers + refusal.refusals
            if count < ENOUGH or 2 * count < calls:
                continue
            seen = refusal.refusals / before if free and before >= KNOWN else 0.0
            background = max(self._background, seen)
            if is_unlikely(count, calls, max(LEAST_SHARE, MORE * background), VERY_RARE):
                self._background = background
                return True
        return False

    def _correct(self, in_vain: int, now: float) -> None:
        """Lower the pace by what is refused; or lift it, where that has never helped."""
        refused, calls = len(self._refused_of(LAST)), min(LAST, self._answers + self._refused)
        if refused < FEW or not is_unlikely(refused, calls, MORE * self._background, RARE):
            return
        self._in_vain = in_vain
        if in_vain >= IN_VAIN:
            self._background, self._in_vain = refused / calls, 0
            self._enter(Phase.FREE, now)
            return
        self._pace = self._pace_at(now) * (1 - refused / calls)
        self._growth = min(SLOWEST_GROWTH, 2 * self._growth)
        self._enter(Phase.PACED, now)

    def _refused_of(self, last: int) -> list[_Refusal]:
        """The refusals among the last so many calls."""
        return [one for count, one in enumerate(reversed(self._refusals), 1) if self._calls_since(one, count) <= last]

    def _calls_since(self, refusal: _Refusal, count: int) -> int:
        """How many calls have ended from this refusal on, which is the newest but `count` - 1."""
        return count + self._answers - refusal.answers
