"""What has ended a job comes first in the verdict: how its time was spent matters no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncudf import CircuitBreaker, RateLimit, RetryStrategy
from asyncudf._observe.reports.verdict import verdict
from asyncudf.testing import MemoryStore
from tests.kit.plain_figures import figures
from tests.kit.runs import run_that_ends


async def rejecting(n: int) -> int:
    await asyncio.sleep(0.05)
    if n % 5 == 0:
        raise ValueError("no such row")
    return n


async def dead_after_a_while(n: int) -> int:
    await asyncio.sleep(0.05)
    if asyncio.get_running_loop().time() > 3:
        raise ConnectionError("refused")
    return n


async def leaving(n: int) -> int:
    await asyncio.sleep(0.05)
    raise SystemExit(n)


PAGE = (Path(__file__).parents[2] / "docs" / "observe.md").read_text()
ONCE_MORE = RetryStrategy.fixed_delay(attempts=2, delay=0.01)

# The function, its options, and what is said.
TOO_MANY = " ended the job: more rows failed than it allows (mostly ValueError); first look why they fail"
OF_NULL = {"on_error": "null"}
ENDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "max_failures": (rejecting, {**OF_NULL, "max_failures": 100}, f"max_failures=100{TOO_MANY}"),
    "max_failures, found when all rows are done": (
        rejecting, {**OF_NULL, "max_failures": 599, "capacity": 3000}, f"max_failures=599{TOO_MANY}"),
    "max_failures, with a store": (
        rejecting, {**OF_NULL, "max_failures": 0.02, "store": MemoryStore(), "version": "1"},
        f"max_failures=0.02{TOO_MANY} (run.metrics has examples); the store keeps the results of calls"),
    "max_calls, though some calls have failed": (
        rejecting, {**OF_NULL, "max_calls": 1400, "retry": ONCE_MORE},
        "max_calls=1_400 ended the job: all these calls were made, and rows are left; a higher one goes further"),
    "a service that is dead for too long": (
        dead_after_a_while, {"breaker": CircuitBreaker(max_open=60.0)},
        "breaker= ended the job: the service gave no answer for its max_open (mostly ConnectionError); run it again"),
    "a row that fails": (
        rejecting, {},
        'a row that failed ended the job (mostly ValueError); on_error="null" or "dead_letter" keeps a task going'),
    "an error that is no row's": (
        rejecting, {**OF_NULL, "rate_limit": RateLimit(1000, cost=lambda n: -1, scope="task")},
        "an error ended the job: cost of a rate limit must give a number of 0 or more, not -1; Spark's log tells more"),
    "an exit": (leaving, OF_NULL, "an error ended the job: SystemExit; Spark's log tells more"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_ended_the_job_comes_first(end: str) -> None:
    """Of a job that max_failures had ended it was said that resources opened slowly, in the task that Spark stopped."""
    function, options, told = ENDS[end]
    found = verdict(run_that_ends(function, range(3000), **{"capacity": 20, **options}))
    assert found.text.startswith(told)
    assert found.sureness == "sure"


def test_a_partition_that_another_attempt_has_done_has_ended_nothing() -> None:
    """The job went on: then the failed attempt is weighed by the time that it took."""
    failed = {"seconds": 0.1, "calls": 20, "errors": {"ValueError": 1}, "ended_by": {"on_error": 1}}
    busy = figures(calls_busy=10.0, tasks={"succeeded": 1, "failed": 1}, failed_attempts=failed, given_up=0)
    assert "capacity" in verdict(busy).text
    assert verdict({**busy, "given_up": 1}).text.startswith("a row that failed ended the job")
    behind = {**busy, "given_up": 1, "failed_attempts": {"seconds": 0.1, "calls": 20, "errors": {}}}
    assert verdict(behind).text == "an error outside of the calls ended the job; Spark's log tells why"


def test_the_page_says_what_the_verdict_says() -> None:
    quoted = " ".join(line.removeprefix("> ") for line in PAGE.splitlines())
    function, options, _ = ENDS["max_failures"]
    assert verdict(run_that_ends(function, range(3000), capacity=20, **options)).text in quoted


def test_rows_that_no_budget_paid_for_come_before_the_time() -> None:
    """They made no call; it was said that half of the calls were made in vain."""
    busy = figures(calls_busy=10.0, rows=1000, failures=499, unpaid=499)
    told = "a budget is spent: 499 of 1,000 rows were not called; a larger one goes further"
    assert (verdict(busy).text, verdict(busy).sureness) == (told, "sure")
