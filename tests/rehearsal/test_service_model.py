"""What a sample of calls shows of their service: its latencies, how many calls it works on, how many it takes."""

import dataclasses
import random
import statistics
from collections.abc import Iterable

import pytest

from asyncudf._engine.calls.recorder import AttemptRecord
from asyncudf._rehearsal.service_model import MOST_FITTED, ServiceModel, TaskSample, TokenBucket


def task(records: Iterable[AttemptRecord], rows: int = 0, size: int = 0, processor: float = 0.0) -> TaskSample:
    return TaskSample([*records], rows, 0, 0, size, processor)


def queued(calls: int, in_flight: int, workers: int, seconds: float) -> TaskSample:
    """Calls of a service that works on so many at a time, in the order in which they come; `in_flight` wait for it."""
    rng = random.Random(0)
    free, slots = [0.0] * workers, [0.0] * in_flight
    records = []
    for number in range(calls):
        began = min(slots)
        start = max(began, min(free))
        end = start + seconds * rng.uniform(0.9, 1.1)
        free[free.index(min(free))], slots[slots.index(began)] = end, end
        records.append(AttemptRecord(number, 1, began, end - began, in_flight))
    return task(records, calls)


def test_calls_that_take_longer_beside_others_show_how_many_the_service_works_on():
    model = ServiceModel.of([queued(50, 4, 20, 0.1)], [queued(150, 40, 20, 0.1)])
    assert model.concurrency == pytest.approx(20, rel=0.1)
    assert statistics.median(model.latencies) == pytest.approx(0.1, rel=0.1)  # what a call takes alone
    assert model.most == 40


def test_a_service_that_takes_as_many_as_come_has_no_bound():
    model = ServiceModel.of([queued(50, 4, 100, 0.1)], [queued(150, 40, 100, 0.1)])
    assert model.concurrency is None


def test_the_first_calls_of_a_task_which_open_the_connections_do_not_count():
    slow = [AttemptRecord(number, 1, 0.0, 1.0, 10) for number in range(10)]
    usual = [AttemptRecord(number, 1, 1.0 + number / 100, 0.1, 10) for number in range(10, 60)]
    model = ServiceModel.of([], [task([*slow, *usual])])
    assert model.latencies == [0.1] * 50
    assert len(model.paid) == 60  # what they did cost counts all the same


def test_few_calls_all_count():
    slow = [AttemptRecord(number, 1, 0.0, 1.0, 3) for number in range(3)]
    usual = [AttemptRecord(number, 1, 1.0, 0.1, 3) for number in range(3, 6)]
    assert ServiceModel.of([], [task([*slow, *usual])]).latencies == [0.1] * 3 + [1.0] * 3


def test_attempts_of_a_call_stay_together():
    records = [
        AttemptRecord(0, 1, 0.0, 0.1, 1, error="OSError", is_down=True),
        AttemptRecord(1, 1, 0.1, 0.2, 1),
        AttemptRecord(0, 1, 0.4, 0.3, 1),
    ]
    calls = ServiceModel.of([], [task(records)]).calls
    assert [[one.seconds for one in call] for call in calls] == [[0.1, 0.3], [0.2]]


def refused_by(bucket: TokenBucket, times: Iterable[float]) -> list[AttemptRecord]:
    """One attempt at each of these times, as the bucket answers them."""
    records: list[AttemptRecord] = []
    for number, began in enumerate(times):
        so_far = [(one.began, one.is_refused) for one in records]
        is_refused = bucket.mistakes([*so_far, (began, False)]) > bucket.mistakes(so_far)
        records.append(
            AttemptRecord(number, 1, began, 0.01, 1, is_refused=is_refused, asked=2.0 if is_refused else None)
        )
    return records


def test_a_limit_is_one_that_would_have_refused_the_same_calls():
    bucket = TokenBucket(rate=20.0, saved=10.0)
    light = task(AttemptRecord(number, 1, number / 10, 0.01, 1) for number in range(20))
    model = ServiceModel.of([light], [task(refused_by(bucket, (number / 50 for number in range(150))))])
    assert model.bucket is not None
    assert model.bucket.rate == pytest.approx(20.0, rel=0.1)
    assert model.asked == 2.0
    assert not any(one.is_refused for call in model.calls for one in call)  # the limit refuses calls from now on


def test_refusals_that_come_as_they_please_are_attempts_like_others():
    rng = random.Random(0)
    light, full = (
        task(AttemptRecord(number, 1, number / 10, 0.01, 1, is_refused=rng.random() < 0.4) for number in range(calls))
        for calls in (50, 150)
    )
    model = ServiceModel.of([light], [full])
    assert model.bucket is None
    assert sum(one.is_refused for call in model.calls for one in call) > 40


def test_another_sample_has_other_calls_of_the_same_service():
    model = ServiceModel.of([], [task(AttemptRecord(n, 1, n / 10, 0.1 + n / 100, 1) for n in range(50))])
    other = model.resampled(random.Random(0), 0)
    assert len(other.calls) == len(model.calls)
    seconds, before = ({one.seconds for call in each.calls for one in call} for each in (other, model))
    assert seconds < before


def test_a_limit_is_looked_for_in_some_of_many_attempts(monkeypatch):
    looked_at = []
    mistakes = TokenBucket.mistakes

    def counted(bucket: TokenBucket, attempts: list) -> int:
        looked_at.append(len(attempts))
        return mistakes(bucket, attempts)

    monkeypatch.setattr(TokenBucket, "mistakes", counted)
    light = task(AttemptRecord(number, 1, number / 10, 0.01, 1) for number in range(20))
    full = task(AttemptRecord(n, 1, n / 50, 0.01, 1, is_refused=n > 20 and n % 3 > 0, asked=1.0) for n in range(20_000))
    model = ServiceModel.of([light], [full])
    assert model.buckets
    assert max(looked_at) == MOST_FITTED


def test_calls_that_were_all_refused_are_calls():
    refused = [AttemptRecord(n, 1, n / 10, 0.01, 1, error="Busy", is_refused=n >= 1) for n in range(40)]
    model = ServiceModel.of([], [task(refused[1:], rows=39)])
    assert len(model.calls) > 0


def test_failures_are_rows_that_have_no_result_and_not_attempts_that_failed():
    records = [AttemptRecord(n, 10, n / 10, 0.01, 1, error="OSError") for n in range(4)]
    sample = TaskSample(records, rows=40, answered=0, failed=10, size=0, processor=0.0)
    assert ServiceModel.of([], [sample]).failures == 0.25


def test_other_samples_have_the_highest_and_the_lowest_limit_and_those_between():
    buckets = tuple(TokenBucket(float(rate), 1.0) for rate in range(1, 10))
    model = dataclasses.replace(ServiceModel.of([], [queued(50, 4, 20, 0.1)]), buckets=buckets)
    rates = [model.resampled(random.Random(0), number).buckets[0].rate for number in range(6)]
    assert rates == [9.0, 1.0, 5.0, 3.0, 7.0, 2.0]


def test_a_sample_that_is_over_at_once_does_not_show_how_fast_it_stays():
    assert ServiceModel.of([], [queued(75, 37, 1000, 0.02)]).shown == pytest.approx(75 / 0.06, rel=0.2)
    assert ServiceModel.of([], [queued(75, 37, 1000, 0.3)]).shown is None
