"""For how many calls a task asks permits at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .rate_limit import TIME_ROUNDING, RateLimit, patience_of

LONGEST_BLOCK = 0.4  # seconds for which permits are leased at once
MORE_CALLS = 2  # calls
BLOCK_GROWTH = 1.1  # of a block from one question to the next, after one that was too long
NAPS = 0.01, 0.02  # seconds: several calls begin together, because each wake-up of a task costs
NAP_CALLS = 10  # of the whole job that begin together at a high rate, after a shorter nap
WAKES_LATE = 0.01  # seconds that a task may wake late and still use its permits


class BlockSize:
    """For how many calls permits are asked at once: as many as begin before permits become stale, found by doubling.

    A fast task asks now and then for many, a slow one for one call each time, and little is left unused.
    """

    # A task that had to wait for permits it holds uses each when it comes due, and may ask for more at once, and for a
    # little more than it used, so that of tasks that always want more the smaller ones catch up. A task that did not
    # wait has no more rows or no free slots, and would only let permits become stale.
    #
    # A block is a stretch of time that no other task has. If permits in it became stale it was too long: the slots were
    # taken within a part of it, or calls waited for another limit meanwhile. Then the next one is half as long, and
    # those after it grow slowly.
    #
    # _most: calls of a block, after one that was too long

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self.follow(limits)
        self._calls = 1
        self._most = math.inf
        self._begun = 0
        self._has_waited = False
        self._since: float | None = None

    def follow(self, limits: Sequence[RateLimit]) -> None:
        """From now on permits are those of these limits."""
        self._ahead = min([LONGEST_BLOCK, *map(patience_of, limits)])

    def began(self) -> None:
        self._begun += 1

    def waited(self) -> None:
        self._has_waited = True

    def soon(self, now: float, seconds: float) -> int:
        """How many calls will begin in so many seconds, as many began since the last question; 0 after a single one."""
        if self._since is None or self._calls == 1:
            return 0
        return math.floor(self._begun * seconds / max(now - self._since, seconds))

    def next(self, now: float, least: float = 0.0, *, was_too_long: bool = False) -> int:
        """The calls to ask permits for now: at the soonest the next permits come in `least` seconds.

        If permits have become stale since the last question, the block was too long.
        """
        if self._since is not None:
            rate = self._begun / max(now - self._since, TIME_ROUNDING)
            found = math.ceil(rate * max(least, LONGEST_BLOCK if self._has_waited else self._ahead))
            self._most = max(self._calls / 2, rate * least) if was_too_long else self._most * BLOCK_GROWTH
            self._calls = max(1, int(min(2 * self._calls, found + MORE_CALLS * self._has_waited, self._most)))
        self._since, self._begun, self._has_waited = now, 0, False
        return self._calls


def nap_of(limits: Sequence[RateLimit]) -> float:
    """Seconds that a task waits at least for permits; if it does not wake late, none is stale by then."""
    shortest, longest = NAPS
    bounds = (min((patience_of(one) - WAKES_LATE) / 2, NAP_CALLS * one.interval) for one in limits)
    return max(shortest, min(longest, *bounds))
