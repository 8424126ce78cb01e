"""The manifest of a run: what an orchestrator reads instead of "it has ended"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncudf import Budget, CircuitBreaker
from asyncudf._observe.reports.manifest import manifest
from asyncudf._observe.reports.run_report import run_report
from asyncudf._observe.reports.summary import summary
from asyncudf.testing import MemoryStore
from tests.kit.runs import run_of_a_function, run_that_ends

PRICED = {"budget": Budget(10, reserve=1.0), "capacity": 4}


async def answer(n: int) -> int:
    if n % 10 == 3:
        raise ValueError("no")
    return n


async def dead(n: int) -> int:
    raise ConnectionError


def of(function: dict[str, Any], *, error: str = "", is_over: bool = True) -> dict[str, Any]:
    told = manifest({"began": 0.0, "seconds": 12.3456, "is_over": is_over, "functions": [function]}, error)
    assert json.loads(json.dumps(told)) == told
    return told


def test_a_run_whose_rows_are_all_done_is_complete() -> None:
    told = of(run_of_a_function(answer, range(100), on_error="null"))
    (function,) = told.pop("functions")
    assert told.pop("asyncudf")
    assert told == {
        "began": "1970-01-01T00:00:00.000+00:00",
        "seconds": 12.346,
        "complete": True,
        "reason": None,
        "exit_code": 0,
        "rows": 100,
        "failures": 10,
        "unpaid": 0,
        "calls": 100,
        "attempts": 100,
        "spent": {},
        "unsettled": 0,
    }
    assert (function["name"], function["rows"], function["reason"]) == ("answer", 100, None)


def test_what_settle_could_not_say_is_in_the_manifest_the_summary_and_the_report(tmp_path: Path) -> None:
    budget = Budget(100, reserve=1.0, settle=lambda n, result: {}[n % 2])
    function = run_of_a_function(answer, range(3), budget=budget)
    told = of(function)
    assert (told["unsettled"], told["functions"][0]["settle_errors"]) == (3, {"KeyError: 0": 2, "KeyError: 1": 1})
    said = "raised for 3 attempts, charged with what they had reserved: 2 x KeyError: 0, 1 x KeyError: 1"
    run = {"began": 0.0, "seconds": 1.0, "is_over": True, "functions": [function]}
    assert said in " ".join(summary(run).split())
    run_report(run, tmp_path / "run.html")
    assert said in (tmp_path / "run.html").read_text()


def test_rows_that_a_budget_left_out_are_not_done() -> None:
    """`on_spent="null"` ends the job well for Spark: only the manifest tells it from one that is done."""
    told = of(run_of_a_function(answer, range(5, 100, 10), **PRICED, on_spent="null"))
    assert told["complete"]
    told = of(run_of_a_function(answer, range(0, 100, 5), **PRICED, on_spent="null", on_error="null"))
    assert (told["complete"], told["reason"], told["exit_code"], told["unpaid"]) == (False, "budget", 75, 10)
    assert (told["rows"], told["calls"], told["spent"]) == (20, 10, {"USD": 10.0})


ENDS = {
    "budget": (answer, {**PRICED, "on_error": "null"}, 75),
    "max_calls": (answer, {"max_calls": 5, "on_error": "null"}, 75),
    "max_failures": (answer, {"max_failures": 2, "on_error": "null"}, 75),
    "breaker": (dead, {"breaker": CircuitBreaker(max_open=30.0), "on_error": "null"}, 75),
    "on_error": (answer, {}, 1),
}


@pytest.mark.parametrize("reason", ENDS)
def test_a_job_that_has_failed_says_what_has_ended_it(reason: str) -> None:
    function, options, code = ENDS[reason]
    told = of(run_that_ends(function, range(3000), **options), error="PythonException")
    assert (told["complete"], told["reason"], told["exit_code"]) == (False, reason, code)
    assert told["calls"] > 0


def test_a_quota_that_is_used_up_is_a_reason_to_come_again() -> None:
    class Error(Exception):
        status_code, code = 429, "insufficient_quota"

    async def ask(n: int) -> int:
        raise Error

    told = of(run_that_ends(ask, range(10), store=MemoryStore(), version="1"), error="PythonException")
    assert (told["reason"], told["exit_code"]) == ("quota", 75)


def test_an_error_that_no_function_has_raised_is_one_too() -> None:
    told = of(run_of_a_function(answer, [1]), error="AnalysisException")
    assert (told["complete"], told["reason"], told["exit_code"]) == (False, "AnalysisException", 1)


def test_before_the_block_has_ended_the_run_is_not_complete() -> None:
    told = of(run_of_a_function(answer, [1]), is_over=False)
    assert (told["complete"], told["reason"], told["exit_code"]) == (False, "running", 1)
