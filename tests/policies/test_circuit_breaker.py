"""A dead service is told from bad rows, left alone but for one call at a time, and given up after a while."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AsyncTimeoutError, CircuitBreaker, FatalError, OptionError
from asyncudf._engine.calls.attempt import Attempt
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._errors.failure import Failure
from asyncudf._limits.health.breaker import Breaker, BreakerGate
from tests.kit.limited import ThrottledError

UP, DOWN, NOTHING, THROTTLED = CallOutcome.ANSWERED, CallOutcome.DOWN, CallOutcome.NOTHING, CallOutcome.THROTTLED


def test_users_may_say_what_a_failure_is() -> None:
    """By types or by a predicate; then no other error counts, and a result or a refusal shows that it lives."""
    for failure_on in (KeyError, (KeyError, OSError), lambda error: isinstance(error, KeyError)):
        breaker = CircuitBreaker(failure_on=failure_on)  # type: ignore[arg-type]
        assert breaker.outcome_of(Failure(KeyError())) is DOWN
        assert breaker.outcome_of(Failure(AsyncTimeoutError())) is (
            DOWN if failure_on == (KeyError, OSError) else NOTHING
        )
        assert breaker.outcome_of(None) is UP
        assert breaker.outcome_of(Failure(ThrottledError(status=404))) is UP
        assert breaker.outcome_of(Failure(ThrottledError())) is THROTTLED
        assert breaker.outcome_of(Failure(ThrottledError(status=500))) is NOTHING


async def asked(error: BaseException) -> bool:
    return False


def yields(error: BaseException) -> Iterator[bool]:
    yield False


class Asked:
    async def __call__(self, error: BaseException) -> bool:
        return False


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CircuitBreaker(failure_rate=0), "failure_rate must be a share, more than 0 and at most 1, not 0"),
        (lambda: CircuitBreaker(failure_rate=20), "failure_rate must be a share, .*, not 20"),
        (lambda: CircuitBreaker(window=0), "window must be at least 1, not 0"),
        (lambda: CircuitBreaker(open_for=0), "open_for must be more than 0 seconds, not 0"),
        (lambda: CircuitBreaker(open_for=60, max_open=30), r"max_open must be at least open_for \(60 s\), not 30 s"),
        (lambda: CircuitBreaker(failure_on="503"), "failure_on must be exception types .*, not '503'"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=()), r"failure_on must be exception types .*, not \(\)"),
        (lambda: CircuitBreaker(failure_on=asked), "failure_on must be .* plain function"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=functools.partial(asked)), "failure_on must be .* plain function"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=Asked()), "failure_on must be .* plain function"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=functools.partial(Asked())), "failure_on must be .* plain function"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=yields), "failure_on must be .* plain function"),  # type: ignore[arg-type]
        (lambda: CircuitBreaker(failure_on=int), "failure_on must be exception types .*int"),  # type: ignore[arg-type]
    ],
)
def test_a_breaker_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


def admitted(breaker: Breaker, now: float = 0.0) -> int:
    ticket = breaker.admit(now)
    assert ticket is not None
    return ticket


def opened(options: CircuitBreaker, now: float = 0.0) -> Breaker:
    breaker = Breaker(options)
    for _ in range(options.window):
        breaker.ended(admitted(breaker), DOWN, now)
    assert breaker.open_since == now
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "opens"),
    [
        ([DOWN] * 19, False),
        ([DOWN] * 20, True),
        ([UP] * 10 + [DOWN] * 12, False),
        ([UP] * 10 + [DOWN] * 13, True),
        ([UP] * 100 + [DOWN] * 9, False),
        ([UP] * 100 + [DOWN] * 10, True),
        ([UP] * 9_000 + [DOWN] * 10, True),
        ([UP] * 100 + [UP, DOWN] * 13, False),
        ([UP] * 100 + [UP, DOWN] * 15, True),
        ([UP, UP, DOWN] * 100 + [DOWN] * 11, False),
        ([UP, UP, DOWN] * 100 + [DOWN] * 12, True),
        ([DOWN] * 10 + [UP] * 10, False),
        ([UP, DOWN, DOWN, DOWN] * 9, False),
        ([UP, DOWN, DOWN, DOWN] * 10, True),
        ([UP, DOWN] * 119, False),
        ([UP, DOWN] * 120, True),
        ([UP, UP, DOWN] * 1000, False),
        ([NOTHING] * 50 + [THROTTLED] * 50, False),
        ([DOWN, NOTHING, THROTTLED, DOWN] * 10, True),
    ],
)
def test_it_opens_by_failures_that_are_not_chance(outcomes: list[CallOutcome], opens: bool) -> None:
    """Half of a full window, and more than a third of all calls would give; others tell nothing of the service."""
    breaker = Breaker(CircuitBreaker())
    for outcome in outcomes:
        assert breaker.open_since is None
        breaker.ended(admitted(breaker), outcome, 7.0)
    assert (breaker.open_since == 7.0) is opens


def test_it_is_in_doubt_when_more_than_a_third_of_a_window_has_failed() -> None:
    """Chance may explain two thirds of `failure_rate`: 6 of 20."""
    breaker = Breaker(CircuitBreaker())
    for failures in range(1, 8):
        assert not breaker.is_in_doubt
        breaker.ended(admitted(breaker), DOWN, float(failures))
    assert breaker.is_in_doubt


def test_a_probe_that_is_answered_closes_it() -> None:
    """Then all calls begin, and the window is empty: what failed before is forgotten."""
    breaker = opened(CircuitBreaker(window=2))
    breaker.ended(admitted(breaker, 10.0), UP, 11.0)
    assert (breaker.open_since, breaker.wait(11.0)) == (None, 0.0)
    breaker.ended(admitted(breaker, 11.0), DOWN, 12.0)
    assert breaker.open_since is None


def test_a_service_that_fails_most_calls_is_left_alone_soon() -> None:
    """Of six in ten failures chance explains a few dozen, not two hundred."""
    calls = []
    for seed in range(20):
        rng, breaker = random.Random(seed), Breaker(CircuitBreaker())
        calls.append(0)
        while breaker.wait(0.0) == 0.0:
            breaker.ended(admitted(breaker), DOWN if rng.random() < 0.6 else UP, 0.0)
            calls[-1] += 1
    assert max(calls) < 200


def test_a_probe_of_a_bad_row_lets_the_next_row_try() -> None:
    """A row that fails by itself, or is cancelled, tells nothing of the service."""
    breaker = opened(CircuitBreaker())
    breaker.ended(admitted(breaker, 10.0), NOTHING, 10.5)
    assert breaker.wait(10.5) == 0.0
    assert breaker.open_since == 0.0


@pytest.mark.parametrize("late", [UP, DOWN])
def test_calls_that_began_before_it_opened_change_nothing(late: CallOutcome) -> None:
    """They end while it is open, or while the probe is out, and neither close it nor take the probe's place."""
    breaker = Breaker(CircuitBreaker(window=2))
    early = [admitted(breaker) for _ in range(4)]
    breaker.ended(early[0], DOWN, 1.0)
    breaker.ended(early[1], DOWN, 1.0)
    breaker.ended(early[2], late, 2.0)
    probe = admitted(breaker, 11.0)
    breaker.ended(early[3], late, 12.0)
    assert (breaker.open_since, breaker.wait(12.0)) == (1.0, None)
    breaker.ended(probe, UP, 13.0)
    assert breaker.open_since is None


def test_it_gives_up_after_max_open() -> None:
    """Counted from when it opened, through all probes that fail, and anew once the service has answered."""
    options, attempt = CircuitBreaker(open_for=10.0, max_open=25.0), Attempt([])
    gate = BreakerGate(options, "ask", str)
    gate.breaker = breaker = opened(options)
    breaker.ended(admitted(breaker, 10.0), DOWN, 11.0)
    assert gate.wait(attempt, 24.9) == 0.0
    probe = admitted(breaker, 24.9)
    assert gate.wait(attempt, 24.9) == pytest.approx(0.1), "not until the probe ends, which may hang"
    with pytest.raises(FatalError, match="the service of ask has given no answer for 25 s, the max_open") as caught:
        gate.wait(attempt, 25.0)
    assert caught.value.option == "breaker"
    breaker.ended(probe, UP, 25.0)
    assert gate.wait(attempt, 99.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from([*CallOutcome]), st.booleans()), max_size=80))
def test_never_two_calls_while_it_is_open(steps: list[tuple[float, CallOutcome, bool]]) -> None:
    """Whatever ends when and how: of the calls that began while it was open at most one is out."""
    breaker, now = Breaker(CircuitBreaker(window=3)), 0.0
    early: list[int] = []
    probes: list[int] = []
    for passed, outcome, begins in steps:
        now += passed
        if begins:
            is_open = breaker.open_since is not None
            if (ticket := breaker.admit(now)) is not None:
                (probes if is_open else early).append(ticket)
        elif out := probes or early:
            breaker.ended(out.pop(0), outcome, now)
        assert len(probes) <= 1
        assert breaker.open_since is not None or not probes
