"""Each check of scripts/chaos finds the fault that it is for, and finds none in a good job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from tests.chaos.checks import (
    CHECKS,
    Beside,
    Event,
    Job,
    Run,
    each_row_is_there_once,
    faults_of,
    it_failed_with_reason,
    it_stopped,
    no_budget_is_passed,
    queries_beside_it_are_apart,
    the_figures_are_right,
)
from tests.chaos.services import Call
from tests.chaos.shapes import BESIDE_ROWS, LIMITS, Service, Shape, result_of

ROWS, SLOTS = 20, 2


def good_job(store: str = "disk", **options: Any) -> Job:
    """Rows that are called one after the other in two workers, each call for half a second."""
    shape = Shape(
        seed=1,
        rows=ROWS,
        distinct=ROWS,
        options={
            "output_mode": "ordered",
            "capacity": SLOTS,
            "on_error": "raise",
            "attempt_timeout": 2.0,
            "retry": 1,
            **options,
        },
        store=store,
        service=Service(seed=1, seconds=0.1),
    )
    calls = [call(n, 100 + n, pid=1 + n % 2) for n in range(ROWS)]
    rows = pd.DataFrame(
        {"id": range(ROWS), "n": range(ROWS), "value": [result_of(n) for n in range(ROWS)], "error": None}
    )
    run = Run(1, 99.0, 150.0, None, figures(ROWS), rows)
    return Job(shape, calls, [], [run], [])


def call(n: int, began: float, *, pid: int = 1, outcome: str = "ok", seconds: float = 0.5) -> Call:
    made = Call(1, pid, began, (n,))
    made.outcome, made.arrived, made.ended = outcome, began, began + seconds
    return made


def figures(attempts: int, rows: int = ROWS) -> dict[str, int]:
    return {"attempts": attempts, "timeouts": 0, "abandoned": 0, "rows": rows, "dead_letters": 0}


def change_rows(change: Any) -> Any:
    def damage(job: Job) -> None:
        job.runs[0].rows = change(job.runs[0].rows)

    return damage


def set_run(**values: Any) -> Any:
    return lambda job: vars(job.runs[0]).update(values)


def add_calls(*calls: Call) -> Any:
    def damage(job: Job) -> None:
        job.calls += calls
        job.runs[0].figures = figures(len(job.calls))

    return damage


DAMAGES = {
    "it hung": ("it_ended", lambda job: setattr(job, "broken", "hung")),
    "an error without a reason": ("it_failed_with_reason", set_run(error="Py4JError: boom", rows=None)),
    "a row is lost": ("each_row_is_there_once", change_rows(lambda rows: rows.iloc[1:])),
    "a row is doubled": ("each_row_is_there_once", change_rows(lambda rows: pd.concat([rows, rows.iloc[-1:]]))),
    "a row has another's result": (
        "each_row_is_there_once", change_rows(lambda rows: rows.assign(value=rows["value"].iloc[::-1].values))
    ),
    "the order is wrong": ("each_row_is_there_once", change_rows(lambda rows: rows.iloc[::-1])),
    "a row failed that did not have to": (
        "each_row_is_there_once", change_rows(lambda rows: rows.assign(value=rows["value"].where(rows["id"] != 3)))
    ),
    "too many calls in a task": (
        "no_limit_is_passed", add_calls(*(call(n, 140.0, outcome="error") for n in range(SLOTS + 1)))
    ),
    "paid again": ("what_is_paid_is_not_called_again", add_calls(call(3, 140.0))),
    "calls after the end": ("it_stopped", set_run(ended=110.0)),
    "a call that was not counted": ("the_figures_are_right", set_run(figures=figures(ROWS - 1))),
    "a call that was not made": ("the_figures_are_right", set_run(figures=figures(ROWS + 1))),
    "a row that was not counted": ("the_figures_are_right", set_run(figures=figures(ROWS, rows=ROWS - 1))),
    "a process is left": ("nothing_is_left", lambda job: job.left.append("process")),
}  # fmt: skip


def test_a_good_job_has_no_fault() -> None:
    assert faults_of(good_job()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.assign(value=rows["value"].fillna(0)),
        lambda rows: rows.assign(error=rows["value"].isna()),
        lambda rows: rows.assign(n=rows["n"].where(rows["id"] != 4)),
        lambda rows: rows[rows["id"] != 10],
    ],
)
def test_a_row_without_an_argument_has_no_result_and_no_error(change: Any) -> None:
    job = good_job(on_null_input="null")
    rows, nulls = job.runs[0].rows, job.shape.null_rows
    assert rows is not None
    job.runs[0].rows = rows.assign(**{name: rows[name].mask(rows["id"].isin(nulls)) for name in ("n", "value")})
    job.calls = [one for one in job.calls if nulls.isdisjoint(one.ns)]
    job.runs[0].figures = figures(len(job.calls))
    assert (nulls, faults_of(job)) == ({3, 10, 17}, [])
    change_rows(change)(job)
    assert "each_row_is_there_once" in dict(faults_of(job))


def test_a_sink_has_written_what_the_service_has_acknowledged() -> None:
    job = good_job()
    job.shape = replace(job.shape, entry="sink", form="bulk")
    for one in job.calls:
        one.leads = one is job.calls[0]
    job.runs[0].figures = figures(1)
    assert faults_of(job) == []
    job.calls[3].outcome = "refused"
    assert "each_row_is_there_once" in dict(faults_of(job))


@pytest.mark.parametrize(("allowed", "fails"), [(0, True), (5, False)])
def test_a_job_fails_when_more_rows_fail_than_may_and_else_does_not(allowed: int, fails: bool) -> None:
    job = good_job(store="", on_error="null", max_failures=allowed)
    job.shape = replace(job.shape, partitions=1, service=Service(seed=1, seconds=0.1, hopeless=0.1))
    assert 0 < len(job.shape.hopeless) <= 5
    spent = "AsyncUDFError: 1 of 9 rows of asked failed, more than max_failures= allows (0 may)"
    for error, is_right in ((None, not fails), (spent, fails)):
        job.runs[0].error = error
        assert ([*it_failed_with_reason(job)] == []) == is_right


@pytest.mark.parametrize(("allowed", "kills", "is_right"), [(0, True, True), (0, False, False), (9, True, False)])
def test_a_worker_that_is_killed_in_the_last_attempt_may_hide_the_reason(
    allowed: int, kills: bool, is_right: bool
) -> None:
    job = good_job(store="", on_error="null", max_failures=allowed)
    job.shape = replace(job.shape, partitions=1, service=Service(seed=1, seconds=0.1, hopeless=0.1))
    job.runs[0].error, job.runs[0].rows = "SparkException: Python worker exited unexpectedly (crashed).", None
    if kills:
        job.events.append(Event(1.0, "worker", frozenset({1})))
    assert ([*it_failed_with_reason(job)] == []) == is_right


@pytest.mark.parametrize("name", DAMAGES)
def test_a_fault_is_found(name: str) -> None:
    check, damage = DAMAGES[name]
    job = good_job()
    damage(job)
    assert check in [found for found, _ in faults_of(job)]


def test_every_check_is_tested() -> None:
    tested = {check for check, _ in DAMAGES.values()}
    tested |= {no_budget_is_passed.__name__, queries_beside_it_are_apart.__name__}
    assert tested == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize(("amount", "unpaid", "holds"), [(39, 0, True), (38, 0, False), (41, 2, True), (42, 2, False)])
def test_a_budget_is_not_passed_and_is_used(amount: int, unpaid: int, holds: bool) -> None:
    """Twenty answers cost 39 credits, and one costs 3 at most."""
    job = good_job(budget=[amount, "null"])
    job.runs[0].figures["unpaid"] = unpaid
    assert ([*no_budget_is_passed(job)] == []) == holds


def test_spent_calls_leave_rows_out_as_spent_credits_do() -> None:
    job = good_job(store="", budget=[200, "null"], max_calls=ROWS - 2)
    job.calls = job.calls[:-2]
    job.runs[0].figures["unpaid"] = 2
    for check in (it_failed_with_reason, no_budget_is_passed):
        assert [*check(job)] == []
    job.calls.pop()
    assert [*no_budget_is_passed(job)] != []


def test_a_row_whose_answer_died_with_its_worker_may_find_all_calls_spent() -> None:
    job = good_job(store="", on_error="capture", budget=[200, "null"], max_calls=ROWS)
    is_late = job.runs[0].rows["id"] >= ROWS - 2
    job.runs[0].rows.loc[is_late, ["value", "error"]] = [None, "the budget is spent"]
    assert [*each_row_is_there_once(job)] == []
    job.shape.options["max_calls"] = 10 * ROWS + 1000
    assert [*each_row_is_there_once(job)] != []


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"rate_limit": [10, 1]}, [call(n, 140.0 + n / 100, seconds=0.001) for n in range(13)]),
        ({"job_capacity": 1}, [call(0, 140.0, outcome="error", pid=1), call(1, 140.1, outcome="error", pid=2)]),
        ({"max_calls": ROWS}, [call(0, 140.0, outcome="error")]),
    ],
    ids=["rate_limit", "job_capacity", "max_calls"],
)
def test_a_limit_that_is_passed_is_found(options: dict[str, Any], calls: list[Call]) -> None:
    job = good_job(store="", **options)
    assert faults_of(job) == []
    add_calls(*calls)(job)
    assert [check for check, _ in faults_of(job)] == ["no_limit_is_passed"]


def test_a_kill_excuses_what_it_costs_and_no_more() -> None:
    """An answer that came just before its worker was killed is paid for again, an older one is not."""
    job = good_job()
    job.events = [Event(119.7, "worker", frozenset({2}))]
    add_calls(call(ROWS - 1, 140.0))(job)
    assert faults_of(job) == []
    add_calls(call(3, 145.0))(job)
    assert [check for check, _ in faults_of(job)] == ["what_is_paid_is_not_called_again"]


def on_sail(**fields: Any) -> Job:
    job = good_job(store="")
    job.shape = replace(job.shape, engine="sail", entry="operator", **fields)
    return job


@pytest.mark.parametrize(("parallelism", "faults"), [(1, ["each_row_is_there_once"]), (0, [])])
def test_sail_mixes_partitions_but_not_their_rows(parallelism: int, faults: list[str]) -> None:
    """Two partitions of ten rows come mixed. Nothing is promised of their rows where Sail deals them out."""
    job = on_sail(parallelism=parallelism)
    rows = job.runs[0].rows
    assert rows is not None
    mixed = [row for pair in zip(range(10), range(10, 20), strict=True) for row in pair]
    job.runs[0].rows = rows.iloc[mixed]
    assert faults_of(job) == []
    job.runs[0].rows = rows.iloc[[1, 0, *range(2, 20)]]
    assert [check for check, _ in faults_of(job)] == faults


@pytest.mark.parametrize(
    ("entry", "rows", "is_right"), [("operator", 21, False), ("sql", 40, True), ("sql", 41, False)]
)
def test_sail_may_call_a_column_twice_for_a_row(entry: str, rows: int, is_right: bool) -> None:
    job = on_sail()
    job.shape = replace(job.shape, entry=entry)
    job.runs[0].figures = figures(ROWS, rows=rows)
    assert ([*the_figures_are_right(job)] == []) == is_right


@pytest.mark.parametrize(("connect", "kind"), [(True, "driver alone"), (True, "server"), (False, "driver alone")])
def test_only_a_server_that_lives_goes_on_with_the_query_of_a_client_that_was_killed(connect: bool, kind: str) -> None:
    job = on_sail(connect=connect)
    job.events = [Event(105.0, kind, frozenset({9}))]
    assert ([*it_stopped(job)] == []) == (kind == "driver alone" and connect)


def test_calls_of_the_next_driver_are_no_late_ones_of_the_last() -> None:
    job = on_sail(connect=True)
    job.events, job.drives = [Event(99.0, "server", frozenset({9}))], [90.0, 99.5]
    assert [*it_stopped(job)] == []


BESIDE = {
    "it ends": (Beside("ends", 1, 100.0, 110.0, "", [(n, result_of(n)) for n in range(BESIDE_ROWS)]), True),
    "it loses a row": (Beside("ends", 1, 100.0, 110.0, "", [(n, result_of(n)) for n in range(1, BESIDE_ROWS)]), False),
    "it has a row twice": (Beside("stops", 1, 100.0, 110.0, "", [(1, 17)] * 5), False),
    "it has another's result": (Beside("stops", 1, 100.0, 110.0, "", [(n, 1) for n in range(5)]), False),
    "it fails": (Beside("fails", 1, 100.0, 110.0, "ValueError: the neighbour fails", []), True),
    "it does not fail": (Beside("fails", 1, 100.0, 110.0, "", []), False),
    "it fails for another reason": (Beside("ends", 1, 100.0, 110.0, "ValueError: the job fails", []), False),
    "it is not cancelled": (Beside("is cancelled", 1, 100.0, 110.0, "", []), False),
    "it goes on": (Beside("stops", 1, 100.0, 101.0, "", [(n, result_of(n)) for n in range(5)]), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_query_beside_a_job_is_apart_from_it(name: str) -> None:
    beside, is_right = BESIDE[name]
    job = on_sail()
    job.runs[0].beside, job.beside = [beside], {beside.kind: [call(1, 105.0)]}
    assert ([*queries_beside_it_are_apart(job)] == []) == is_right


def test_jobs_on_sail_are_what_it_takes() -> None:
    """Of what kills, only what there is to kill; nothing that Sail refuses by name."""
    shapes = [Shape.random(seed, "sail") for seed in range(2000)]
    for shape in shapes:
        assert (shape.streaming, shape.cluster) == (False, False)
        assert shape.entry != "table function"
        assert shape.connect or not shape.kinds & {"driver alone", "server"}
        assert not shape.kinds & {"worker", "workers", "executor"}
        assert len(shape.kinds) == len(shape.accidents)
        assert not (shape.restarts and "cancel" in shape.kinds)
        assert not (shape.entry == "sql" and "max_calls" in shape.options)
    kinds = {kind for shape in shapes for kind in shape.kinds}
    assert kinds >= {"driver", "driver alone", "server", "coordinator", "redis", "outage", "connections", "cancel"}
    assert {name for shape in shapes for name in shape.options} >= LIMITS
    assert {kind for shape in shapes for kind in shape.beside} == {"ends", "fails", "is cancelled", "stops"}


@pytest.mark.parametrize(("pause", "is_right"), [(0.9, False), (1.5, True)])
def test_a_busy_machine_may_stop_who_waits_for_an_answer(pause: float, is_right: bool) -> None:
    """A row may fail though its answer came, if no call began for half of the time limit after it."""
    job = good_job(store="", on_error="null")
    rows = job.runs[0].rows
    assert rows is not None
    for number, one in enumerate(job.calls):
        one.began = one.arrived = 100 + 0.1 * number + pause * (number > 5)
        one.ended = one.began + 0.05
    change_rows(lambda rows: rows.assign(value=rows["value"].where(rows["id"] != 5)))(job)
    assert (faults_of(job) == []) == is_right
