"""When calls may begin while a service refuses some, on a clock that is given."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._limits.health.throttle import Throttle


def paused(until: float = 5.0, accepted: int = 0, at: float = 1.0) -> Throttle:
    """After so many accepted calls ten were refused."""
    throttle = Throttle(0.0)
    throttle.answered(accepted, 0.0, at)
    for _ in range(10):
        throttle.refused(until, 0.0, at)
    assert throttle.until == until
    return throttle


@pytest.mark.parametrize("until", [5.0, 60.0])
def test_nine_refusals_in_a_row_pause_nobody(until: float) -> None:
    """However long they ask to wait."""
    throttle = Throttle(0.0)
    for _ in range(9):
        throttle.refused(until, 0.0, 1.0)
    assert throttle.is_free(1.0)
    throttle.refused(until, 0.0, 1.0)
    assert throttle.wait(0, 1.0) == until - 1.0


def test_one_wrong_wait_does_not_hold_up_all() -> None:
    throttle = Throttle(0.0)
    for wait in [3600.0, *[5.0] * 9]:
        throttle.refused(wait, 0.0, 1.0)
    assert throttle.until == 5.0


def test_refusals_of_calls_that_began_before_the_pause_say_nothing_new() -> None:
    throttle = paused(until=5.0)
    throttle.refused(60.0, 0.5, 1.5)
    assert throttle.until == 5.0


def test_one_call_probes_and_a_refusal_is_the_next_pause() -> None:
    throttle = paused(until=5.0)
    assert throttle.wait(0, 5.0) == 0.0
    throttle.began(5.0)
    assert throttle.wait(1, 5.0) == 1.0
    throttle.refused(9.0, 5.0, 5.1)
    assert throttle.wait(0, 5.1) == 9.0 - 5.1


def test_a_probe_that_is_told_a_wrong_wait_holds_up_the_others_for_twice_the_last_pause() -> None:
    throttle = paused(until=5.0, at=1.0)
    throttle.began(5.0)
    throttle.refused(3605.0, 5.0, 5.0)
    assert throttle.wait(0, 5.0) == 8.0


def test_a_service_that_is_away_for_long_has_not_become_slower() -> None:
    """100 calls in a second, then nothing for 15 s: of these the last pause counts, of 8 s."""
    throttle = paused(until=2.0, accepted=100)
    for now in (2.0, 4.0, 8.0):
        throttle.began(now)
        throttle.refused(2 * now, now, now)
    throttle.began(16.0)
    throttle.answered(1, 16.0, 16.0)
    throttle.began(16.0)
    throttle.began(16.0)
    assert throttle.wait(0, 16.0) <= 2 / 11


def begun_within(throttle: Throttle, since: float, seconds: float) -> int:
    """How many calls begin, if each begins as soon as it may and is answered at once."""
    now, begun = since, 0
    while now < since + seconds:
        if (wait := throttle.wait(0, now)) > 0.0:
            now += wait
            continue
        throttle.began(now)
        throttle.answered(1, now, now)
        now, begun = now + 1e-4, begun + 1
    return begun


def test_after_an_outage_calls_go_on_as_before() -> None:
    """1,000 calls a second, then nothing for 15 s; with the pause counted there were 62 in the first second."""
    throttle = paused(until=16.0, accepted=1000)
    throttle.began(16.0)
    throttle.answered(1, 16.0, 16.0)
    assert begun_within(throttle, 16.0, 1.0) >= 990


def test_if_more_than_a_few_were_refused_the_pause_counts() -> None:
    throttle = paused(until=16.0, accepted=400)
    throttle.began(16.0)
    throttle.answered(1, 16.0, 16.0)
    assert begun_within(throttle, 16.0, 1.0) <= 30


def refused_at(throttle: Throttle, now: float, wait: float, count: int) -> None:
    for _ in range(count):
        throttle.refused(now + wait, now, now)


@pytest.mark.parametrize(("wait", "enough"), [(50.0, 5), (1.0, 10)])
def test_while_calls_are_paced_five_refusals_show_that_a_long_quota_is_used_up(wait: float, enough: int) -> None:
    throttle = paused(until=60.0, accepted=1000)
    throttle.began(60.0)
    throttle.answered(1, 60.0, 60.0)
    refused_at(throttle, 60.5, wait, enough - 1)
    assert throttle.until < 60.5
    refused_at(throttle, 60.5, wait, 1)
    assert throttle.until == 60.5 + wait


def test_all_pause_only_when_ten_of_the_last_twenty_answers_were_refusals() -> None:
    """However many there were before them."""
    pauses = 0
    for seed in range(50):
        rng, throttle, last = random.Random(seed), Throttle(0.0), deque[bool](maxlen=20)
        for number in range(1500):
            last.append(rng.random() < (0.25 if number < 500 else 0.5))
            if not last[-1]:
                throttle.answered(1, 1.0, 1.0)
                continue
            throttle.refused(5.0, 1.0, 1.0)
            if throttle.until == 5.0:
                assert sum(last) >= 10
                pauses += 1
                break
    assert pauses > 25


def test_a_probe_that_hangs_does_not_hold_up_the_others() -> None:
    throttle = paused(until=5.0)
    throttle.began(5.0)
    assert throttle.wait(1, 6.0) == 0.0
    throttle.began(6.0)
    throttle.answered(1, 6.0, 6.1)
    assert throttle.wait(1, 6.1) == 0.0


def test_a_probe_that_was_cancelled_leaves_it_to_another() -> None:
    throttle = paused(until=5.0)
    throttle.began(5.0)
    throttle.gave_up(5.0)
    assert throttle.wait(0, 5.0) == 0.0


def test_afterwards_calls_begin_at_the_pace_that_was_accepted() -> None:
    """100 calls between the start and the end of the pause, 5 s later."""
    throttle = paused(until=5.0, accepted=100)
    throttle.began(5.0)
    throttle.answered(1, 5.0, 5.02)
    assert 19 <= begun_within(throttle, 5.02, 1.0) <= 22


def test_where_too_few_were_accepted_calls_start_slowly() -> None:
    throttle = paused(until=5.0)
    throttle.began(5.0)
    throttle.answered(1, 5.0, 5.1)
    assert [throttle.wait(in_flight, 5.1) == 0.0 for in_flight in range(4)] == [True, True, False, False]
    throttle.answered(1, 5.1, 5.2)
    assert throttle.wait(2, 5.2) == 0.0


def test_a_pace_that_nothing_contradicts_is_lifted() -> None:
    """Also one of a call in many minutes, of a job that had nothing to do."""
    throttle = paused(until=5000.0, accepted=5)
    throttle.began(5000.0)
    throttle.answered(1, 5000.0, 5000.0)
    throttle.began(5000.0)
    assert 0.0 < throttle.wait(0, 5000.0) <= 20.0
    assert throttle.wait(10**6, 5020.0) == 0.0
    assert throttle.is_free(5020.0)


@pytest.mark.parametrize("asks", [True, False])
def test_when_a_pace_is_lifted_does_not_depend_on_who_asks(asks: bool) -> None:
    """The first refusal after it was forgotten, unless somebody had asked before whether calls are free."""
    throttle = paused(until=5.0, accepted=100)
    throttle.began(5.0)
    throttle.answered(1, 5.0, 5.0)
    if asks:
        assert throttle.is_free(30.0)
    for _ in range(10):
        throttle.refused(40.0, 30.0, 31.0)
    assert throttle.until == 40.0


def test_since_when_nothing_is_accepted_is_known_in_a_pause() -> None:
    """From the first of several pauses on."""
    throttle = paused(until=5.0, at=1.0)
    throttle.began(5.0)
    throttle.refused(9.0, 5.0, 5.1)
    assert throttle.refuses_since == 1.0
    throttle.began(9.0)
    throttle.answered(1, 9.0, 9.1)
    assert throttle.refuses_since is None


def test_time_in_pauses_is_counted() -> None:
    throttle = paused(until=5.0)
    assert throttle.paused_seconds(1.0) == 0.0
    assert throttle.paused_seconds(4.0) == 3.0
    throttle.began(5.0)
    throttle.answered(1, 5.0, 6.0)
    assert throttle.paused_seconds(6.0) == throttle.paused_seconds(100.0) == 5.0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["began", "answered", "refused", "gave_up", "pause"]),
        st.floats(0, 5) | st.just(0.0),
        st.floats(0, 300) | st.just(1e9),
    ),
    max_size=200,
)


@given(STEPS)
def test_every_wait_has_an_end(steps: list[tuple[str, float, float]]) -> None:
    """Whatever comes back, after what `wait` says and the last pause that was asked for a call may begin."""
    throttle, now, last = Throttle(0.0), 0.0, 0.0
    for what, passed, wait in steps:
        now += passed
        began = max(0.0, now - wait % 3)
        if what == "began":
            throttle.began(now)
        elif what == "answered":
            throttle.answered(1, began, now)
        elif what == "gave_up":
            throttle.gave_up(began)
        else:
            last = max(last, now + wait)
            if what == "refused":
                throttle.refused(now + wait, began, now)
            else:
                throttle.pause(now + wait, now)
        found = throttle.wait(0, now)
        assert 0.0 <= found <= max(80.0, last - now + 1.0)
        assert math.isfinite(found)
    end = max(now, last) + 81.0
    assert throttle.wait(0, end) == 0.0
