"""Figures are short, true, and say no more than is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._text.figures import bytes_, count, noun, number, rate, seconds, share, things

ALL = (seconds, count, share, rate, number, bytes_)
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@given(st.floats(min_value=1e-6, max_value=1e8))
def test_a_time_is_told_to_two_digits(value: float) -> None:
    """Read back it is what it was, to 6% where the second digit is small; no unit is used beyond the next one."""
    words = seconds(value).replace(",", "").split(" ")
    parts = [(float(amount), UNITS[unit]) for amount, unit in zip(words[::2], words[1::2], strict=True)]
    assert sum(amount * unit for amount, unit in parts) == pytest.approx(value, rel=0.06)
    bounds = {"µs": 1000, "ms": 1000, "s": 60, "min": 60, "h": 24, "d": math.inf}
    assert all(amount < bounds[unit] for amount, unit in zip(map(float, words[::2]), words[1::2], strict=True))


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_all_or_nothing_only_if_it_is(value: float) -> None:
    """A job with one error in a million did not succeed in 100% of its rows."""
    assert (share(value) == "100%") == (value == 1)
    assert (share(value) == "0%") == (value == 0)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("value", [None, math.inf, math.nan])
def test_what_is_not_known_is_a_dash(form: Callable[[float | None], str], value: float | None) -> None:
    """A run without calls has no latency, and shows none."""
    assert form(value) == "—"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (seconds(0), "0 s"),
        (seconds(4.8e-8), "0.048 µs"),
        (seconds(0.9996), "1 s"),
        (seconds(59.6), "1 min"),
        (seconds(3599.7), "1 h"),
        (seconds(90_061), "1 d 1 h"),
        (count(1_234_567), "1,234,567"),
        (rate(0), "0/s"),
        (rate(9.96), "10/s"),
        (number(99.96), "100"),
        (bytes_(1023.6), "1 KiB"),
        (bytes_(3 << 40), "3 TiB"),
    ],
)
def test_figures_turn_over_where_their_unit_ends(text: str, wanted: str) -> None:
    """No 1,000 ms, 60 s or 24 h."""
    assert text == wanted


@given(st.integers(0, 10**6))
def test_one_is_not_many(value: int) -> None:
    """1 retry; and as many of all others."""
    assert things(value, "retry", "retries") == f"{value:,} {'retry' if value == 1 else 'retries'}"
    assert things(number(value), "task").endswith(noun(value, "task"))
