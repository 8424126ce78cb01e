"""What has ended a job comes first in the verdict: how its time was spent matters no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncudf import CircuitBreaker, RateLimit, RetryStrategy
from asyncudf._observe.reports.verdict import verdict
from asyncudf.testing import MemoryStore
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
TOO_MANY = " ended the job (mostly ValueError); first look why rows fail (run.metrics has examples)"
OF_NULL = {"on_error": "null"}
ENDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "max_failures": (rejecting, {**OF_NULL, "max_failures": 100}, f"max_failures=100{TOO_MANY}"),
    "max_failures, found when all rows are done": (
        rejecting, {**OF_NULL, "max_failures": 599, "capacity": 3000}, f"max_failures=599{TOO_MANY}"),
    "max_failures, with a store": (
        rejecting, {**OF_NULL, "max_failures": 0.02, "store": MemoryStore(), "version": "1"},
        f"max_failures=0.02{TOO_MANY}"),
    "max_calls, though some calls have failed": (
        rejecting, {**OF_NULL, "max_calls": 1400, "retry": ONCE_MORE},
        "max_calls=1_400 ended the job (mostly ValueError); all these calls were made, and rows are left: a higher"),
    "a service that is dead for too long": (
        dead_after_a_while, {"breaker": CircuitBreaker(max_open=60.0)},
        "breaker ended the job (mostly ConnectionError); the service gave no answer for its max_open: run it again"),
    "a row that fails": (
        rejecting, {},
        'on_error ended the job (mostly ValueError); a row failed: on_error="null" or "dead_letter" keeps'),
    "an error that is no row's": (
        rejecting, {**OF_NULL, "rate_limit": RateLimit(1000, cost=lambda n: -1, scope="task")},
        "an error ended the job (mostly FatalError); cost of a rate limit must give a number of 0 or more, not -1: "),
    "an exit": (leaving, OF_NULL, "an error ended the job (mostly SystemExit); SystemExit: Spark's log tells more"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_ended_the_job_comes_first(end: str) -> None:
    """Of a job that max_failures had ended it was said that resources opened slowly, in the task that Spark stopped."""
    function, options, told = ENDS[end]
    found = verdict(run_that_ends(function, range(3000), **{"capacity": 20, **options}))
    assert found.text.startswith(told)
    assert found.sureness == "sure"


def test_the_page_says_what_the_verdict_says() -> None:
    quoted = " ".join(line.removeprefix("> ") for line in PAGE.splitlines())
    function, options, _ = ENDS["max_failures"]
    assert verdict(run_that_ends(function, range(3000), capacity=20, **options)).text in quoted
