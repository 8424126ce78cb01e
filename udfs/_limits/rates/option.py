"""The option `rate_limit`: so many calls in a second, minute or hour."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from asyncudf.queues._public import public

from ..._errors.checks import (
    LARGEST,
    LONGEST,
    amount,
    check_cost,
    check_settle,
    choice,
    given_number,
    is_number,
    period,
    several,
    text,
    twice,
    unknown_name,
)
from ..._errors.exceptions import OptionError
from ..._errors.safe import safe_repr
from ..keys import by_label, key_names
from ..limited_task import Limit, OfJob, Pace
from .dialects import Dialect, Source, dialect_of

if TYPE_CHECKING:
    import asyncio

    from ..gate import Gate, HostTask
    from ..limited_task import Beginning, LimitedTask

PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
SAVED_SHARE = 0.02  # of the permits: the default burst
LATE_USE = 0.02  # of the period: how late a permit may be used, beside what the burst allows
SHORTEST = 1 / LARGEST  # seconds for a permit
TIME_ROUNDING = 1e-6  # seconds: rounding of sums of times must not make a permit late

Cost = float | Callable[..., float]


class Scope(enum.Enum):
    """Whether all tasks of the job share a limit, or each task has its own."""

    JOB = "job"
    TASK = "task"


@public("asyncudf")
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
            attempt that failed it gets the exception; if it raises then, the attempt has used no permits. Or a unit,
            such as "tokens": what the function says by `context.spend(amount, "tokens")`. An attempt that has not said
            it keeps what `cost` has taken, unless the service has refused it.
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
    settle: Callable[..., float] | str | None = field(default=None, kw_only=True)
    name: str | None = None
    scope: Scope | Literal["job", "task"] = Scope.JOB
    by: str | Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "permits", amount(self.permits, "permits"))
        object.__setattr__(self, "per", _period(self.per))
        if self.interval > LONGEST:
            raise OptionError(
                f"permits must be at least one in a hundred years, not {safe_repr(self.permits)} in {self.period:,g} s"
            )
        if self.interval < SHORTEST:
            raise OptionError(
                f"permits must be at most {LARGEST:,} a second, not {safe_repr(self.permits)} in {self.period:,g} s"
            )
        object.__setattr__(self, "scope", choice(Scope)(self.scope, "scope"))
        if self.burst is not None and is_number(self.burst) and self.burst > LARGEST:
            raise OptionError(f"burst must be at most {LARGEST:,}, not {safe_repr(self.burst)}")
        if self.burst is not None and not (is_number(self.burst) and self.burst >= 1):
            raise OptionError(
                f"burst must be at least 1, or no call could ever begin, not {safe_repr(self.burst)}. Any period has "
                f"permits + burst + 2% of permits at most: if {self.permits:g} are the most that the service takes in "
                f"one, write {self._strict}"
            )
        if self.saved * self.interval > LONGEST:
            raise OptionError(
                f"burst must be saved up within a hundred years, which {LONGEST / self.interval:,.0f} are, not "
                f"{safe_repr(self.burst)}"
            )
        check_cost(self.cost, "cost", "lambda text: len(text) / 4")
        if isinstance(self.settle, str):
            text(self.settle, "settle of a rate limit, if it is the unit of context.spend")
        else:
            check_settle(self.settle, 'answer.tokens (or settle="tokens", what context.spend says)')
        if self.name is not None:
            text(self.name, "name of a rate limit")
        object.__setattr__(self, "by", key_names(self.by))

    @classmethod
    def from_headers(
        cls,
        dialect: Source,
        unit: str = "requests",
        *,
        start: float,
        at_most: float | None = None,
        per: float | timedelta | Literal["second", "minute", "hour", "day"] | None = None,
        burst: float | None = None,
        cost: Cost | None = None,
        settle: Callable[..., float] | str | None = None,
        name: str | None = None,
        scope: Scope | Literal["job", "task"] = Scope.JOB,
        by: None = None,
    ) -> RateLimit:
        """A limit that the service tells in the headers of its answers, also of those that refuse a call.

        The newest answer of all tasks counts: the answer to the call that began last. When little is left of the limit,
        because other clients use it too, calls become fewer; when nothing is left they wait. Headers that make no sense
        are ignored, counted, and warned of once.

        An `http.session` tells the headers of its answers by itself, and so does an exception that has them, such as
        those of openai, anthropic, httpx and aiohttp; all else tells them by `http.tell_limits(headers)`.

        Args:
            dialect: "openai" (`x-ratelimit-limit-requests`), "anthropic" (`anthropic-ratelimit-requests-limit`),
                "github" (`x-ratelimit-limit`; a window that ends at the reset), "ietf" (`RateLimit`,
                `RateLimit-Policy`); or a plain function of the headers, by their names in lower case, that returns a
                dict with what they tell of "limit", "remaining", "reset" (a number of seconds, "6m0s", a time) and
                "per" (seconds), or None.
            unit: "requests" or "tokens"; of Anthropic also "input_tokens" and "output_tokens"; of IETF headers a unit,
                or the name of a policy. For several give a list with a limit for each.
            start: permits in a period, before the first answer.
            at_most: permits in a period, whatever the service tells.
            per: the period of `start` and `at_most`, and of a limit that is told without one; "hour" for GitHub, else
                "minute", unless given.
            burst, cost, settle, name, scope: as in `RateLimit`; a limit of tokens needs a `cost`.
            by: has to be left out.

        Raises:
            OptionError: an unknown dialect or unit, or a value that cannot work.

        >>> RateLimit.from_headers("openai", start=60, at_most=5_000).interval
        1.0
        """
        if by is not None:
            raise OptionError(
                "by= and from_headers do not go together: a service tells one limit, not one for each key"
            )
        period = dialect_of(dialect, unit).per if per is None else per
        if cost is None and "tokens" in unit:
            raise OptionError(f"a limit of {unit} needs cost=, what a call takes, such as lambda text: len(text) / 4")
        return LearnedLimit(
            amount(start, "start of a rate limit"), period, burst, cost, name, scope, settle=settle,
            dialect=dialect, unit=unit, at_most=math.inf if at_most is None else at_most,
        )  # fmt: skip

    @classmethod
    def all_of(cls, value: Any, name: str) -> tuple[RateLimit, ...]:
        """What the option `rate_limit=` accepts: None, one limit or several."""
        given = several(value, name, cls, "a RateLimit, such as RateLimit(100, per='second')")
        if (one := twice([one.name for one in given if one.name is not None])) is not None:
            raise OptionError(
                f"{name} has two limits of the name {safe_repr(one)}, which are one and the same: give each a name of "
                "its own, or write one limit whose cost is that of both"
            )
        return given

    @property
    def asks(self) -> bool:
        return callable(self.cost)

    def asking(self, of_row: Callable[[Callable[..., Any]], Callable[..., Any]]) -> RateLimit:
        """A copy that calls `cost` through `of_row`, if it is a function."""
        return dataclasses.replace(self, cost=of_row(self.cost)) if callable(self.cost) else self

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
    def _usual_period(self) -> float:
        """The period if none is given."""
        return PERIODS["second"]

    @property
    def _made_by(self) -> str:
        """The call that made the limit as people are shown it, without its options."""
        permits = f"{self.permits:_.0f}" if self.permits == int(self.permits) else f"{self.permits:g}"
        return f"RateLimit({permits}"

    @property
    def _strict(self) -> str:
        """The text of a limit under which no period has more than `permits`."""
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


@dataclasses.dataclass(frozen=True)
class LearnedLimit(RateLimit):
    """What `RateLimit.from_headers` returns; `permits` are the permits at the start."""

    dialect: Source = field(default="ietf", kw_only=True)
    unit: str = field(default="requests", kw_only=True)
    at_most: float = field(default=math.inf, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.at_most, float) and self.at_most == math.inf):
            object.__setattr__(self, "at_most", amount(self.at_most, "at_most of a rate limit"))
        if self.permits > self.at_most:
            raise OptionError(f"start must not be more than at_most, {self.at_most:g}, not {self.permits:g}")

    @property
    def reads(self) -> Dialect:
        """What reads the headers."""
        return dialect_of(self.dialect, self.unit)

    @property
    def _usual_period(self) -> float:
        return self.reads.per

    @property
    def _made_by(self) -> str:
        source = f'"{self.dialect}"' if isinstance(self.dialect, str) else getattr(self.dialect, "__name__", "...")
        return f"RateLimit.from_headers({source}" + (f', "{self.unit}"' if self.unit != "requests" else "")

    def seconds_for(self, calls: float, tasks: int) -> float:
        return self.with_permits(self.at_most).seconds_for(calls, tasks) if self.at_most < math.inf else 0.0

    def with_permits(self, permits: float) -> RateLimit:
        """The same limit with other numbers, as an ordinary one."""
        permits = min(permits, LARGEST)
        return RateLimit(permits, self.per, self.burst, self.cost, self.name, self.scope, settle=self.settle)


class RateLimits(tuple[RateLimit, ...], Limit):
    """All rate limits of a function: a call takes the permits of all, or of none."""

    __slots__ = ()

    @property
    def counted(self) -> Sequence[RateLimit]:
        return self

    @property
    def of_job(self) -> Sequence[OfJob]:
        return [OfJob("a rate_limit of the job", limit.name) for limit in self if limit.scope is Scope.JOB]

    @property
    def paces(self) -> Sequence[Pace]:
        return [_pace(limit, place) for place, limit in enumerate(self)]

    def seconds_for(self, calls: float, tasks: int) -> float:
        return max((limit.seconds_for(calls, tasks) for limit in self), default=0.0)

    def learner(self, task: HostTask, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> Any:
        if not any(isinstance(limit, LearnedLimit) for limit in self):
            return None
        from .learned import Learner

        return Learner(task, self, loop, clock)

    def named(self, function: str) -> list[tuple[str, RateLimit]]:
        """The limits of the job, each with the name under which tasks share it; no two have one name.

        A limit with the same numbers in another list of the same function, as `with_options` makes them, has the same
        name and is the same limit.
        """
        named: list[tuple[str, RateLimit]] = []
        for limit in self:
            if limit.scope is Scope.JOB:
                by = "".join(f":{name}" for name in limit.by or ())
                numbers = f"{function}{by}:{float(limit.permits)!r}/{limit.period!r}:{limit.saved!r}"
                equal = sum(name.startswith(f"{numbers}:") for name, _ in named)
                named.append((limit.name or f"{numbers}:{equal}", limit))
        return named

    def own_names(self, function: str) -> list[tuple[Scope, str] | None]:
        """The name of each limit under which the functions of one task share it; None: they do not share it."""
        of_job = iter(self.named(function))
        names = [next(of_job)[0] if limit.scope is Scope.JOB else limit.name for limit in self]
        return [None if name is None else (Scope(limit.scope), name) for limit, name in zip(self, names, strict=True)]

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .task import gates

        return gates(self, task)

    def beginnings(self, function: str) -> Iterable[Beginning]:
        from .job import open_limits
        from .keyed import open_keys

        return [
            (name, partial(open_keys if limit.by else open_limits, limits=[(name, limit)]))
            for name, limit in self.named(function)
        ]


def _pace(limit: RateLimit, place: int) -> Pace:
    # Of a limit that the service tells only its bounds are known.
    least = limit.period / limit.at_most if isinstance(limit, LearnedLimit) else limit.interval
    return Pace(
        limit_label(limit),
        place,
        (least, least or limit.interval, limit.interval),
        limit.saved,
        is_settled=limit.settle is not None,
        is_of_task=limit.scope is Scope.TASK,
    )


def limits_label(limits: Iterable[RateLimit]) -> str:
    """The option `rate_limit` as people are shown it."""
    return ", ".join(map(limit_label, limits))


def limit_label(limit: RateLimit) -> str:
    """A limit as people are shown it.

    >>> limit_label(RateLimit(600, per="minute")), limit_label(RateLimit(2, per=7.5, name="model"))
    ('RateLimit(600, per="minute")', 'RateLimit(2, per=7.5, name="model")')
    """
    given = {
        "per": None if limit.period == limit._usual_period else _period_label(limit.period),
        "cost": getattr(limit.cost, "__name__", "...") if callable(limit.cost) else limit.cost,
        "name": None if limit.name is None else f'"{limit.name}"',
        "scope": '"task"' if limit.scope is Scope.TASK else None,
        "by": by_label(limit.by),
    }
    shown = (f"{name}={value}" for name, value in given.items() if value is not None)
    return f"{', '.join([limit._made_by, *shown])})"


def check_names(limits: Iterable[RateLimit]) -> None:
    """Raises OptionError if two limits have one name, which makes them one limit, and only one of them has `by=`."""
    named = dict[tuple[str, Any], RateLimit]()
    for limit in limits:
        if limit.name is not None:
            first = named.setdefault((limit.name, limit.scope), limit)
            if (first.by is None) is not (limit.by is None):
                raise OptionError(
                    f"{limit_label(first)} and {limit_label(limit)} have one name, which makes them one limit, and "
                    "only one of them has by=: give each a name of its own"
                )


def _period_label(period: float) -> str:
    return next((f'"{name}"' for name, seconds in PERIODS.items() if seconds == period), f"{period:g}")


def _period(value: Any) -> float:
    if isinstance(value, str):
        if value not in PERIODS:
            raise OptionError(unknown_name("period of a rate limit", value, PERIODS))
        return PERIODS[value]
    return period(value, "per")
