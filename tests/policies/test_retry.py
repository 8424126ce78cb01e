"""A retry strategy that cannot work is refused where it is made, and a server cannot make one wait for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import tenacity

from asyncudf import OptionError, RetryStrategy
from asyncudf._errors.answers import answer_of
from asyncudf._functions.attempts import EndedAttempt
from asyncudf._functions.options import Options

FIXED_DELAY, BACKOFF = RetryStrategy.fixed_delay, RetryStrategy.exponential_backoff


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FIXED_DELAY(0, 1.0), r"attempts must be at least 1 .*, not 0"),
        (lambda: FIXED_DELAY(True, 1.0), r"attempts must be at least 1 .*, not True"),
        (lambda: FIXED_DELAY(3, -1.0), r"delay must be seconds \(0 or more\) .*, not -1.0"),
        (lambda: FIXED_DELAY(3, float("inf")), r"delay must be seconds \(0 or more\) .*, not inf"),
        (lambda: FIXED_DELAY(3, 1.0, retry_on="ValueError"), "retry_on must be exception types .*, not 'ValueError'"),  # type: ignore[arg-type]
        (lambda: FIXED_DELAY(3, 1.0, retry_if_result=5), "retry_if_result must be a plain function .*, not 5"),  # type: ignore[arg-type]
        (lambda: BACKOFF(3, 5.0, 1.0), r"maximum must be at least initial \(5.0 s\), not 1.0 s"),
        (lambda: BACKOFF(3, 1.0, 5.0, multiplier=0.5), "multiplier must be a number of at least 1, not 0.5"),
        (lambda: BACKOFF(3, 1.0, 5.0, multiplier=math.inf), "multiplier must be a number of at least 1, not inf"),
        (lambda: BACKOFF(3, 1.0, 5.0, jitter="no"), "jitter must be True or False, not 'no'"),  # type: ignore[arg-type]
        (lambda: FIXED_DELAY(3, 10**400), r"delay must be seconds \(0 or more\) .*, not <int of 1329 bits>"),
        (lambda: FIXED_DELAY(3, 1.0, max_retry_after=-1), r"max_retry_after must be seconds \(0 or more\) .*, not -1"),
        (lambda: BACKOFF(3, 1.0, 5.0, max_retry_after=math.inf), "max_retry_after must be seconds .*, not inf"),
        (lambda: RetryStrategy(max_retry_after=None), "max_retry_after must be seconds .*, not None"),  # type: ignore[arg-type]
        (lambda: RetryStrategy(stop=3), "stop must be one of tenacity's stop objects, not 3"),  # type: ignore[arg-type]
    ],
)
def test_a_retry_strategy_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


class BusyError(Exception):
    """An answer with a header."""

    def __init__(self, asked: str) -> None:
        self.headers = {"Retry-After": asked, "Date": "Sun, 22 Nov 2026 10:00:00 GMT"}


STRATEGIES = {
    "fixed": lambda **cap: FIXED_DELAY(9, 2.0, **cap),
    "backoff": lambda **cap: BACKOFF(9, 2.0, 60.0, jitter=False, **cap),
    "tenacity": lambda **cap: RetryStrategy(wait=tenacity.wait_fixed(2), **cap),
}
HEADERS = {
    "7": 7.0,
    "300": 300.0,
    "301": 300.0,
    "86400": 300.0,
    "inf": 300.0,
    "1e308": 300.0,
    "Fri, 31 Dec 9999 23:59:59 GMT": 300.0,
    "Sun, 22 Nov 2026 10:00:30 GMT": 30.0,
    "Sun, 22 Nov 2026 09:00:00 GMT": 2.0,  # it is over
    "0": 2.0,
    "-5": 2.0,
    "nan": 2.0,
    "soon": 2.0,
}


def delay(strategy: RetryStrategy, error: Exception) -> float | None:
    return strategy.next_delay(EndedAttempt(1, 0.0, 0.0, error, None, answer_of(error).wait), 0.5)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("asked", HEADERS)
def test_a_server_is_heeded_within_reason(kind: str, asked: str) -> None:
    """A header of `inf`, or a date in the year 9999, was followed: the row ended, or waited out its deadline."""
    assert delay(STRATEGIES[kind](), BusyError(asked)) == HEADERS[asked]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_how_long_it_is_heeded_can_be_said(kind: str) -> None:
    make = STRATEGIES[kind]
    assert delay(make(max_retry_after=5), BusyError("7")) == 5.0
    assert delay(make(max_retry_after=timedelta(hours=1)), BusyError("7200")) == 3600.0
    assert delay(make(max_retry_after=0), BusyError("7")) == 2.0, "never: the strategy's own delay"


def test_a_result_may_ask_to_wait_too() -> None:
    answer = BusyError("7200")  # a response that was returned
    strategy = FIXED_DELAY(3, 2.0, retry_if_result=lambda result: True, max_retry_after=60)
    assert strategy.next_delay(EndedAttempt(1, 0.0, 0.0, None, answer), 0.5) == 60.0


def test_each_delay_is_so_many_times_the_one_before_until_the_longest() -> None:
    error = ValueError()
    strategy = BACKOFF(9, 2.0, 50.0, multiplier=3, jitter=False)
    delays = [strategy.next_delay(EndedAttempt(n, 0.0, 0.0, error, None), 0.5) for n in range(1, 6)]
    assert delays == [2.0, 6.0, 18.0, 50.0, 50.0]


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (FIXED_DELAY(), [1.0, 1.0, None]),
        (BACKOFF(jitter=False), [0.5, 1.0, 2.0, 4.0, None]),
        (BACKOFF(9, jitter=False), [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]),
    ],
)
def test_a_strategy_without_arguments_is_a_sensible_one(strategy: RetryStrategy, delays: list[float | None]) -> None:
    """It asks again for each `Exception`, and ends well within the usual timeout of a row."""
    ended = [EndedAttempt(n, 0.0, 0.0, OSError(), None) for n in range(1, len(delays) + 1)]
    assert [strategy.next_delay(attempt, 0.5) for attempt in ended] == delays
    assert strategy.next_delay(EndedAttempt(1, 0.0, 0.0, None, "a result"), 0.5) is None
    assert sum(one or 0.0 for one in delays) < (Options().timeout or 0.0)


def test_the_usual_back_off_is_jittered() -> None:
    attempt = EndedAttempt(1, 0.0, 0.0, OSError(), None)
    assert [BACKOFF().next_delay(attempt, draw) for draw in (0.0, 1.0)] == [0.25, 0.5]


def test_an_initial_delay_above_the_usual_maximum_says_what_to_give() -> None:
    with pytest.raises(OptionError, match=r"maximum must be at least initial \(60.0 s\), not 30.0 s"):
        BACKOFF(initial=60)
