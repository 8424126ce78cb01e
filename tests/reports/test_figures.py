"""Figures are short, true, and say no more than is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._errors.figures import bytes_, count, number, rate, seconds, share, things

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
BOUNDS = {"µs": 1000, "ms": 1000, "s": 60, "min": 60, "h": 24, "d": math.inf}


@given(st.floats(min_value=1e-6, max_value=1e8))
def test_a_time_is_told_to_two_digits(value: float) -> None:
    """Read back it is what it was, to 6% where the second digit is small; no unit is used beyond the next one."""
    words = seconds(value).replace(",", "").split(" ")
    parts = [(float(amount), unit) for amount, unit in zip(words[::2], words[1::2], strict=True)]
    assert sum(amount * UNITS[unit] for amount, unit in parts) == pytest.approx(value, rel=0.06)
    assert all(amount < BOUNDS[unit] for amount, unit in parts)


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_all_or_nothing_only_if_it_is(value: float) -> None:
    """A job with one error in a million did not succeed in 100% of its rows."""
    assert (share(value) == "100%") == (value == 1)
    assert (share(value) == "0%") == (value == 0)


def test_figures_turn_over_where_their_unit_ends_and_a_dash_is_what_is_not_known() -> None:
    times = {0: "0 s", 4.8e-8: "0.048 µs", 0.9996: "1 s", 59.6: "1 min", 3599.7: "1 h", 90_061: "1 d 1 h"}
    assert {value: seconds(value) for value in times} == times
    assert [count(1_234_567), rate(0), rate(9.96), number(99.96)] == ["1,234,567", "0/s", "10/s", "100"]
    assert [bytes_(1023.6), bytes_(3 << 40)] == ["1 KiB", "3 TiB"]
    for form in (seconds, count, share, rate, number, bytes_):
        assert [form(value) for value in (None, math.inf, math.nan)] == ["—"] * 3
    assert [things(1, "retry", "retries"), things(1_000, "retry", "retries")] == ["1 retry", "1,000 retries"]
