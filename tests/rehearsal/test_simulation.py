"""The calls of a task on a virtual clock, by the real operator: how long they take is known exactly."""

from typing import Any

import pytest

from asyncudf import RateLimit, RetryStrategy
from asyncudf._engine.calls.recorder import AttemptRecord
from asyncudf._functions.options import Options
from asyncudf._observe.time_account import State
from asyncudf._rehearsal.service_model import ServiceModel, TokenBucket
from asyncudf._rehearsal.simulation import MOST_ATTEMPTS, MOST_CALLS, Outcome, simulate

SECOND = AttemptRecord(0, 1, 0.0, 1.0, 1)


def service(*calls: tuple[AttemptRecord, ...], **known: Any) -> ServiceModel:
    """A service that does this to calls, and has no limits unless they are known."""
    usual: dict[str, Any] = {
        "failures": 0.0, "concurrency": None, "unsure": 0.0, "buckets": (), "asked": None, "processor": 0.0,
        "size": 10, "most": 1,
    }  # fmt: skip
    return ServiceModel(calls or ((SECOND,),), **{**usual, **known})


def run(model: ServiceModel, calls: float = 100, share: float = 1.0, **options: Any) -> Outcome:
    return simulate(Options.of({"capacity": 10, **options}), model, calls=calls, share=share, seed=0)


def test_calls_of_a_second_ten_at_a_time():
    assert run(service()).seconds == pytest.approx(10.0)


def test_the_first_calls_of_a_long_task_tell_how_long_all_take():
    some = run(service(), calls=100_000)
    assert some.calls <= MOST_CALLS
    assert some.seconds_for([100_000]) == pytest.approx(10_000, rel=0.01)
    assert some.seconds_for([50_000, 50_000]) == pytest.approx(10_000, rel=0.01)


def test_a_service_that_works_on_five_calls_at_a_time_sets_the_pace():
    assert run(service(concurrency=5.0)).seconds == pytest.approx(20.0)
    assert run(service(concurrency=5.0), share=0.5).seconds == pytest.approx(40.0)  # it has another task beside it


def test_processor_time_of_calls_adds_up():
    assert run(service(processor=0.5)).seconds == pytest.approx(50.0, rel=0.05)


def test_a_rate_limit_of_the_job_is_shared():
    limit = RateLimit(20, burst=1)
    assert run(service(), calls=200, capacity=50, rate_limit=limit).seconds == pytest.approx(11.0, rel=0.02)
    assert run(service(), calls=200, capacity=50, rate_limit=limit, share=0.5).seconds == pytest.approx(21.0, rel=0.02)


def test_calls_take_the_permits_that_those_of_the_sample_took():
    limit = RateLimit(20, burst=1, cost=lambda text: len(text))
    model = service((SECOND._replace(costs=(4.0,)),))
    assert run(model, calls=100, capacity=50, rate_limit=limit).seconds == pytest.approx(20.8, rel=0.02)


def test_limits_by_key_hold_for_the_keys_of_the_sample():
    pytest.importorskip("msgspec")
    calls = [(SECOND._replace(costs=(1.0,), keys=(key,)),) for key in ("a", "b")]
    outcome = run(service(*calls), capacity=50, rate_limit=RateLimit(2, burst=1, by="tenant"))
    assert 22 < outcome.seconds < 36  # about 50 calls of each tenant, two in a second


def test_calls_that_fail_are_called_again_as_in_the_sample():
    attempts = (SECOND._replace(error="OSError", is_down=True), SECOND._replace(seconds=3.0))
    retry = RetryStrategy.fixed_delay(2, 5.0, retry_on=ValueError)  # what it retries is known from the sample
    outcome = run(service(attempts), calls=10, retry=retry)
    assert (outcome.seconds, outcome.attempts) == (pytest.approx(9.0), 20)


def test_a_service_that_refuses_calls_meets_the_real_pauses():
    model = service(buckets=(TokenBucket(5.0, 5.0),), asked=1.0)
    outcome = run(model, calls=100)
    assert outcome.refused > 0
    assert outcome.seconds > 19


def test_an_attempt_that_was_cut_runs_into_its_limit():
    outcome = run(service((SECOND._replace(is_cut=True, error="AsyncTimeoutError"),)), calls=10, attempt_timeout=7.0)
    assert outcome.seconds == pytest.approx(7.0)


def test_where_the_time_went_is_counted():
    slow = (SECOND._replace(seconds=100.0),)
    model = service(*[(SECOND,)] * 20, slow)
    ordered = run(model, calls=400, queue_size=20)
    unordered = run(model, calls=400, queue_size=20, output_mode="unordered")
    assert ordered.time[State.HEAD_OF_LINE] > 0.5 * ordered.seconds
    assert unordered.seconds < ordered.seconds


def test_many_calls_in_flight_are_no_more_work():
    some = run(service(), calls=1_000_000, capacity=5000)
    assert some.calls == 10 * MOST_CALLS  # each call stands for ten
    assert some.seconds_for([1_000_000]) == pytest.approx(200, rel=0.01)
    limited = run(service(), calls=1_000_000, capacity=5000, rate_limit=RateLimit(1000, burst=1, scope="task"))
    assert limited.rate == pytest.approx(1000, rel=0.02)
    busy = run(service(processor=0.01), calls=1_000_000, capacity=5000)
    assert busy.rate == pytest.approx(100, rel=0.05)


def test_a_slow_limit_does_not_make_it_slow():
    outcome = run(service(), calls=4000, rate_limit=RateLimit(1, per=86_400, burst=1))
    assert outcome.seconds_for([4000]) == pytest.approx(4000 * 86_400, rel=0.1)


def test_calls_with_many_attempts_are_no_more_work():
    down = SECOND._replace(error="OSError", is_down=True)
    outcome = run(service((down,) * 99 + (SECOND,)), retry=RetryStrategy.fixed_delay(100, 0.0), calls=4000)
    assert outcome.attempts < MOST_ATTEMPTS + 100
    assert outcome.seconds_for([4000]) == pytest.approx(40_000, rel=0.3)
    down = down._replace(seconds=0.1)  # all calls that end do so at one moment
    outcome = run(service((down,) * 180), retry=RetryStrategy.fixed_delay(180, 0.1), calls=4000)
    assert outcome.seconds_for([4000]) == pytest.approx(7200, rel=0.3)


def test_a_service_that_takes_no_call_ends_the_job():
    refused = SECOND._replace(error="Busy", status=429, is_refused=True, asked=0.5)
    outcome = run(service((refused,) * 50), calls=4000)
    assert outcome.is_refused
    assert outcome.rate > 0


def test_what_a_call_takes_of_the_processor_is_part_of_its_time():
    assert run(service(processor=1.0), capacity=1, calls=10).seconds == pytest.approx(10.0)
