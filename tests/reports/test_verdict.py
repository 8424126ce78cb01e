"""The verdict is of the state that cost most, as sure as the figures allow, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.reports.verdict import verdict
from tests.kit.plain_figures import STATES, figures, latencies, task

BUSY = {"calls_busy": 9.3, "start_and_end": 0.7, "in_flight": {"mean": 18.6, "peak": 20}}
FULL = {"mean": 20, "peak": 20}


SURENESS = [
    ("sure", figures(input=9.3, calls_busy=0.7)),
    ("sure", figures(input=6.1, calls_busy=2.5, store=1.4)),
    ("likely", figures(input=5.5, calls_busy=2.5, store=2.0)),  # half of the time, though nothing else cost as much
    ("likely", figures(input=5.2, output=4.8)),
    ("not clear", figures(input=3.0, output=2.0, store=2.0, limit=2.0, calls_busy=1.0)),
    # Too little: a job of a second tells nothing of one of an hour.
    ("not clear", figures(calls_busy=9.0, input=1.0, latency=latencies(49, 1.5))),
    ("not clear", figures(calls_busy=0.9, latency=latencies(5000, 0.001))),
    ("not clear", figures(seconds=0, latency=latencies(0, 0.0))),
    ("not clear", figures(calls_busy=1200.0, latency=latencies(40, 121.0), in_flight=FULL)),
    ("likely", figures(calls_busy=1200.0, latency=latencies(40, 119.0), in_flight=FULL)),  # ten times the longest
    # Another possible cause makes it likely at most, also where nearly all the time went to one state:
    ("likely", figures(**BUSY)),  # how many calls the service takes
    ("likely", figures(**BUSY, retries=500)),
    ("likely", figures(blocked_loop=9.0, input=1.0)),  # a loop that threads keep busy
]


@pytest.mark.parametrize(("sureness", "function"), SURENESS)
def test_sureness_follows_the_share(sureness: str, function: dict[str, Any]) -> None:
    found = verdict(function)
    assert found.sureness == sureness
    assert json.loads(json.dumps(found._asdict())) == found._asdict()
    assert "would" not in found.text or "too short" not in found.text


def test_blocks_that_cost_little_and_still_most_have_a_verdict() -> None:
    """Of nine states that took about as long, where calls were in flight together."""
    found = verdict(figures(**{**dict.fromkeys(STATES, 1.0), "blocked_loop": 1.1}, in_flight={"mean": 10, "peak": 20}))
    assert (found.state, found.sureness) == ("blocked_loop", "not clear")
    assert "event loop" in found.text
    assert "save" not in found.text


def hanging(*points: list[float]) -> dict[str, Any]:
    """Figures of a task that runs for 10 minutes, the last of these points included."""
    running = {**task(600.0, status="running"), "timeline": [*points, [600.0, 0, 20.0, 20.0]]}
    return {"tasks": {"running": 1}, "per_task": [running]}


@pytest.mark.parametrize("state", ["calls_busy", "head_of_line", "input", "start_and_end"])
def test_calls_that_never_come_back_are_the_answer(state: str) -> None:
    """Whatever else waits for them, and whatever calls took that did come back."""
    none = verdict(figures(**{state: 600.0}, latency=latencies(0, 0.0), **hanging()))
    assert "no call has returned for 10 min; attempt_timeout= tells which" in none.text
    some = verdict(figures(**{state: 600.0}, latency=latencies(400, 0.05), **hanging([60.0, 400, 20.0, 20.0])))
    assert "no call has returned for 9 min; attempt_timeout= tells which" in some.text
    assert {none.sureness, some.sureness} == {"likely"}


def test_calls_that_come_back_are_not_said_to_hang() -> None:
    """Neither those that are no longer than others, nor those that wait for something of ours."""
    for last in (595.0, 300.0):
        long = figures(calls_busy=600.0, latency=latencies(400, 35.0), **hanging([last, 400, 20.0, 20.0]))
        assert "no call" not in verdict(long).text
    assert "no call" not in verdict(figures(limit=600.0, latency=latencies(0, 0.0), **hanging())).text


def test_calls_that_were_given_up_have_not_come_back() -> None:
    """All that is left of them is their number, while free slots wait for an input that is over."""
    text = verdict(figures(start_and_end=600.0, latency=latencies(0, 0.0), abandoned=3)).text
    assert "no call has returned for 10 min; attempt_timeout= tells which" in text
    assert "no call has returned" not in verdict(figures(limit=600.0, latency=latencies(0, 0.0))).text


def test_calls_that_still_run_did_not_block_each_other() -> None:
    """They are in no latency yet, so a running task seems to have fewer in flight than it has."""
    started = {**BUSY, "in_flight": {"mean": 1.0, "peak": 20}}
    assert "all slots" in verdict(figures(**started, tasks={"running": 1})).text
    assert "all slots" in verdict(figures(**started, abandoned=15)).text
    assert "blocked" in verdict(figures(**started)).text


def test_a_small_part_of_the_run_is_said_to_be_one() -> None:
    """Where Spark goes on for a minute with what the function gave in 10 s, twice the slots do not halve the job."""
    job = figures(**BUSY)
    rest = verdict(job).text.removeprefix("93% of the time ")
    assert verdict(job, 60.0).text == f"its tasks ran for 10 s of the run's 1 min: 93% of that time {rest}"
    assert verdict(job, 12.0).text == verdict(job).text


def test_rows_that_took_no_time_ran() -> None:
    """100,000 rows in less than the clock shows: "nothing ran" was said of them."""
    text = verdict(figures(seconds=0, rows=100_000, latency=latencies(100_000, 0.0))).text
    assert text == "too short to tell: 100,000 calls in 0 s"


def test_long_names_of_errors_stay_within_a_line() -> None:
    """Somebody's error has a name of a thousand characters, and a line break."""
    text = verdict(figures(**BUSY, retries=500, errors={"Long\n" * 200: 400})).text
    assert len(text) <= 320
    assert "\n" not in text


amounts = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))
wholes = st.one_of(st.just(0), st.integers(0, 10**12))
maybe = st.one_of(st.none(), amounts)
times = st.dictionaries(st.sampled_from(STATES), amounts)
some_options = st.dictionaries(
    st.sampled_from(["capacity", "queue_size", "batch_size", "timeout", "attempt_timeout", "max_buffered_bytes"]),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
some_latency = st.fixed_dictionaries(
    {"count": wholes, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), maybe)},
    optional={"histogram": st.lists(st.tuples(amounts, wholes).map(list), max_size=3)},
)
statuses = st.dictionaries(st.sampled_from(["succeeded", "stopped", "running", "failed", "lost"]), wholes)
some_points = st.lists(st.tuples(amounts, wholes, amounts, amounts).map(list), max_size=3)
some_tasks = st.lists(
    st.fixed_dictionaries(
        {"status": st.sampled_from(["succeeded", "running", "failed"])},
        optional={
            "seconds": amounts,
            "rows": wholes,
            "time": times,
            "latency": some_latency,
            "partition": wholes,
            "timeline": some_points,
        },
    ),
    max_size=4,
)
in_mean = st.fixed_dictionaries({"mean": amounts, "peak": wholes})
anything = st.fixed_dictionaries(
    {"time": times},
    optional={
        "options": some_options,
        "latency": some_latency,
        "tasks": statuses,
        "per_task": some_tasks,
        "in_flight": in_mean,
        "queued": in_mean,
        "failed_attempts": st.fixed_dictionaries(
            {"seconds": amounts, "calls": wholes},
            optional={"ended_by": st.dictionaries(st.text(max_size=90), wholes, max_size=3)},
        ),
        "limit_seconds": st.dictionaries(st.text(max_size=90), amounts, max_size=3),
        "errors": st.dictionaries(st.text(max_size=90), wholes, max_size=3),
        "began": amounts,
        "ended": amounts,
        "waited": amounts,
        **dict.fromkeys(("rows", "calls", "attempts", "retries", "timeouts", "abandoned", "bytes_peak"), wholes),
        **dict.fromkeys(("store_hits", "store_misses", "per_task_left_out", "given_up", "unkept_failures"), wholes),
        **dict.fromkeys(("following_seconds", "repeated_seconds"), amounts),
        "entry_point": st.sampled_from(["column", "operator"]),
    },
)


@given(anything)
def test_any_figures_have_a_verdict(function: dict[str, Any]) -> None:
    found = verdict(function)
    account, total = function["time"], sum(function["time"].values())
    if total:
        assert found.state is not None
        assert account[found.state] == max(account.values())
        assert found.share == pytest.approx(account[found.state] / total)
    else:
        assert (found.state, found.share) == (None, 0.0)
    assert 0 < len(found.text) <= 330
    assert "\n" not in found.text
