"""Windows of UTC: a day, a month, or some seconds. Each window has the amount of a budget anew."""

from __future__ import annotations

import math
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import Literal

from ..._errors.checks import Seconds, period
from ..._errors.exceptions import OptionError
from ..._errors.safe import safe_repr
from ..._stores.ledgers import Window

DAY = 86_400.0  # seconds; UTC has no others, as the clocks of computers leave out leap seconds
SHORTEST = 1.0  # seconds: the clocks of tasks differ by some milliseconds

Per = Literal["day", "month"] | float


WHOLE_TIME = Window(-math.inf, math.inf, "")


def checked_per(value: Seconds | Literal["day", "month"] | None) -> Per | None:
    """The checked `per=` of a budget; a day in seconds becomes "day". OptionError for anything else."""
    if value is None or (isinstance(value, str) and value in ("day", "month")):
        return value
    if isinstance(value, str) or not isinstance(value, (int, float, timedelta)):
        raise OptionError(
            f'per of a budget must be "day", "month", or a number of seconds or a timedelta, not {safe_repr(value)}'
        )
    length = period(value, "per of a budget")
    if length < SHORTEST:
        raise OptionError(f"per of a budget must be at least {SHORTEST:g} second, not {safe_repr(value)}")
    return "day" if length == DAY else length


def per_label(per: Per) -> str:
    """The length of windows as people are shown it.

    >>> per_label("day"), per_label(90.0)
    ('a day', 'each 90 s')
    """
    return f"a {per}" if isinstance(per, str) else f"each {per:g} s"


def window_at(per: Per | None, time: float) -> Window:
    """The window of a time, in seconds since 1970; the whole time without `per`.

    >>> window_at("month", datetime(2028, 2, 29, 12, tzinfo=UTC).timestamp()).name
    '2028-02'
    >>> window_at(60.0, 119.5)
    Window(start=60.0, end=120.0, name='1970-01-01T00:01:00Z')
    """
    if per is None:
        return WHOLE_TIME
    if per == "month":
        first = _utc(time).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        start = first.timestamp()
        return Window(start, start + monthrange(first.year, first.month)[1] * DAY, f"{first:%Y-%m}")
    length = DAY if isinstance(per, str) else per
    number = math.floor(time / length)
    number += time >= (number + 1) * length  # the quotient was rounded; each window begins where the last one ends
    start = number * length
    shape = "%Y-%m-%d" if length == DAY else "%Y-%m-%dT%H:%M:%SZ"
    return Window(start, (number + 1) * length, f"{_utc(start):{shape}}")


def _utc(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)


class Windows:
    """The current window. It only moves forward: a clock that is set back does not open an earlier window again."""

    def __init__(self, per: Seconds | Literal["day", "month"] | None) -> None:
        self._per: Per | None = checked_per(per)
        self._current = WHOLE_TIME if per is None else Window(-math.inf, -math.inf, "")

    def at(self, time: float) -> Window:
        """The window of this time, or the current window if that began later."""
        if time >= self._current.end:
            self._current = window_at(self._per, time)
        return self._current
