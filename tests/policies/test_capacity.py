"""Adaptive capacity finds what a service can do, keeps near it, and follows it when it changes."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AdaptiveCapacity, OptionError
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._limits.capacity.adaptive import CapacityPolicy
from tests.kit.thorough import times

from .services import Fixed, Phase, Run, Service, simulate, simulate_tasks

RANGE = AdaptiveCapacity(4, 400)
SERVICES = {
    "saturates": Service(20),
    "saturates, even calls": Service(20, spread=0.03),
    "saturates, small": Service(8),
    "saturates, slow calls": Service(200, latency=0.8),
    "gets slower when asked too much": Service(50, thrash=0.02),
    "throttles": Service(1000, rate=200),
}


def adapted(service: Service, seconds: float, seed: int) -> Run:
    return simulate(service, CapacityPolicy(RANGE), seconds, seed)


@functools.cache
def best_rate(service: Service) -> float:
    """Calls per second of the best fixed capacity."""
    if service.rate < math.inf:
        return service.rate
    tried = [RANGE.maximum, *(round(4 * 1.25**step) for step in range(21))]
    return max(simulate(service, Fixed(limit), 8.0, 0).rate(4.0, 8.0) for limit in tried)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AdaptiveCapacity(0, 10), "minimum must be at least 1, not 0"),
        (lambda: AdaptiveCapacity(1, 1.5), "maximum must be a whole number, not 1.5"),  # type: ignore[arg-type]
        (lambda: AdaptiveCapacity(10, 5), r"maximum must be at least minimum \(10\), not 5"),
    ],
)
def test_a_range_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


def test_what_the_option_accepts() -> None:
    assert AdaptiveCapacity.of(7) == 7
    assert AdaptiveCapacity.of("auto") == AdaptiveCapacity(1, 400)
    assert AdaptiveCapacity.of(AdaptiveCapacity(2, 3)) == AdaptiveCapacity(2, 3)
    with pytest.raises(OptionError, match="capacity must be a whole number, not 'many'"):
        AdaptiveCapacity.of("many")


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_within_a_fifth_of_the_best_after_half_a_minute(service: Service) -> None:
    """From 30 s on it has at least 80% of the answers per second of the best fixed capacity."""
    for seed in times(1, 3):
        assert adapted(service, 50.0, seed).rate(30.0, 50.0) >= 0.8 * best_rate(service)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_it_does_not_swing(service: Service) -> None:
    """In the steady state it stays within 20% of its mean, and no more calls wait in the service than are served.

    Once in a minute it goes down for some hundred calls, to measure what a call takes that does not wait.
    """
    for seed in times(1, 3):
        run = adapted(service, 118.0, seed)
        assert run.swing(35.0, 59.0) <= 0.2
        assert run.swing(80.0, 118.0) <= 0.2
        assert statistics.mean(latency for time, latency in run.answered if time > 35.0) <= 2.2 * service.latency


@pytest.mark.parametrize(
    ("phases", "share"),
    [
        ((Phase(30.0, slower=5.0),), 0.2),
        ((Phase(30.0, slower=5.0), Phase(50.0)), 1.0),
        ((Phase(30.0, is_dead=True), Phase(50.0)), 1.0),
        ((Phase(30.0, refuses=True), Phase(35.0)), 1.0),
    ],
    ids=["slow for good", "slow for a while", "dead for a while", "refusing for a while"],
)
def test_it_follows_a_service_that_changes(phases: tuple[Phase, ...], share: float) -> None:
    """Half a minute after the last change it has most of what can be had again, and still does later."""
    healthy = Service(50, timeout=3.0)
    service = dataclasses.replace(healthy, phases=phases)
    changed = phases[-1].begins
    for seed in times(1, 3):
        run = adapted(service, changed + 60.0, seed)
        for begin in (changed + 25.0, changed + 45.0):
            assert run.rate(begin, begin + 15.0) >= 0.75 * share * best_rate(healthy)
        waited = statistics.mean(latency for time, latency in run.answered if time > changed + 40.0)
        assert waited <= 2.2 * healthy.latency / share


@pytest.mark.parametrize("starts", [(0.0,) * 4, (0.0, 10.0, 20.0, 30.0)], ids=["together", "one after the other"])
def test_tasks_that_share_a_service_do_not_drive_each_other_up(starts: tuple[float, ...]) -> None:
    """Who comes late finds a queue and takes it for the service's own time; that does not last."""
    service = Service(50)
    for seed in times(1, 3):
        tasks = [(begin, CapacityPolicy(RANGE)) for begin in starts]
        run = simulate_tasks(service, tasks, 150.0, seed)
        assert run.rate(65.0, 150.0) >= 0.9 * best_rate(service)
        assert statistics.mean(latency for time, latency in run.answered if time > 90.0) <= 2.5 * service.latency


def test_a_dead_service_is_called_as_little_as_allowed() -> None:
    service = Service(50, timeout=3.0, phases=(Phase(30.0, is_dead=True),))
    run = adapted(service, 60.0, 0)
    assert min(run.limits_between(20.0, 30.0)) > 20
    assert max(run.limits_between(50.0, 60.0)) == RANGE.minimum


def test_it_grows_only_where_more_would_be_used() -> None:
    """With ten calls to make at a time nothing tells whether the service could take a hundred."""
    run = simulate(Service(1000), CapacityPolicy(RANGE), 60.0, 0, demand=lambda _: 10)
    assert max(limit for _, limit in run.limits) <= 20


def test_errors_of_rows_do_not_count() -> None:
    """A thousand rows that fail at once, by themselves, tell nothing of the service."""
    policy = CapacityPolicy(RANGE)
    for _ in range(100):
        policy.ended(CallOutcome.ANSWERED, 0.1, policy.limit, 1.0)
    found = policy.limit
    for _ in range(1000):
        policy.ended(CallOutcome.NOTHING, 0.001, policy.limit, 2.0)
    policy.ended(CallOutcome.ANSWERED, 0.4, policy.limit, 2.0)  # one slow call is no round
    for _ in range(1000):
        policy.ended(CallOutcome.NOTHING, 0.001, policy.limit, 2.0)
    assert policy.limit == found > RANGE.minimum


@given(
    st.integers(1, 50),
    st.integers(0, 200),
    st.lists(st.tuples(st.sampled_from([*CallOutcome]), st.floats(0, 10), st.integers(1, 500)), max_size=300),
)
def test_never_outside_of_its_range(low: int, width: int, calls: list[tuple[CallOutcome, float, int]]) -> None:
    policy, now = CapacityPolicy(AdaptiveCapacity(low, low + width)), 0.0
    for outcome, latency, in_flight in calls:
        now += latency / 10
        policy.ended(outcome, latency, in_flight, now)
        assert low <= policy.limit <= low + width


@pytest.mark.parametrize("is_throttled", [False, True])
def test_a_round_at_half_of_the_limit_shows_nothing_of_the_limit(is_throttled: bool) -> None:
    """Failures that come at any limit restore it, unless calls are throttled; they are not compared with it."""
    policy, now = CapacityPolicy(RANGE), 0.0

    def call_until_it_changes(latency: float, failed: int, throttled: int = 0) -> int:
        nonlocal now
        before, now = policy.limit, now + 20.0
        for number in range(1000):
            outcome = CallOutcome.DOWN if number % 10 < failed else CallOutcome.ANSWERED
            if failed <= number % 10 < failed + throttled:
                outcome = CallOutcome.THROTTLED
            policy.ended(outcome, latency, policy.limit, now)
            if policy.limit != before:
                break
        return policy.limit

    while call_until_it_changes(0.1, 0) < RANGE.maximum:
        pass
    while call_until_it_changes(0.1, 3) > RANGE.maximum / 2:
        pass
    if is_throttled:
        assert call_until_it_changes(0.04, 3, throttled=2) < RANGE.maximum / 2
    else:
        assert call_until_it_changes(0.04, 3) == RANGE.maximum
