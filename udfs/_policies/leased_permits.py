"""What a task has of a limit that many share: permits on lease, when they come due, how many to ask for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .rate_limit import LEEWAY, ROUNDING, RateLimit

__all__ = ("BlockSize", "LeasedPermits", "nap_of")


LONGEST = 0.4  # seconds for which permits are asked at once
MORE = 2  # calls
NAPS = 0.01, 0.02  # seconds: several calls begin together, for each time that a task wakes costs
NAP_CALLS = 10  # of the whole job; at a high rate as many begin in a short nap
LATE = 0.01  # seconds that a task may wake late, and have its permits all the same


class LeasedPermits:
    """Permits of one limit that were leased to this task; each may be used from a time on, and not much later.

    Over any period all tasks together use at most `permits`, the burst, and 2%.
    """

    # Permits come due one each `interval`, so a lease is a stretch of time that nobody else has. A permit that is not
    # used in its time gets stale: kept for later it would come on top of what others have then. It may be late by
    # what the limit saves up, which is the rule of a Bucket: "never more than `saved` are kept".
    #
    # _stretches: (start, end) on the task's clock, in their order; what lies before `start` is used or stale

    def __init__(self, limit: RateLimit) -> None:
        self._interval, self._saved = limit.interval, limit.saved
        self._patience = _patience(limit)
        self._stretches: deque[tuple[float, float]] = deque()

    def add(self, start: float, end: float) -> None:
        """Permits that come due in this time."""
        if end > start:
            self._stretches.append((start, end))

    def held(self, now: float) -> float:
        """How many there are, due or not."""
        self._drop_stale(now)
        return math.fsum(end - start for start, end in self._stretches) / self._interval

    def due(self, cost: float, now: float) -> float | None:
        """When a call of this cost may begin; None if there are not as many permits."""
        self._drop_stale(now)
        missing = cost * self._interval
        if missing <= ROUNDING:
            return now
        for start, end in self._stretches:
            if (last := start + missing) <= end + ROUNDING:
                due = last - max(0.0, cost - self._saved) * self._interval
                return due if due > now + ROUNDING else now
            missing -= end - start
        return None

    def use(self, cost: float, now: float) -> None:
        """Take them, now that they are due."""
        missing = cost * self._interval
        while self._stretches and missing > ROUNDING:
            start, end = self._stretches.popleft()
            if start + missing < end - ROUNDING:
                self._stretches.appendleft((start + missing, end))
            missing -= end - start

    def rest(self) -> tuple[float, float] | None:
        """The last stretch, as far as it is not used: the one that can be given back."""
        return self._stretches[-1] if self._stretches else None

    def _drop_stale(self, now: float) -> None:
        stale = now - self._patience
        while self._stretches and self._stretches[0][0] < stale:
            _, end = self._stretches.popleft()
            if end > stale + ROUNDING:
                self._stretches.appendleft((stale, end))


class BlockSize:
    """For how many calls permits are asked at once: as many as begin before permits get stale, found by doubling.

    So a fast task asks now and then for many, a slow one for one call each time, and little is left unused.
    """

    # Who had to wait for a permit that he held uses each when it comes due, and may ask for more at once; and for a
    # little more than he used, so that of tasks that always want more the smaller ones catch up. Who did not wait,
    # because he has no more rows or no free slots, would only let them get stale.

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self._ahead = min([LONGEST, *map(_patience, limits)])
        self._calls = 1
        self._begun = 0
        self._has_waited = False
        self._since: float | None = None

    def began(self) -> None:
        """A call has begun."""
        self._begun += 1

    def waited(self) -> None:
        """A call had to wait for its permits."""
        self._has_waited = True

    def soon(self, now: float, seconds: float) -> int:
        """How many calls will begin in so many seconds, by those since the last question; none of a single one."""
        if self._since is None or self._calls == 1:
            return 0
        return math.floor(self._begun * seconds / max(now - self._since, seconds))

    def next(self, now: float, least: float = 0.0) -> int:
        """The calls to ask for now: those of so many seconds at least, for until then no others come."""
        if self._since is not None:
            ahead = max(least, LONGEST if self._has_waited else self._ahead)
            found = math.ceil(self._begun / max(now - self._since, ROUNDING) * ahead)
            self._calls = max(1, min(2 * self._calls, found + MORE * self._has_waited))
        self._since, self._begun, self._has_waited = now, 0, False
        return self._calls


def nap_of(limits: Sequence[RateLimit]) -> float:
    """Seconds that a task waits at least; where it does not wake late, no permit is stale by then."""
    shortest, longest = NAPS
    bounds = (min((_patience(one) - LATE) / 2, NAP_CALLS * one.interval) for one in limits)
    return max(shortest, min(longest, *bounds))


def _patience(limit: RateLimit) -> float:
    """Seconds after which a permit that was not used is stale."""
    return limit.saved * limit.interval + LEEWAY * limit.period
