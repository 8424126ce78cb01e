"""A second call is due when the first is among the slowest, and there are no more than the budget allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import Hedge, OptionError
from asyncudf._policies.hedging import Hedging


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Hedge("p100"), "after must be a quantile from 'p10' to 'p99.9', or seconds, not 'p100'"),
        (lambda: Hedge("p99.999"), "after must be a quantile from 'p10' to 'p99.9', or seconds, not 'p99.999'"),
        (lambda: Hedge("95%"), "after must be a quantile .*, not '95%'"),
        (lambda: Hedge(0), "after must be more than 0 seconds, not 0"),
        (lambda: Hedge(budget=0), "budget must be a share, more than 0 and at most 1, not 0"),
        (lambda: Hedge(budget=5), "budget must be a share, .*, not 5"),
    ],
)
def test_hedging_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    """The message has the value and what would do."""
    with pytest.raises(OptionError, match=said):
        make()


def test_a_number_of_seconds_is_known_from_the_start() -> None:
    """A quantile is not: not before a call can be slower than it."""
    assert Hedging(Hedge(after=0.3)).delay == 0.3
    hedging = Hedging(Hedge("p95"))
    for latency in range(19):
        hedging.ended(latency)
        assert hedging.delay is None
    hedging.ended(19)
    assert hedging.delay is not None


def test_the_quantile_is_that_of_the_last_calls() -> None:
    """Of one to two thousand: it follows a service that has become slower."""
    hedging, rng = Hedging(Hedge("p95")), random.Random(1)
    for _ in range(5000):
        hedging.ended(rng.uniform(0, 1))
    assert hedging.delay == pytest.approx(0.95, rel=0.04)
    for _ in range(2000):
        hedging.ended(rng.uniform(0, 3))
    assert hedging.delay == pytest.approx(2.85, rel=0.04)


@given(st.floats(0.01, 1.0), st.lists(st.booleans(), max_size=500))
def test_the_budget_holds_at_any_time(budget: float, steps: list[bool]) -> None:
    """Of any number of calls at most the share has had a second one."""
    hedging, calls, seconds = Hedging(Hedge(0.1, budget)), 0, 0
    for is_call in steps:
        if is_call:
            hedging.began()
            calls += 1
        elif hedging.may_hedge():
            seconds += 1
        assert seconds <= calls * budget + 1e-6


def test_little_is_saved_up_for_a_bad_time() -> None:
    """After a million good calls a service that gets slow is not called twice for each row."""
    hedging = Hedging(Hedge(0.1, 0.05))
    for _ in range(1_000_000):
        hedging.began()
    assert sum(hedging.may_hedge() for _ in range(1000)) == 10


def test_all_of_the_budget_can_be_used() -> None:
    """With a second call wanted for each row, 5% of 10,000 calls get one."""
    hedging, seconds = Hedging(Hedge(0.1, 0.05)), 0
    for _ in range(10_000):
        hedging.began()
        seconds += hedging.may_hedge()
    assert seconds == 500


def test_the_slowest_calls_become_fast_at_the_price_of_the_budget() -> None:
    """Of a service that stalls for every 50th call the p99 falls to a fifth, for at most 5% more calls."""
    rng, hedging = random.Random(1), Hedging(Hedge("p95", 0.05))

    def call() -> float:
        return rng.lognormvariate(-2.5, 0.4) + (2.0 if rng.random() < 0.02 else 0.0)

    plain, hedged, seconds = [], [], 0
    for _ in range(20_000):
        hedging.began()
        latency = call()
        plain.append(latency)
        if hedging.delay is not None and latency > hedging.delay and hedging.may_hedge():
            seconds += 1
            latency = min(latency, hedging.delay + call())
        hedging.ended(latency)
        hedged.append(latency)
    assert sorted(hedged)[19_800] < sorted(plain)[19_800] / 5
    assert seconds <= 0.05 * 20_000
