"""Messages of tasks become the figures of a run: in any order, told twice, of thousands of tasks."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.function_metrics import KINDS_APART, OTHERS, FunctionMetrics
from asyncudf._observe.run_metrics import UNSURE, RunMetrics
from asyncudf._observe.time_account import State
from asyncudf._spark.api.monitor import Run
from tests.kit.costs import python_calls


def message(number: int, status: str = "succeeded", *, rows: int = 10, name: str = "f", use: int = 1) -> dict[str, Any]:
    """What the n-th task tells of one function, as it arrives."""
    metrics = FunctionMetrics(tasks=1, seconds=float(rows), rows=rows, results=rows, calls=rows, attempts=rows + 1)
    metrics.latency.add([0.01 * (1 + number % 7)] * rows)
    metrics.time[State.CALLS_BUSY] = float(rows)
    metrics.note_error("ValueError", lambda: "no")
    task = {"stage": 1, "partition": number, "attempt": 0, "batch": None, "host": "h", "began": 100.0 + number}
    about = {"name": name, "entry_point": "column", "order": [use, 0], "options": {"capacity": 5}}
    told = {"about": about, "metrics": metrics.to_plain(), "timeline": [[1.0, rows, 5.0, 5.0]]}
    whole = {
        "id": f"{use}/{number}",
        "runs": ["r"],
        "task": {**task, "status": status},
        "functions": {f"{use}:0": told},
    }
    found: dict[str, Any] = json.loads(json.dumps(whole))
    return found


def run_of(*messages: dict[str, Any]) -> RunMetrics:
    run = RunMetrics()
    for one in messages:
        run.add(one)
    return run


def rounded(run: RunMetrics) -> Any:
    """Its figures; floats, whose sums depend on the order by a hair, to the microsecond."""
    return json.loads(json.dumps(run.to_plain()), parse_float=lambda text: round(float(text), 6))


def test_a_look_costs_the_same_however_many_tasks_have_ended() -> None:
    """With 3,600 more ended tasks. Progress needs no figures of single tasks, which are most of the work."""
    run, costs, whole = RunMetrics(), dict[int, int](), dict[int, int]()
    for number in range(100):
        run.add(message(number, "running"))
    for number in range(100, 4_100):
        run.add(message(number))
        if number + 1 in (500, 4_100):
            costs[number] = python_calls(lambda: run.to_plain(with_tasks=False))
            whole[number] = python_calls(run.to_plain)
    assert costs[4_099] == pytest.approx(costs[499], rel=0.05)
    assert whole[4_099] == pytest.approx(whole[499], rel=0.05)
    assert 2.5 * costs[4_099] < whole[4_099]


def test_messages_are_added_as_they_come_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long job that nobody looked at kept every message of every task; each look read those of running tasks again.

    Spark's scheduler brings them: it does not wait for one that looks. A message counts with the next one then.
    """
    run = Run(object(), progress=False)  # type: ignore[arg-type]
    for number in range(100):
        run._watch.take(message(number % 10, "running", rows=number))
        assert not list(run._watch.messages())
    with run._lock:
        run._watch.take(message(11, "running"))
    run._watch.take(message(12, "running"))
    monkeypatch.setattr(FunctionMetrics, "from_plain", None)
    for _ in range(2):
        (found,) = run.metrics["functions"]
        assert (found["tasks"]["running"], found["rows"]) == (12, sum(range(90, 100)) + 20)


def test_tasks_whose_end_is_unsure_do_not_fill_the_memory() -> None:
    """A stream with a LIMIT in each micro-batch leaves some of them in each: beyond some they count as they are."""
    run = RunMetrics()
    for number in range(3 * UNSURE):
        run.add({**message(number, rows=1), "awaits_proof": True})
    assert (len(run._unsure), len(run._ended)) == (UNSURE, 2 * UNSURE)
    run.mark_failed({(1, number, 0) for number in range(3 * UNSURE)})
    (found,) = run.to_plain()
    assert (found["tasks"]["succeeded"], found["tasks"]["failed"]) == (2 * UNSURE, UNSURE)
    assert (found["rows"], found["failed_attempts"]["rows"]) == (2 * UNSURE, UNSURE)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["running", "succeeded", "failed", "stopped"]))), st.randoms()
)
def test_neither_order_nor_repetition_matters(told: list[tuple[int, str]], rng: random.Random) -> None:
    """A task has one end; what comes after it, or again, changes nothing."""
    ends: dict[int, str] = {}
    for number, status in told:
        if status != "running":
            ends.setdefault(number, status)
    messages = [message(number, ends.get(number, "running")) for number in dict(told)]
    late = [message(number, "running", rows=3) for number, _ in told if number in ends]
    first = run_of(*messages, *late, *messages)
    rng.shuffle(messages)
    second = run_of(*messages)
    assert rounded(first) == rounded(second)
    if told:
        (found,) = first.to_plain()
        assert found["rows"] == 10 * sum(ends.get(number) != "failed" for number in dict(told))
        assert found["failed_attempts"]["rows"] == 10 * sum(end == "failed" for end in ends.values())


def test_a_task_that_runs_is_counted_as_far_as_it_is() -> None:
    run = run_of(message(1, "running", rows=3), message(1, "running", rows=5), message(2, "running", rows=1))
    assert run.is_running
    (found,) = run.to_plain()
    assert (found["rows"], found["running"]) == (6, {"rows": 6, "in_flight": 10})
    run.add(message(1, rows=8))
    run.lose("1/2")
    assert not run.is_running
    (found,) = run.to_plain()
    assert (found["rows"], found["running"]) == (8, {"rows": 0, "in_flight": 0})


def test_a_task_that_is_not_heard_of_again() -> None:
    """It is lost, and kept apart like one that failed; if its end is told in another way after all, that counts."""
    run = run_of(message(1, "running", rows=3))
    run.lose("1/1")
    run.lose("unknown")
    (found,) = run.to_plain()
    assert (found["tasks"]["lost"], found["rows"], found["failed_attempts"]["rows"]) == (1, 0, 3)
    assert not run.is_running
    run.add(message(1, rows=8))
    (found,) = run.to_plain()
    assert (found["tasks"]["lost"], found["tasks"]["succeeded"], found["rows"]) == (0, 1, 8)
    run.lose("1/1")
    assert run.to_plain() == [found]


def test_a_task_that_ended_well_and_was_not_confirmed_has_not_failed() -> None:
    """A LIMIT reads no task to its end: only what Spark names among the failed ones has failed."""
    told = [{**message(number), "awaits_proof": True} for number in (1, 2, 3)]
    run = run_of(*told, message(2))
    assert not run.is_running
    assert run.unproven_stages == {1}
    run.lose("1/1")
    run.mark_failed({(1, 3, 0), (1, 2, 0), (1, 1, 1)})  # of 2 the end was confirmed; of 1 another attempt has failed
    (found,) = run.to_plain()
    assert (found["tasks"]["succeeded"], found["tasks"]["failed"]) == (2, 1)
    assert (found["rows"], found["failed_attempts"]["rows"]) == (20, 10)
    run.add(message(3))
    assert run.to_plain()[0]["rows"] == 30


def test_functions_stand_in_the_order_of_their_plans_with_labels_of_their_own() -> None:
    """Whoever tells first: a label is that of the plan's place, and no other function has it, whatever it is called."""
    run = run_of(message(1, name="g", use=3), message(1, name="f", use=2), message(1, name="g", use=1))
    assert [one["function"] for one in run.to_plain()] == ["g", "f", "g #2"]
    run = run_of(message(1, name="g", use=1), message(1, name="g", use=2), message(1, name="g #2", use=3))
    assert len({one["function"] for one in run.to_plain()}) == 3


def test_thousands_of_tasks_need_little_memory() -> None:
    """All count; two hundred are kept, and those are the longest."""
    texts = [json.dumps(message(number, rows=1 + number % 500)) for number in range(2000)]
    tracemalloc.start()
    run = RunMetrics()
    for text in texts:
        run.add(json.loads(text))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (found,) = run.to_plain()
    assert found["tasks"]["succeeded"] == 2000
    assert found["rows"] == sum(1 + number % 500 for number in range(2000))
    assert found["latency"]["count"] == found["rows"]
    assert (len(found["per_task"]), found["per_task_left_out"]) == (200, 1800)
    assert min(task["seconds"] for task in found["per_task"]) >= 450
    assert peak < 4e6


def test_the_figures_of_tasks_add_up() -> None:
    told = [message(1, rows=10), message(2, rows=30), message(3, "failed", rows=5)]
    for one, seconds in zip(told[:2], (2.0, 0.5), strict=True):
        one["functions"]["1:0"]["metrics"]["limit_seconds"] = {"RateLimit(20)": seconds, "job_capacity": 0.0}
    (found,) = run_of(*told).to_plain()
    assert (found["calls"], found["attempts"], found["retries"], found["seconds"]) == (40, 42, 2, 40.0)
    assert (found["time"]["calls_busy"], found["limit_seconds"]["RateLimit(20)"]) == (40.0, 2.5)
    assert found["latency"]["mean"] == pytest.approx((10 * 0.02 + 30 * 0.03) / 40)
    assert found["in_flight"]["mean"] == pytest.approx((10 * 0.02 + 30 * 0.03) / 40)
    assert (found["began"], found["ended"]) == (101.0, 132.0)
    assert sorted(task["status"] for task in found["per_task"]) == ["failed", "succeeded", "succeeded"]


def test_of_a_budget_what_was_told_last_counts_whoever_ends_last() -> None:
    """By the coordinator's clock. What tasks hold counts too, so it may get less; and a window begins with nothing."""
    dated = [("2026-11-27", 9.0, 40.0), ("2026-11-28", 5.0, 24.0), ("2026-11-28", 7.0, 21.0)]
    told = [message(number) for number in range(3)]
    for one, (window, at, spent) in zip(told, dated, strict=True):
        one["functions"]["1:0"]["metrics"]["budgets"] = {"reviews": [window, at, spent, 40.0, "USD"]}
    for order in permutations(told):
        (found,) = run_of(*order).to_plain()
        assert (found["budgets"]["reviews"]["window"], found["budgets"]["reviews"]["spent"]) == ("2026-11-28", 21.0)


def test_a_class_for_each_error_does_not_fill_the_memory() -> None:
    """Beyond some types errors are counted together."""
    metrics = FunctionMetrics()
    for number in range(1000):
        metrics.note_error(f"Error{number}", lambda: "text" * 1000)
    assert len(metrics.errors) == KINDS_APART + 1
    assert metrics.errors[OTHERS] == 1000 - KINDS_APART
    assert max(map(len, metrics.examples.values())) <= 500
    twice = FunctionMetrics.from_plain(json.loads(json.dumps(metrics.to_plain())))
    twice.merge(metrics)
    assert twice.errors.total() == 2000
    assert len(twice.errors) == KINDS_APART + 1


def attempt(partition: int, status: str, number: int, *, stage: int = 1) -> dict[str, Any]:
    told = message(10 * partition + number + 1000 * stage, status)
    told["task"].update(stage=stage, partition=partition, attempt=number)
    return told


def test_a_partition_that_no_attempt_has_done_is_given_up() -> None:
    """In whichever order the messages come; what an earlier stage gave up was done again, or there were no other."""
    told = [attempt(0, "failed", 0), attempt(0, "succeeded", 1), attempt(1, "failed", 0), attempt(1, "failed", 1)]
    for order in permutations(told):
        (found,) = run_of(*order).to_plain()
        assert (found["given_up"], found["tasks"]["failed"]) == (1, 3)
    (running,) = run_of(*told, attempt(1, "running", 2)).to_plain()
    (later,) = run_of(*told, attempt(0, "succeeded", 0, stage=2)).to_plain()
    assert (running["given_up"], later["given_up"]) == (0, 0)


def test_a_partition_that_an_attempt_has_done_is_not_given_up_whatever_its_number() -> None:
    """A speculative copy, attempt 1, failed while attempt 0 succeeded: the run counted as incomplete.

    A stage that Spark repeats begins with attempt 0 again.
    """
    copy_failed = [attempt(0, "failed", 1), attempt(0, "succeeded", 0)]
    repeated = [attempt(0, "failed", 0), {**attempt(0, "succeeded", 0), "id": "of the repeated stage"}]
    unproven = [attempt(0, "failed", 1), {**attempt(0, "succeeded", 0), "awaits_proof": True}]
    for told in (copy_failed, repeated, unproven):
        for order in permutations(told):
            assert run_of(*order).to_plain()[0]["given_up"] == 0
    run = run_of(*unproven)
    run.mark_failed({(1, 0, 0)})
    assert [run.to_plain()[0]["given_up"] for _ in range(2)] == [1, 1]


def test_a_partition_whose_last_attempts_failed_is_given_up_whoever_had_done_it_before() -> None:
    """It was lost with its executor, or Spark did not take it; a later attempt, still running, may do it once more."""
    for status in ("succeeded", "stopped"):
        told = [attempt(0, status, 0), attempt(0, "failed", 1), attempt(0, "failed", 2)]
        for later in told[1:]:
            later["task"]["began"] += 60.0
        for order in permutations(told):
            assert run_of(*order).to_plain()[0]["given_up"] == 1
        assert run_of(*told, attempt(0, "running", 3)).to_plain()[0]["given_up"] == 0


def test_a_look_changes_nothing() -> None:
    run = run_of(message(1), message(2, "failed"))
    before = rounded(run)
    run.add(attempt(3, "running", 0, stage=2))
    run.add({**attempt(4, "failed", 0, stage=2), "awaits_proof": True})
    first = rounded(run)
    assert rounded(run) == first
    run._running.clear()
    run._unsure.clear()
    assert rounded(run) == before
