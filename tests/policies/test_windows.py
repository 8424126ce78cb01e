"""Windows of UTC: they follow each other without a gap, and only move forward."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncudf import Budget, OptionError
from asyncudf._limits.budgets.windows import WHOLE_TIME, Windows, window_at


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("per", "time", "name", "start", "end"),
    [
        ("day", at(2026, 11, 28, 23, 59, 59), "2026-11-28", at(2026, 11, 28), at(2026, 11, 29)),
        ("day", at(2026, 11, 29), "2026-11-29", at(2026, 11, 29), at(2026, 11, 30)),
        ("month", at(2026, 12, 31, 23), "2026-12", at(2026, 12, 1), at(2027, 1, 1)),
        ("month", at(2028, 2, 29), "2028-02", at(2028, 2, 1), at(2028, 3, 1)),
        ("month", at(2027, 2, 28, 12), "2027-02", at(2027, 2, 1), at(2027, 3, 1)),
        ("month", at(9999, 12, 5), "9999-12", at(9999, 12, 1), at(9999, 12, 31) + 86_400),  # no date is later
        (3600.0, at(2026, 1, 1, 5, 30), "2026-01-01T05:00:00Z", at(2026, 1, 1, 5), at(2026, 1, 1, 6)),
        (None, 0.0, "", -math.inf, math.inf),
    ],
)
def test_the_window_of_a_time(per: Any, time: float, name: str, start: float, end: float) -> None:
    assert window_at(per, time) == (start, end, name)


@given(
    per=st.sampled_from(["day", "month", 1.0, 7.5, 3600.0, 1e6]),
    time=st.floats(0, at(2200, 1, 1), allow_nan=False),
)
@example(per=1.1, time=at(2024, 1, 1))  # a multiple: the quotient is rounded down, and the window was over
def test_windows_follow_each_other(per: Any, time: float) -> None:
    window = window_at(per, time)
    assert window.start <= time < window.end
    assert window_at(per, window.start) == window
    assert window_at(per, window.end).start == window.end


def test_a_clock_that_is_set_back_opens_no_window_again() -> None:
    windows = Windows("day")
    noon, next_noon = at(2026, 11, 28, 12), at(2026, 11, 29, 12)
    first = windows.at(noon)
    assert windows.at(noon + 60) is first
    second = windows.at(next_noon)
    assert second.name == "2026-11-29"
    assert windows.at(noon) is second
    assert windows.at(next_noon + 86_400).name == "2026-11-30"
    assert Windows(None).at(noon) is WHOLE_TIME


@pytest.mark.parametrize(
    ("per", "message"),
    [
        (0, "per of a budget must be more than 0 seconds, not 0"),
        (-1, "per of a budget must be more than 0 seconds"),
        (0.001, "per of a budget must be at least 1 second, not 0.001"),
        (timedelta(0), "per of a budget must be more than 0 seconds"),
        (math.nan, "per of a budget must be more than 0 seconds"),
        (True, "per of a budget must be a number of seconds"),
        ("week", 'per of a budget must be "day", "month", or a number of seconds or a timedelta, not \'week\''),
        ([], "per of a budget must be"),
    ],
)
def test_what_is_no_window_is_named(per: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Budget(1, per=per)


def test_a_day_in_seconds_is_a_day() -> None:
    assert Budget(1, per=86_400) == Budget(1, per=timedelta(days=1)) == Budget(1, per="day")
