"""What a sample says of the whole job: each rule alone, with figures that are known exactly."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

from asyncudf import AdaptiveCapacity, Estimate, Forecast, KeyCapacity, RateLimit, Rehearsal, ResultStore
from asyncudf._engine.calls.recorder import AttemptRecord
from asyncudf._functions.options import Options
from asyncudf._rehearsal.arithmetic import (
    Job,
    Sample,
    SampleSize,
    TaskSample,
    forecast,
    longest_of,
    quantile,
    share_of,
    total,
)

CALLS = 100


def records(seconds: Any = lambda n: 0.5 + n % 10 / 10, in_flight: int = 10, **more: Any) -> list[AttemptRecord]:
    """Calls of 0.95 s, ten at a time, one after another in each slot."""
    free, found = [0.0] * in_flight, []
    for number in range(CALLS):
        began = min(free)
        free[free.index(began)] = began + seconds(number)
        made = {name: value(number) for name, value in more.items()}
        found.append(AttemptRecord(number, 1, began, seconds(number), in_flight, **made))
    return found


def sample(of: list[AttemptRecord], failed: int = 0, in_flight: int = 20) -> Sample:
    return Sample([TaskSample(of, len({one.call for one in of}), 0, failed)], in_flight)


JOB = Job([1000, 1000], 2, 1.0, 2.0)
PRICED = records(spent=lambda n: {"USD": 0.01 + n % 4 / 100})


def told(of: Sample | None = None, job: Job = JOB, **options: Any) -> Forecast:
    return forecast(Options.of({"capacity": 10, **options}), of or sample(PRICED), job)


class TestRanges:
    def test_of_nine_of_ten_other_samples_the_sum_is_within(self) -> None:
        rng, within = random.Random(0), 0
        for _ in range(300):
            values = [rng.lognormvariate(0, 1) for _ in range(200)]
            low, _, high = total(values, 600)
            within += low <= math.fsum(rng.lognormvariate(0, 1) for _ in range(600)) <= high
        assert within >= 270

    def test_equal_values_have_a_range_too(self) -> None:
        low, likely, high = total([0.5] * 60, 400)
        assert (low, likely, high) == (pytest.approx(192, abs=1), 200, pytest.approx(208, abs=1))
        assert total([0.5] * 600, 400).high - 200 == pytest.approx(0.8, abs=0.1)  # more calls, less that was missed

    def test_what_a_sample_has_none_of_may_be_among_the_others(self) -> None:
        assert total([0.0] * 100, 1000, unseen=1.0) == (0, 0, pytest.approx(23, abs=1))
        assert share_of(0, 100) == (0, 0, pytest.approx(0.037, abs=0.001))
        assert share_of(100, 100).high == 1

    def test_what_is_known_has_no_range(self) -> None:
        assert total([1.0, 2.0, 6.0], 3, known=3) == (9, 9, 9)

    def test_sums_of_any_size_have_a_range(self) -> None:
        for size in (1e-120, 1e120):
            low, likely, high = total([n % 7 * size for n in range(100)], 1000)
            assert low < likely < high

    def test_a_quantile_is_between_values_of_the_sample(self) -> None:
        ordered = [*range(200)]
        assert quantile(ordered, 0.5) == (85, 99, 114)
        assert quantile(ordered, 0.99) == (194, 197, 199)
        assert quantile([7.0], 0.99) == (7, 7, 7)

    def test_the_longest_of_many_is_nearly_the_longest_of_all(self) -> None:
        assert longest_of([1.0, 2.0], 1) == 1.5
        assert longest_of([1.0, 2.0], 2) == 1.75
        assert longest_of([1.0, 2.0], 50) == pytest.approx(2)

    def test_equal_ends_are_shown_as_one_figure(self) -> None:
        assert Estimate(0.3, 0.1 + 0.2, 0.1 + 0.2).shown(str) == "0.3"
        assert Estimate(1, 2, 3).shown(str) == "2.0 (1.0 to 3.0)"


class TestTime:
    def test_is_that_of_the_calls_ten_at_a_time_in_each_task(self) -> None:
        low, likely, high = told().seconds
        assert low < 97 < high  # 1,000 calls of 0.95 s in each task, and 2 s
        assert likely == pytest.approx(97, rel=0.02)
        assert high < 1.35 * low
        assert told().limited_by == "20 calls in flight: capacity x tasks = 10 x 2"

    def test_rows_of_a_task_are_those_of_the_partitions_that_it_takes(self) -> None:
        assert Job([6, 1, 1, 1, 1, 1], 2, 1.0, 0.0).longest == [6.0]
        assert Job([1, 2, 3, 4], 2, 0.5, 0.0).longest == [1.0, 2.0]
        assert told(job=Job([1900, 100], 2, 1.0, 0.0)).seconds.likely == pytest.approx(181, rel=0.02)

    def test_a_million_partitions_are_dealt_out_at_once(self) -> None:
        assert len(Job([1] * 1_000_000, 2, 1.0, 0.0).longest) == 500_000

    def test_few_rows_take_as_long_as_the_longest_of_them(self) -> None:
        few = told(job=Job([5, 5], 2, 1.0, 0.0))
        assert few.seconds.likely == pytest.approx(1.2, abs=0.1)
        assert few.limited_by == "10 calls in flight, all of a task"

    def test_more_in_flight_than_the_sample_had_may_be_no_faster(self) -> None:
        usual, more = told().seconds, told(capacity=100).seconds
        assert more.low < usual.low / 9
        assert more.high > usual.likely  # the service may take no more calls in a second

    def test_calls_that_wait_for_each_other_set_the_pace(self) -> None:
        """Half of the time in the service is no part of the attempts, as of a loop that is blocked."""
        slow = [one._replace(seconds=one.seconds / 2) for one in records()]
        assert told(sample(slow)).seconds.likely == pytest.approx(97, rel=0.1)

    def test_a_rate_limit_of_the_job_is_shared(self) -> None:
        limited = sample(records(costs=lambda n: (1.0,)))
        one = told(limited, rate_limit=RateLimit(4, burst=1))
        assert one.seconds.low < 2000 / 4 < one.seconds.high
        assert one.seconds.high < 1.3 * one.seconds.low
        assert one.limited_by == "RateLimit(4)"
        assert told(limited, rate_limit=RateLimit(4, burst=1, scope="task")).seconds.likely == pytest.approx(
            252, rel=0.02
        )
        assert told(limited, rate_limit=RateLimit(1000)).seconds.likely == told(limited).seconds.likely

    def test_calls_take_the_permits_that_those_of_the_sample_took(self) -> None:
        limited = sample(records(costs=lambda n: (n % 2 * 8.0,)))
        one = told(limited, rate_limit=RateLimit(4, cost=len))
        assert one.seconds.low < 4 * 2000 / 4 < one.seconds.high
        # What a call gives back of them is not known.
        assert told(limited, rate_limit=RateLimit(4, cost=len, settle=lambda x, y: 1)).seconds.low < 100

    def test_the_commonest_key_takes_longest(self) -> None:
        pytest.importorskip("msgspec")
        limited = sample(records(costs=lambda n: (1.0,)))
        one = told(limited, JOB._replace(commonest={0: 0.75}), rate_limit=RateLimit(1, by="tenant"))
        assert one.seconds.low < 1500 < one.seconds.high < 1.6 * one.seconds.low

    def test_of_a_key_so_many_calls_are_in_flight(self) -> None:
        """The forecast was that of 20 calls in flight, with a note that it left the limit out."""
        pytest.importorskip("msgspec")
        limited = sample(records(costs=lambda n: (1.0,)))
        one = told(limited, JOB._replace(commonest={0: 0.75}), job_capacity=KeyCapacity(4, by="tenant"))
        assert one.seconds.low < 1500 * 0.95 / 4 < one.seconds.high < 1.5 * one.seconds.low
        assert one.limited_by == 'KeyCapacity(4, by="tenant")'
        even = told(limited, JOB._replace(commonest={0: 0.01}), job_capacity=KeyCapacity(4, by="tenant"))
        assert even.limited_by == "20 calls in flight: capacity x tasks = 10 x 2"

    def test_slots_that_a_key_leaves_free_say_nothing_of_the_calls(self) -> None:
        """Few calls ended while many were in flight, of which half waited for their keys."""
        pytest.importorskip("msgspec")
        limited = sample([one._replace(seconds=one.seconds / 2) for one in records(costs=lambda n: (1.0,))])
        one = told(limited, JOB._replace(commonest={0: 0.01}), job_capacity=KeyCapacity(4, by="tenant"))
        assert one.seconds.likely == pytest.approx(2 + 47.5, rel=0.1)

    def test_of_a_limit_that_the_service_tells_its_bounds_are_known(self) -> None:
        limited = sample(records(costs=lambda n: (1.0,)))
        one = told(limited, rate_limit=RateLimit.from_headers("openai", start=60, at_most=600))
        assert one.seconds.low < 2000 / 10 < 2000 < one.seconds.high

    def test_a_service_that_refuses_calls_has_shown_its_pace(self) -> None:
        refused = [AttemptRecord(n, 1, n / 10, 0.01, 1, is_refused=n > 10 and n % 2 > 0) for n in range(100)]
        one = told(sample(refused))
        assert one.seconds.low < 2000 / 5 < one.seconds.high  # five in a second are taken
        assert one.limited_by == "what the service takes before it refuses calls"
        low, likely, high = one.refused
        assert low < likely == 900 < high

    def test_a_full_queue_may_wait_for_its_slowest_row(self) -> None:
        slow = sample(records(lambda n: 20.0 if n == 50 else 1.0))
        usual, held = told(slow).seconds.high, told(slow, queue_size=10).seconds.high
        assert held > 3 * usual
        assert told(slow, queue_size=10, output_mode="unordered").seconds.high == usual

    def test_a_capacity_that_adapts_may_settle_below_its_maximum(self) -> None:
        assert told(capacity=AdaptiveCapacity(1, 10)).seconds.high > 1.5 * told().seconds.high

    def test_the_first_calls_of_a_task_which_open_the_connections_do_not_count(self) -> None:
        connecting = records(lambda n: 5.0 if n < 10 else 0.1)
        assert sample(connecting).latencies == [0.1] * 90
        assert len(sample(connecting).calls) == 100  # what they did cost counts all the same


class TestOtherFigures:
    def test_cost(self) -> None:
        one = told()
        assert one.spent["USD"].low < 50 < one.spent["USD"].high  # 2,000 calls of 0.025 USD
        assert one.spent["USD"].likely == pytest.approx(50)
        assert one.calls == 2000

    def test_with_a_store_the_calls_of_the_sample_are_not_made_again(self) -> None:
        pytest.importorskip("lmdb")
        stored = {"store": ResultStore.executor(), "version": "1"}
        low, likely, high = told(job=Job([50, 50], 2, 1.0, 0.0), **stored).spent["USD"]
        assert low == likely == high == pytest.approx(2.5)

    def test_calls_that_failed_are_made_again_and_may_succeed(self) -> None:
        """50 of 100 calls failed, told as exactly 50 failed rows: the job called them again, and 28 failed."""
        pytest.importorskip("lmdb")
        half = sample([one._replace(has_failed=one.call % 2 > 0) for one in PRICED], failed=50)
        job, stored = Job([50, 50], 2, 1.0, 0.0), {"store": ResultStore.executor(), "version": "1"}
        one = told(half, job, **stored)
        assert one.failures.low < 25 < one.failures.likely == one.failures.high == 50
        assert one.spent["USD"].low == pytest.approx(2.5)
        assert one.spent["USD"].high == pytest.approx(4.0)  # those that failed cost 1.50 once more
        kept = told(half, job, store=ResultStore.executor(error_ttl=60), version="1")
        assert kept.failures.low == kept.failures.high == 50

    def test_how_many_calls_a_store_leaves_may_be_unsure(self) -> None:
        """38 of 60 rows were called, and the cost told as if exactly that share of all rows were."""
        sure = told(job=Job([1000, 1000], 2, 0.5, 2.0))
        unsure = told(job=Job([1000, 1000], 2, 0.5, 2.0, (0.8, 1.2)))
        assert (unsure.calls, unsure.spent["USD"].likely) == (sure.calls, sure.spent["USD"].likely)
        assert unsure.spent["USD"].low < 0.85 * sure.spent["USD"].low
        assert unsure.spent["USD"].high > 1.15 * sure.spent["USD"].high
        assert unsure.seconds.low < 0.9 * sure.seconds.low
        assert unsure.seconds.high > 1.1 * sure.seconds.high

    def test_no_failure_in_the_sample_is_not_no_failure_in_the_job(self) -> None:
        one = told()
        assert one.failures == (0, 0, pytest.approx(91, abs=2))
        assert "up to 91 failed rows" in str(one)

    def test_failures_of_the_sample_are_a_share_with_a_range(self) -> None:
        low, likely, high = told(sample(PRICED, failed=10)).failures
        assert likely == 200
        assert 80 < low < 150
        assert 280 < high < 420

    def test_rows_of_one_call_fail_together(self) -> None:
        batches = [one._replace(rows=10) for one in PRICED]
        job = Job([10_000, 10_000], 2, 0.1, 0.0)
        low, likely, high = forecast(
            Options.of({"capacity": 10}), Sample([TaskSample(batches, 1000, 0, 100)], 20), job
        ).failures
        assert likely == 2000
        assert (low, high) == tuple(10 * one for one in told(sample(PRICED, failed=10)).failures[::2])

    def test_attempts_of_a_call_stay_together(self) -> None:
        again = [*records(), *(one._replace(began=one.began + 200) for one in records())]
        one = told(sample(again))
        assert one.attempts.likely == 4000
        assert one.attempts.low >= one.calls == 2000

    def test_without_calls_there_is_nothing_to_tell(self) -> None:
        one = told(Sample([], 1), Job([0], 2, 0.0, 2.0))
        assert (one.calls, one.seconds.likely, one.spent, one.limited_by) == (0, 2.0, {}, "no row needs a call")


def test_a_sample_has_as_many_in_flight_as_it_can_keep_busy() -> None:
    options = Options.of({"capacity": 20})
    assert SampleSize.of(options, 200, 2) == (2, 100, 20)
    assert SampleSize.of(options, 60, 8) == (3, 20, 10)
    assert SampleSize.of(options, 3, 8) == (1, 3, 1)
    assert SampleSize.of(Options.of({"capacity": 20, "job_capacity": 6}), 200, 2) == (2, 100, 3)
    assert SampleSize.of(options, SampleSize.calls_for(40, 2), 2).in_flight == 20


@pytest.fixture
def rehearsal() -> Rehearsal:
    return Rehearsal(
        "ask<b>", ("text",), 2000, 200, 12.0, {"USD": 5.0}, tuple(sample(PRICED).latencies), told(),
        ("try sample=400",),
    )  # fmt: skip


def test_people_read_it_as_text(rehearsal):
    lines = str(rehearsal).splitlines()
    assert lines[0] == "ask<b>(text): 200 calls made of 2,000 rows (12 s, 5 USD)"
    assert lines[1] == "  a call: 900 ms (800 ms to 1.1 s) p50, 1.4 s p99"
    assert lines[2].startswith("  all 2,000 calls: 1 min 3")
    assert lines[2].endswith(
        "up to 91 failed rows, up to 46 refused attempts; 20 calls in flight: capacity x tasks = 10 x 2"
    )
    assert lines[-1] == "  note: try sample=400"


def test_other_settings_are_no_more_told(rehearsal):
    with pytest.deprecated_call(match="rehearse\\(..., capacity=40\\)"):
        assert rehearsal.proposals == ()


@pytest.mark.parametrize(("old", "told"), [("name", "as it is"), ("options", {}), ("others", None)])
def test_a_program_that_reads_a_forecast_as_in_0_3_goes_on_with_a_warning(rehearsal, old, told):
    with pytest.deprecated_call() as warned:
        found = getattr(rehearsal.as_is, old)
    if old == "others":
        assert found[-2:] == ["up to 91 failed rows", "up to 46 refused attempts"]
    else:
        assert found == told
    assert [Path(one.filename) for one in warned] == [Path(__file__)]  # the program's line


def test_and_as_a_page(rehearsal, tmp_path):
    pytest.importorskip("jinja2")
    rehearsal.report(tmp_path / "rehearsal.html")
    page = (tmp_path / "rehearsal.html").read_text()
    assert "ask&lt;b&gt;" in page
    assert "up to 91 failed rows" in page
    assert "try <code>sample=400</code>" in page
