"""Forecasts of a whole job: intervals, other settings, and how people read them."""

import itertools
from typing import Any

import pytest

from asyncudf import Estimate, Forecast, Rehearsal, ResultStore
from asyncudf._engine.calls.recorder import AttemptRecord
from asyncudf._functions.options import Options
from asyncudf._rehearsal import rehearsal as rehearsal_module
from asyncudf._rehearsal.rehearsal import Job, forecast, proposals
from asyncudf._rehearsal.service_model import ServiceModel, TokenBucket

CALLS = tuple((AttemptRecord(n, 1, 0.0, 0.5 + n % 10 / 10, 1, spent={"USD": 0.01 + n % 4 / 100}),) for n in range(100))


def service(calls: Any = CALLS, **known: Any) -> ServiceModel:
    usual: dict[str, Any] = {
        "failures": 0.0, "concurrency": None, "unsure": 0.0, "buckets": (), "asked": None, "processor": 0.0,
        "size": 10, "most": 10,
    }  # fmt: skip
    return ServiceModel(calls, **{**usual, **known})


JOB = Job([1000, 1000], 2, 1.0, 2.0, 1.0)


def told(model: ServiceModel, job: Job = JOB, **options: Any) -> Forecast:
    return forecast("as it is", {}, Options.of({"capacity": 10, **options}), model, job)


def test_time_and_cost_of_a_job():
    one = told(service())
    assert one.seconds.low < 97 < one.seconds.high  # 1,000 calls of 0.95 s in each task, ten at a time, and 2 s
    assert one.seconds.high < 1.3 * one.seconds.low
    assert one.spent["USD"].low < 50 < one.spent["USD"].high  # 2,000 calls of 0.025 USD
    assert one.spent["USD"].likely == pytest.approx(50)
    assert one.calls == 2000


def test_rows_of_a_task_are_those_of_the_partitions_that_it_takes():
    assert Job([6, 1, 1, 1, 1, 1], 2, 1.0, 0.0, None).longest == [6.0]
    assert Job([1, 2, 3, 4], 2, 0.5, 0.0, None).longest == [1.0, 2.0]
    assert told(service(), Job([1900, 100], 2, 1.0, 0.0, None)).seconds.likely == pytest.approx(181, rel=0.05)


def test_a_forecast_that_takes_long_is_of_fewer_samples(monkeypatch):
    seen = []
    simulate = rehearsal_module.simulate
    monkeypatch.setattr(rehearsal_module, "simulate", lambda *args, **kw: (seen.append(kw), simulate(*args, **kw))[1])
    told(service(), SHORT)
    usual = len(seen)
    monkeypatch.setattr("time.monotonic", itertools.count(0, 10).__next__)
    told(service(), SHORT)
    assert (usual, len(seen) - usual) == (13, 4)


def test_a_million_partitions_are_dealt_out_at_once():
    longest = Job([1] * 1_000_000, 2, 1.0, 0.0, None).longest
    assert len(longest) == 500_000


def test_costs_of_any_size_have_an_interval():
    for size in (1e-120, 1e120):
        calls = [(call[0]._replace(spent={"USD": n % 7 * size}),) for n, call in enumerate(CALLS)]
        low, likely, high = told(service(tuple(calls))).spent["USD"]
        assert low < likely < high


def test_equal_costs_are_shown_as_one():
    assert Estimate(0.3, 0.1 + 0.2, 0.1 + 0.2).shown(str) == "0.3"


def test_no_failure_in_the_sample_is_not_no_failure_in_the_job():
    one = told(service())
    assert one.failures == Estimate(0.0, 0.0, pytest.approx(64, abs=1))
    assert "up to 64 failed rows" in str(one)


def test_a_service_that_may_not_stay_as_fast_as_a_short_sample_widens_the_interval():
    plain, short = told(service(), SHORT).seconds, told(service(shown=10.0), SHORT).seconds
    assert short.high > 1.5 * plain.high
    assert short.likely == plain.likely


def test_failures_of_the_sample_are_a_share_with_an_interval():
    low, likely, high = told(service(failures=0.1)).failures
    assert likely == 200
    assert 90 < low < 150
    assert 280 < high < 380


def test_without_calls_there_is_nothing_to_tell():
    one = told(service(()), Job([0], 2, 0.0, 2.0, None))
    assert (one.calls, one.seconds.likely, one.spent) == (0, 2.0, {})


SHORT = JOB._replace(partitions=[200, 200])


def names(model: ServiceModel, job: Job = SHORT, **options: Any) -> list[str]:
    checked = Options.of({"capacity": 10, **options})
    return [one.name for one in proposals(checked, model, job, forecast("as it is", {}, checked, model, job))]


def test_more_and_fewer_calls_are_proposed_unless_the_sample_shows_more():
    assert names(service()) == ["capacity=20", "capacity=5"]
    assert names(service(), queue_size=10) == ["output_mode=unordered", "capacity=20, queue_size=20"]


def test_what_the_service_takes_is_proposed():
    assert names(service(concurrency=8.0)) == ["capacity=5", "capacity=20"]
    limited = names(service(buckets=(TokenBucket(4.0, 10.0),), asked=1.0))
    assert limited[0] == "rate_limit=RateLimit(3.8)"


def test_a_store_is_proposed_for_arguments_that_come_again():
    again = SHORT._replace(distinct=0.1)
    assert names(service(), again)[0] == "with a store="
    stored = {"store": ResultStore.executor(), "version": "1"}
    assert names(service(), again, **stored) == ["capacity=20", "capacity=5"]


def test_options_of_a_proposal_are_those_of_with_options():
    checked = Options.of({"capacity": 10})
    as_is = forecast("as it is", {}, checked, service(), SHORT)
    faster = proposals(checked, service(), SHORT, as_is)[0]
    assert faster.options == {"capacity": 20}
    assert faster.seconds.likely < as_is.seconds.likely


@pytest.fixture
def rehearsal() -> Rehearsal:
    checked = Options.of({"capacity": 10})
    as_is = forecast("as it is", {}, checked, service(), SHORT)
    return Rehearsal(
        "ask<b>", ("text",), 2000, 200, 12.0, {"USD": 5.0}, tuple(service().latencies), as_is,
        tuple(proposals(checked, service(), SHORT, as_is)), ("try sample=400",),
    )  # fmt: skip


def test_people_read_it_as_text(rehearsal):
    lines = str(rehearsal).splitlines()
    assert lines[0] == "ask<b>(text): 200 calls made of 2,000 rows (12 s, 5 USD)"
    assert lines[1] == "  a call: 900 ms (p50), 1.4 s (p99)"
    assert lines[2].startswith("  as it is: 21 s")
    assert lines[2].endswith("of the time all 10 calls of a task were in flight")
    assert lines[-1] == "  note: try sample=400"


def test_and_as_a_page_with_a_picture(rehearsal, tmp_path):
    pytest.importorskip("jinja2")
    rehearsal.report(tmp_path / "rehearsal.html")
    page = (tmp_path / "rehearsal.html").read_text()
    assert "ask&lt;b&gt;" in page
    assert page.count("<svg") == 3
    assert "<code>capacity=20</code>" in page
    assert "try <code>sample=400</code>" in page
