"""What is known of a limit that a service tells: the newest answer counts, and calls are fewer when little is left."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncudf import OptionError, RateLimit
from asyncudf._limits.rates.dialects import Told
from asyncudf._limits.rates.learned import Learned
from asyncudf._limits.rates.option import LearnedLimit, limit_label


def learned(dialect: Any = "openai", **options: Any) -> Learned:
    limit = RateLimit.from_headers(dialect, **{"start": 60, "at_most": 1_000, **options})
    assert isinstance(limit, LearnedLimit)
    return Learned(limit)


def test_before_the_first_answer_it_is_the_start() -> None:
    one = learned()
    assert (one.pace(1.0, 5.0), one.opens(1.0, 5.0)) == (60.0, 5.0)


def test_a_later_answer_of_an_older_call_changes_nothing() -> None:
    """A call of a minute ago told 10 a minute, and its answer came last."""
    one = learned()
    assert one.tell(Told(500), began=10.0, now=11.0)
    assert not one.tell(Told(10, 0, 60.0), began=2.0, now=62.0)
    assert (one.pace(1.0, 62.0), one.opens(1.0, 62.0)) == (475.0, 62.0)  # without a word of what is left a little less
    assert one.tell(Told(100, 100), began=62.0, now=63.0)
    assert one.pace(1.0, 63.0) >= 100.0


def test_never_more_than_at_most() -> None:
    one = learned()
    one.tell(Told(1e12, 1e12), began=1.0, now=2.0)
    assert one.pace(1.0, 2.0) == 1_000.0


@pytest.mark.parametrize("dialect", ["openai", "ietf"])
def test_the_pace_falls_with_what_is_left_and_never_stops(dialect: str) -> None:
    one, paces = learned(dialect), []
    for number, left in enumerate((500, 75, 25, 10, 2, 1)):
        one.tell(Told(500, left, 60.0), began=float(number), now=number + 0.1)
        paces.append(one.pace(1.0, number + 0.1))
    assert paces == sorted(paces, reverse=True)
    assert paces[0] == 500.0
    assert paces[-1] == pytest.approx(50.0)


def test_when_nothing_is_left_calls_wait() -> None:
    """For a bucket until it has refilled as much as a call costs, for a window until its end."""
    bucket, window = learned(), learned("ietf")
    for one in (bucket, window):
        one.tell(Told(600, 0, 30.0), began=0.0, now=1.0)
    assert bucket.opens(1.0, 1.0) == pytest.approx(1.1)
    assert bucket.opens(20.0, 1.0) == pytest.approx(3.0)
    assert bucket.opens(20.0, 3.1) == 3.1
    assert bucket.opens(1e9, 1.0) < 60.0  # a call of more than the limit does not wait for ever
    assert window.opens(1.0, 1.0) == 31.0
    assert window.opens(1.0, 31.0) == 31.0


def test_the_rest_of_a_window_is_spread_over_it_and_the_next_has_all() -> None:
    one = learned("github", per="minute")
    one.tell(Told(600, 100, 30.0), began=0.0, now=1.0)
    assert one.pace(1.0, 1.0) == pytest.approx(200.0)  # in a minute: 100 in half of one
    assert one.pace(1.0, 31.0) == 600.0


def test_a_reset_in_the_past_stops_nobody() -> None:
    for dialect in ("openai", "github", "ietf"):
        one = learned(dialect, per="minute")
        one.tell(Told(600, 0, 0.0), began=0.0, now=1.0)
        assert one.opens(1.0, 1.0) <= 1.11
        assert one.pace(1.0, 1.0) > 0


def test_what_takes_longer_to_come_back_is_a_limit_of_a_longer_period() -> None:
    """200 a day: one comes back in 7 min 12 s. It looked like 200 a minute, and each call was refused."""
    one = learned()
    one.tell(Told(200, 199, 432.0), began=0.0, now=1.0)
    assert (one.pace(1.0, 1.0), one.opens(1.0, 1.0)) == (200.0, 1.0)  # 199 are there
    one.tell(Told(200, 0, 86_400.0), began=2.0, now=3.0)
    assert one.opens(1.0, 3.0) == pytest.approx(435.0)


def test_a_limit_of_another_period_and_what_is_not_told() -> None:
    """600 in an hour are 10 in a minute; an answer that tells only what is left keeps the limit."""
    one = learned("ietf")
    one.tell(Told(600, 600, 10.0, 3600.0), began=0.0, now=1.0)
    assert one.permits == 10.0
    one.tell(Told(None, 300), began=2.0, now=3.0)
    assert one.permits == 10.0
    assert one.opens(1.0, 3.0) == 3.0


def test_the_answers_of_long_calls_tell_of_the_past() -> None:
    """So calls become fewer earlier."""
    quick, slow = learned("ietf"), learned("ietf")
    quick.tell(Told(600, 60, 30.0), began=9.9, now=10.0)
    slow.tell(Told(600, 60, 30.0), began=0.0, now=10.0)
    assert quick.pace(1.0, 10.0) > 2 * slow.pace(1.0, 10.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "opnai", "start": 1}, "unknown dialect of rate limit headers 'opnai'; did you mean 'openai'?"),
        ({"dialect": 7, "start": 1}, "the dialect must be one of openai, anthropic, github, ietf, or a plain function"),
        ({"dialect": "openai", "unit": "token", "start": 1}, "did you mean 'tokens'?"),
        ({"dialect": "openai", "unit": "tokens", "start": 1}, "a limit of tokens needs cost="),
        ({"dialect": "openai", "start": 0}, "start of a rate limit must be a number of more than 0"),
        ({"dialect": "openai", "start": 1, "at_most": -1}, "at_most of a rate limit must be a number of more than 0"),
        ({"dialect": "openai", "start": 5, "at_most": 2}, "start must not be more than at_most, 2, not 5"),
        ({"dialect": "openai", "start": 5, "by": "tenant"}, "by= and from_headers do not go together"),
        ({"dialect": "openai", "start": 5, "per": "fortnight"}, "unknown period"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("?", r"\?")):
        RateLimit.from_headers(**options)


def test_it_travels_and_is_shown_as_it_was_written() -> None:
    limit = RateLimit.from_headers("github", start=100, name="api")
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert limit_label(limit) == 'RateLimit.from_headers("github", name="api")'
    tokens = RateLimit.from_headers("anthropic", "input_tokens", start=1e5, cost=500, per="second")
    assert limit_label(tokens) == 'RateLimit.from_headers("anthropic", "input_tokens", per="second", cost=500)'
    assert limit.seconds_for(1e6, 4) == 0.0  # nobody knows what will be told
    assert RateLimit.from_headers("openai", start=1, at_most=60).seconds_for(121, 4) == pytest.approx(120.0, rel=0.02)
