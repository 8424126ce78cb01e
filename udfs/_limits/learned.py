"""What is known of a rate limit whose numbers the service tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .dialects import Told
from .rate_limit import LearnedLimit

# When little is left, other clients of the same limit are faster than what is known of them. So the pace falls with
# what is left, from a share of the limit on: a larger one for calls that take long, as their answers tell of the past.
# In a sliding window a job that is alone uses less by that share; what refills bit by bit it uses in full.
FEW, FEW_OF_REFILLED, MOST_FEW = 0.04, 0.15, 0.25  # of the limit
LATE = 3.0  # times what others may take while a call lasts
FEW_CALLS = 2.0
LEAST_PACE = 0.1  # of the limit: who does not call learns nothing
UNTOLD = 0.95  # of a limit of which it is not told what is left: no answer shows that it is passed by a few calls
LONGER = 1.1  # of a period: what takes longer to come back is a limit of a longer period
LARGEST_CALL = 0.9  # of the limit: one that needs more would wait for ever
LONGEST_WAIT = 3600.0  # seconds for what headers say, or a period if that is longer; then a call shows whether it is so


class Knowledge(NamedTuple):
    """What the newest answer has told, at the pace of the limit's own period."""

    began: float = -math.inf  # when its call did
    at: float = -math.inf  # when it came
    permits: float = 0.0  # in a period
    capacity: float = math.inf  # of what `left` is a part
    left: float = math.inf  # inf: not told
    resets: float = -math.inf  # when the service says that more is left
    ends: float = -math.inf  # when nothing of this holds any more but the limit
    refill: float = 0.0  # permits in a second that come back, if they do so bit by bit
    few: float = FEW  # of the capacity, from which on the pace falls

    def moved(self, clock: Callable[[float], float]) -> Knowledge:
        """The same on another clock."""
        times = {name: clock(getattr(self, name)) for name in ("began", "at", "resets", "ends")}
        return self._replace(**times)


class Learned:
    """What is known of one limit; times are those of the task's clock.

    Answers are ordered by when their calls began: a later answer of an older call changes nothing.
    """

    def __init__(self, limit: LearnedLimit) -> None:
        self.limit = limit
        self.known = Knowledge(permits=limit.permits, capacity=limit.permits)

    @property
    def is_told(self) -> bool:
        return self.known.began > -math.inf

    def tell(self, told: Told, began: float, now: float) -> bool:
        """An answer tells this; returns whether it is the newest."""
        return self.adopt(self._knowledge(told, began, now))

    def adopt(self, known: Knowledge) -> bool:
        """Another task, or an answer, knows this; returns whether it is the newest."""
        is_newest = known.began >= self.known.began
        if is_newest:
            self.known = known
        return is_newest

    def _knowledge(self, told: Told, began: float, now: float) -> Knowledge:
        own, before, dialect = self.limit.period, self.known, self.limit.reads
        per, left, reset = told.per or own, told.remaining, told.reset
        permits, capacity = before.permits, before.capacity
        if told.limit is not None:
            capacity, permits = told.limit, told.limit * own / per * (UNTOLD if left is None else 1.0)
        refill = capacity / per if dialect.refills else 0.0
        if reset is not None and left is not None and left < capacity and reset > LONGER * per:
            refill = min(refill, (capacity - left) / reset)
        least = FEW_OF_REFILLED if dialect.refills else FEW
        few = min(MOST_FEW, max(least, LATE * (now - began) / per))
        resets = now + (per if reset is None else reset)
        # A sliding window has a little more left then, and a fixed one all: the next answers tell.
        ends = resets if dialect.spreads else max(resets, now + per)
        return Knowledge(began, now, permits, capacity, math.inf if left is None else left, resets, ends, refill, few)

    @property
    def permits(self) -> float:
        """In a period, if enough is left."""
        return min(self.known.permits, self.limit.at_most)

    def pace(self, cost: float, now: float) -> float:
        """The permits in a period that calls of this cost may use now."""
        known, permits = self.known, self.permits
        left = self._left(now)
        if left == math.inf:
            return permits
        if self.limit.reads.spreads:
            share = left * self.limit.period / max(known.resets - known.at, 1e-3) / permits
        else:
            share = left / max(known.few * known.capacity, min(FEW_CALLS * cost, MOST_FEW * known.capacity), 1e-9)
        return permits * min(1.0, max(share, LEAST_PACE))

    def opens(self, cost: float, now: float) -> float:
        """When as much as a call costs is left, as far as it is known; now or later."""
        known = self.known
        missing = min(cost, LARGEST_CALL * known.capacity) - self._left(now)
        if missing <= 0:
            return now
        opens = now + missing / known.refill if known.refill else known.resets
        return max(now, min(opens, known.at + max(LONGEST_WAIT, self.limit.period)))

    def _left(self, now: float) -> float:
        known = self.known
        if known.refill:
            return known.left + max(0.0, now - known.at) * known.refill
        return math.inf if now >= known.ends else known.left
