"""Rate limits: the option, the permits of a limit in one place, and those that are leased to a task."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Any, Literal

from .._errors.checks import (
    amount,
    check_cost,
    check_settle,
    choice,
    given_number,
    is_number,
    seconds,
    several,
    text,
    unknown_name,
)
from .._errors.exceptions import OptionError
from .._errors.safe import safe_repr
from .by_key import by_label, key_names

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
SAVED_SHARE = 0.02  # of the permits: the default burst
LATE_USE = 0.02  # of the period: how late a permit may be used, beside what the burst allows
TIMER_DELAY = 0.5  # seconds that a timer may come late, at most
TIME_ROUNDING = 1e-6  # seconds: rounding of sums of times must not make a permit late
LONGEST_BLOCK = 0.4  # seconds for which permits are leased at once
MORE_CALLS = 2  # calls
BLOCK_GROWTH = 1.1  # of a block from one question to the next, after one that was too long
NAPS = 0.01, 0.02  # seconds: several calls begin together, because each wake-up of a task costs
NAP_CALLS = 10  # of the whole job that begin together at a high rate, after a shorter nap
WAKES_LATE = 0.01  # seconds that a task may wake late and still use its permits

Cost = float | Callable[..., float]


class Scope(enum.Enum):
    """Whether all tasks of the job share a limit, or each task has its own."""

    JOB = "job"
    TASK = "task"


@dataclasses.dataclass(frozen=True)
class RateLimit:
    """At most `permits` in any second, minute or hour, and at most `burst` more that a quiet time has saved up.

    It counts calls of the function. If a call makes several requests, give it a `cost` of as many.

    Args:
        permits: how many calls, or how much of what `cost` counts.
        per: "second", "minute", "hour" or "day"; a number of seconds, or a timedelta.
        burst: how many may begin at once after a quiet time; 2% of `permits` if left out, at least 1.
        cost: permits of one call, 1 if left out: a number, or a plain function of the call's arguments, such as one
            that counts tokens or requests. A call of more than `burst` begins when the burst is saved up, and the calls
            after it wait until it is paid off. If the function raises, its row fails; if it returns something other
            than a number of 0 or more, the job does.
        settle: permits that a call did use, a plain function of the call's arguments and its result, such as one that
            reads the tokens of an answer: later calls get what `cost` has taken too much, or make up for it. Of an
            attempt that failed it gets the exception; if it raises then, the attempt has used no permits.
        name: limits of one name are one limit, over functions and, on one Redis, over jobs; with `scope="task"` over
            the functions of a chain. If their numbers differ, each call takes time of all by its own: with 2 a second
            it begins 0.5 s after the call before, with 3 a second 0.33 s after it, whichever function made that one.
        scope: "job": all tasks share the limit, which needs a coordinator; "task": each task has its own.
        by: the name of a parameter of the function, such as "tenant", or several: each value has these permits, NULL
            too. Rows of a value at its limit are set aside, and rows of others are called. A column fills each of the
            parameters, and the function takes one row a call. Values are compared as in a store, which needs the extra
            `store`.

    Raises:
        OptionError: a value that cannot work.

    >>> RateLimit(5_000, per="hour").saved
    100.0
    """

    permits: float
    per: float | timedelta | Literal["second", "minute", "hour", "day"] = "second"
    burst: float | None = None
    cost: Cost | None = None
    settle: Callable[..., float] | None = field(default=None, kw_only=True)
    name: str | None = None
    scope: Scope | Literal["job", "task"] = Scope.JOB
    by: str | Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "permits", amount(self.permits, "permits"))
        object.__setattr__(self, "per", _period(self.per))
        object.__setattr__(self, "scope", choice(Scope)(self.scope, "scope"))
        if self.burst is not None and not (is_number(self.burst) and self.burst >= 1):
            raise OptionError(
                f"burst must be at least 1, or no call could ever begin, not {safe_repr(self.burst)}. Any period has "
                f"permits + burst + 2% of permits at most: if {self.permits:g} are the most that the service takes in "
                f"one, write {self._strict}"
            )
        check_cost(self.cost, "cost", "lambda text: len(text) / 4")
        check_settle(self.settle, "answer.tokens")
        if self.name is not None:
            text(self.name, "name of a rate limit")
        object.__setattr__(self, "by", key_names(self.by))

    @classmethod
    def all_of(cls, value: Any, name: str) -> tuple[RateLimit, ...]:
        """What the option `rate_limit=` accepts: None, one limit or several."""
        given = several(value, name, cls, "a RateLimit, such as RateLimit(100, per='second')")
        names = [one.name for one in given if one.name is not None]
        for one in names:
            if names.count(one) > 1:
                raise OptionError(
                    f"{name} has two limits of the name {safe_repr(one)}, which are one and the same: give each a name "
                    "of its own, or write one limit whose cost is that of both"
                )
        return given

    @property
    def period(self) -> float:
        """Seconds for `permits`."""
        assert isinstance(self.per, float)
        return self.per

    @property
    def interval(self) -> float:
        """Seconds for one permit."""
        return self.period / self.permits

    @property
    def _strict(self) -> str:
        """A limit of which no period has more than `permits`."""
        # Of a few permits the burst would leave little: there it counts that calls are whole.
        permits = math.floor((self.permits - 1) / (1 + LATE_USE)) if self.permits >= 10 else 0.97 * self.permits
        per = "" if self.period == 1 else f"per={_period_label(self.period)}, "
        return f"RateLimit({permits:g}, {per}burst=1)"

    @property
    def saved(self) -> float:
        """Permits that a quiet time may save up."""
        return max(1.0, SAVED_SHARE * self.permits) if self.burst is None else float(self.burst)

    def seconds_for(self, calls: float, tasks: int) -> float:
        """How long it takes until so many calls have begun, at least; 0 where `cost` is a function, or by key."""
        cost = 0.0 if callable(self.cost) or self.by else 1.0 if self.cost is None else self.cost
        places = tasks if self.scope is Scope.TASK else 1
        return max(0.0, (calls / places * cost - max(self.saved, cost)) * self.interval)

    def cost_of(self, arguments: Sequence[Any]) -> float:
        """The permits that a call with these arguments takes.

        Raises:
            FatalError: `cost` did not return a number of 0 or more; it would fail for every row, so the task ends.
        """
        if self.cost is None:
            return 1.0
        return given_number(self.cost(*arguments) if callable(self.cost) else self.cost, "cost of a rate limit")


def limit_label(limit: RateLimit) -> str:
    """A limit as people are shown it.

    >>> limit_label(RateLimit(600, per="minute")), limit_label(RateLimit(2, per=7.5, name="model"))
    ('RateLimit(600, per="minute")', 'RateLimit(2, per=7.5, name="model")')
    """
    permits = f"{limit.permits:_.0f}" if limit.permits == int(limit.permits) else f"{limit.permits:g}"
    given = {
        "per": None if limit.period == 1 else _period_label(limit.period),
        "cost": getattr(limit.cost, "__name__", "...") if callable(limit.cost) else limit.cost,
        "name": None if limit.name is None else f'"{limit.name}"',
        "scope": '"task"' if limit.scope is Scope.TASK else None,
        "by": by_label(limit.by),
    }
    shown = (f"{name}={value}" for name, value in given.items() if value is not None)
    return f"RateLimit({', '.join([permits, *shown])})"


def _period_label(period: float) -> str:
    return next((f'"{name}"' for name, seconds in PERIODS.items() if seconds == period), f"{period:g}")


def _period(value: Any) -> float:
    if isinstance(value, str):
        if value not in PERIODS:
            raise OptionError(unknown_name("period of a rate limit", value, PERIODS))
        return PERIODS[value]
    return seconds(value, "per")


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
    """Which of the limits lets a call begin last; of several that do so together, the slowest.

    None if it has to wait for none, as far as is known: permits that are asked for may come at once.

    >>> limits = [Bucket(RateLimit(20, burst=1)), Bucket(RateLimit(600, per="minute", burst=1))]
    >>> take(limits, [3.0, 1.0], 100.0), tightest(limits, [3.0, 1.0], 100.0), tightest(limits, [0.0, 1.0], 101.0)
    (0.0, 0, None)
    """
    dues = [one.due(cost, now) for one, cost in zip(permits, costs, strict=True)]
    last = max((due for due in dues if due is not None), default=now)
    if last <= now:
        return None
    latest = [number for number, due in enumerate(dues) if due is not None and due >= last - TIME_ROUNDING]
    return max(latest, key=lambda number: costs[number] * permits[number].interval)


class Line:
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

    # line.empty_at, one number, is the whole state. Since then a permit has come each `interval`, and never more than
    # `saved` are kept. A call that costs more begins when all are there, and leaves a debt. Any `t` seconds have at
    # most t / interval + saved permits, or one call's cost in place of `saved`.
    #
    # A call that waits is woken late. Permits that come between the time it waits for and its wake-up are kept beside
    # `saved`: these are the 2% that any second may have more.

    def __init__(self, limit: RateLimit, line: Line | None = None) -> None:
        self.interval, self._saved = limit.interval, limit.saved
        self._leeway = min(TIMER_DELAY, LATE_USE * limit.period)
        self._line = line or Line()

    def due(self, cost: float, now: float) -> float:
        """When a call of this cost may begin, now or later."""
        if not cost:
            return now
        due = self._clamped(now) + min(cost, self._saved) * self.interval
        if due <= now + TIME_ROUNDING:
            return now
        self._line.awaited = due
        return due

    def use(self, cost: float, now: float) -> None:
        """Take them, now that they are due."""
        self._line.empty_at = self._clamped(now) + cost * self.interval

    def _clamped(self, now: float) -> float:
        full, awaited = now, self._line.awaited
        if awaited <= now <= awaited + 2 * self._leeway:
            full = max(awaited, now - self._leeway)
        return max(self._line.empty_at, full - self._saved * self.interval)


class LeasedPermits:
    """Permits of one limit that were leased to this task; each may be used from a time on, and not much later.

    Over any period all tasks together use at most `permits`, the burst, and 2%.
    """

    # Permits come due one each `interval`, so a lease is a stretch of time that no other task has. A permit that is not
    # used in its time becomes stale: used later, it would come on top of what others have then. It may be late by what
    # the limit saves up, as in a Bucket: never more than `saved` are kept.
    #
    # stale: permits that became so
    # _stretches: (start, end, ahead) on the task's clock, in their order; what lies before `start` is used or stale.
    # They are few, and a list is small: a limit by key has one for each key.

    __slots__ = ("_patience", "_saved", "_stretches", "interval", "stale")

    def __init__(self, limit: RateLimit) -> None:
        self.interval, self._saved = limit.interval, limit.saved
        self._patience = _patience(limit)
        self.stale = 0.0
        self._stretches: list[tuple[float, float, float]] = []

    def add(self, start: float, end: float, ahead: float = 0.0) -> None:
        """Permits that come due in this time; the clock of who granted them is `ahead` by so many seconds."""
        if end > start:
            self._stretches.append((start, end, ahead))

    def held(self, now: float) -> float:
        """How many there are, due or not."""
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

    def give_back(self) -> list[tuple[float, float]]:
        """Have none any more; returns what was not used, on the clock of who granted it."""
        rest = [(start + ahead, end + ahead) for start, end, ahead in self._stretches]
        self._stretches.clear()
        return rest

    def _drop_stale(self, now: float) -> None:
        stale = now - self._patience
        while self._stretches and self._stretches[0][0] < stale:
            start, end, ahead = self._stretches.pop(0)
            self.stale += (min(stale, end) - start) / self.interval
            if end > stale + TIME_ROUNDING:
                self._stretches.insert(0, (stale, end, ahead))


Permits = Bucket | LeasedPermits  # of one limit


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
        self._patience = _patience(limit)
        self._permits, self._since = 0.0, -math.inf
        self.is_wanted = False  # a call waits

    def left(self, now: float) -> float:
        if self._permits > 0 and now > self._since + self._patience and not self.is_wanted:
            self._permits = 0.0
        return self._permits

    def add(self, permits: float, now: float) -> None:
        """A call has not used so many."""
        self._permits = self.left(now) + permits
        self._since = now

    def use(self, permits: float) -> None:
        self._permits -= permits
        self.is_wanted = False


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
        self._ahead = min([LONGEST_BLOCK, *map(_patience, limits)])
        self._calls = 1
        self._most = math.inf
        self._begun = 0
        self._has_waited = False
        self._since: float | None = None

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
    bounds = (min((_patience(one) - WAKES_LATE) / 2, NAP_CALLS * one.interval) for one in limits)
    return max(shortest, min(longest, *bounds))


def _patience(limit: RateLimit) -> float:
    """Seconds after which a permit that was not used is stale."""
    return limit.saved * limit.interval + LATE_USE * limit.period
