"""The permits of a rate limit: in one place, leased to a task, or left over by calls; and the size of leased blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .option import LATE_USE, TIME_ROUNDING, RateLimit

TIMER_DELAY = 0.5  # seconds that a timer may come late, at most


def take(permits: Sequence[Permits], costs: Sequence[float], now: float) -> float | None:
    """Take a call's permits of all its limits, or of none.

    Returns 0.0 if they were taken; else the seconds after which to ask again, or None if that is not known.
    """
    begin = now
    for one, cost in zip(permits, costs, strict=True):
        due = one.due(cost, now)
        if due is None:
            return None
        begin = max(begin, due)
    if begin > now:
        return begin - now
    for one, cost in zip(permits, costs, strict=True):
        one.use(cost, now)
    return 0.0


def tightest(permits: Sequence[Permits], costs: Sequence[float], now: float) -> int | None:
    """Which of the limits lets a call begin last; of several that do so at nearly one time, the slowest.

    None if it has to wait for none, as far as is known: permits that are asked for may come at once.

    >>> limits = [Bucket(RateLimit(20, burst=1)), Bucket(RateLimit(600, per="minute", burst=1))]
    >>> take(limits, [3.0, 1.0], 100.0), tightest(limits, [3.0, 1.0], 100.0), tightest(limits, [0.0, 1.0], 101.0)
    (0.0, 0, None)
    """
    dues = [one.due(cost, now) for one, cost in zip(permits, costs, strict=True)]
    last = max((due for due in dues if due is not None), default=now)
    if last <= now:
        return None
    spans = [cost * one.interval for one, cost in zip(permits, costs, strict=True)]  # in which each may change places
    latest = [at for at, due in enumerate(dues) if due is not None and due > now and due + spans[at] >= last]
    return max(latest, key=lambda at: spans[at])


class LimitTime:
    """The time of a limit, or of all limits of one name."""

    # empty_at: when there was, or will be, no permit left
    # awaited: when the last call may begin that had to wait

    __slots__ = ("awaited", "empty_at")

    def __init__(self) -> None:
        self.empty_at = self.awaited = -math.inf


class Bucket:
    """The permits of a limit in one place: the arithmetic of GCRA, the generic cell rate algorithm.

    >>> bucket = Bucket(RateLimit(10, burst=1))
    >>> take([bucket], [1.0], 100.0), round(take([bucket], [1.0], 100.0), 3)
    (0.0, 0.1)
    """

    # empty_at, one number, is the whole state. Since then a permit has come each `interval`, and never more than
    # `saved` are kept. A call that costs more begins when all are there, and leaves a debt. Any `t` seconds have at
    # most t / interval + saved permits, or one call's cost in place of `saved`.
    #
    # A call that waits is woken late. Permits that come between the time it waits for and its wake-up are kept beside
    # `saved`: these are the 2% that any second may have more.

    def __init__(self, limit: RateLimit, time: LimitTime | None = None) -> None:
        self._time = time or LimitTime()
        self.follow(limit)

    def follow(self, limit: RateLimit) -> None:
        """From now on permits come as this limit says."""
        self.interval, self._saved = limit.interval, limit.saved
        self._leeway = min(TIMER_DELAY, LATE_USE * limit.period)

    def due(self, cost: float, now: float) -> float:
        """When a call of this cost may begin, now or later."""
        if not cost:
            return now
        due = self._clamped(now) + min(cost, self._saved) * self.interval
        if due <= now + TIME_ROUNDING:
            return now
        self._time.awaited = due
        return due

    def use(self, cost: float, now: float) -> None:
        """Take them, now that they are due."""
        self._time.empty_at = self._clamped(now) + cost * self.interval

    def _clamped(self, now: float) -> float:
        full, awaited = now, self._time.awaited
        if awaited <= now <= awaited + 2 * self._leeway:
            full = max(awaited, now - self._leeway)
        return max(self._time.empty_at, full - self._saved * self.interval)


class GrantedPermits:
    """Permits of one limit that were leased to this task; each may be used from a time on, and not much later.

    Over any period all tasks together use at most `permits`, the burst, and 2%.
    """

    # Permits come due one each `interval`, so a lease is a stretch of time that no other task has. A permit that is not
    # used in its time becomes stale: used later, it would come on top of what others have then. It may be late by what
    # the limit saves up, as in a Bucket: never more than `saved` are kept.
    #
    # stale: permits that became so
    # awaited: those that a call needs which waits; of a limit that is settled as many do not become stale
    # _stretches: (start, end, ahead) on the task's clock, in their order; what lies before `start` is used or stale.
    # They are few, and a list is small: a limit by key has one for each key.

    __slots__ = ("_is_settled", "_patience", "_saved", "_stretches", "awaited", "interval", "stale")

    def __init__(self, limit: RateLimit) -> None:
        self.follow(limit)
        self.stale = self.awaited = 0.0
        self._is_settled = limit.settle is not None
        self._stretches: list[tuple[float, float, float]] = []

    def follow(self, limit: RateLimit) -> None:
        """From now on permits come as this limit says; those that it has are as many as come in their time."""
        self.interval, self._saved = limit.interval, limit.saved
        self._patience = patience_of(limit)

    def add(self, start: float, end: float, ahead: float = 0.0) -> None:
        """Permits that come due in this time; the clock of who granted them is `ahead` by so many seconds."""
        if end > start:
            self._stretches.append((start, end, ahead))

    def held(self, now: float) -> float:
        """How many permits the task holds, due or not."""
        self._drop_stale(now)
        return math.fsum(end - start for start, end, _ in self._stretches) / self.interval

    def due(self, cost: float, now: float) -> float | None:
        """When a call of this cost may begin; None if there are not as many permits."""
        self._drop_stale(now)
        missing = cost * self.interval
        if missing <= TIME_ROUNDING:
            return now
        for start, end, _ in self._stretches:
            if (last := start + missing) <= end + TIME_ROUNDING:
                due = last - max(0.0, cost - self._saved) * self.interval
                return due if due > now + TIME_ROUNDING else now
            missing -= end - start
        return None

    def use(self, cost: float, now: float) -> None:
        missing = cost * self.interval
        while self._stretches and missing > TIME_ROUNDING:
            start, end, ahead = self._stretches.pop(0)
            if start + missing < end - TIME_ROUNDING:
                self._stretches.insert(0, (start + missing, end, ahead))
            missing -= end - start

    def use_due(self, cost: float, now: float) -> float:
        """Take up to `cost` permits that are due; returns how many were taken."""
        due = max(0.0, min(cost, self._due_until(now)))
        self.use(due, now)
        return due

    @property
    def kept(self) -> float:
        """How many do not become stale, as a call waits that needs as many."""
        return self.awaited if self._is_settled else 0.0

    def give_back(self) -> list[tuple[float, float]]:
        """Give all permits back; returns the unused ones, on the clock of the coordinator."""
        rest = [(start + ahead, end + ahead) for start, end, ahead in self._stretches]
        self._stretches.clear()
        return rest

    def _drop_stale(self, now: float) -> None:
        stale = now - self._patience
        if self._stretches and self._stretches[0][0] < stale:
            lost = self._due_until(stale) - self.kept
            if lost * self.interval > TIME_ROUNDING:
                self.stale += lost
                self.use(lost, now)

    def _due_until(self, time: float) -> float:
        """How many came due until then."""
        return math.fsum(max(0.0, min(end, time) - start) for start, end, _ in self._stretches) / self.interval


Permits = Bucket | GrantedPermits  # of one limit


def patience_of(limit: RateLimit) -> float:
    """Seconds after which a permit that was not used is stale."""
    return limit.saved * limit.interval + LATE_USE * limit.period


class Credit:
    """Permits of one limit that calls have taken and not used, for later ones; less than 0 if they have used more.

    They become stale like permits that were leased, unless a call waits for permits. Else a quiet time would save up
    what all calls before it did not use, and a burst of any size could follow.

    >>> credit = Credit(RateLimit(100))
    >>> credit.add(8.0, 10.0)
    >>> credit.left(10.01), credit.left(11.0)
    (8.0, 0.0)
    """

    def __init__(self, limit: RateLimit) -> None:
        self.follow(limit)
        self._permits, self._since = 0.0, -math.inf
        self.is_wanted = False  # a call waits

    def follow(self, limit: RateLimit) -> None:
        """From now on permits become stale as this limit says."""
        self._patience = patience_of(limit)

    def left(self, now: float) -> float:
        if self._permits > 0 and now > self._since + self._patience and not self.is_wanted:
            self._permits = 0.0
        return self._permits

    def add(self, permits: float, now: float) -> None:
        """A call has not used so many."""
        self._permits = self.left(now) + permits
        self._since = now

    def use(self, permits: float, now: float) -> None:
        if self.is_wanted:  # what is left has not become stale, and the next call looks at once
            self.is_wanted, self._since = False, now
        self._permits -= permits


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
        """From now on permits come as these limits say."""
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
