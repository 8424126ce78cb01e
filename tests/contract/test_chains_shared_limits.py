"""What the functions of a chain share in the kit: what has one name, and the limits of a function used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import AsyncStream, Budget, RateLimit, RetryStrategy, async_pandas_udf
from asyncudf.testing import run_stream
from tests.kit.limited import most_within


class Calls:
    """Two functions, and when they were called."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.began = seconds, list[float]()
        self.now = self.most = 0

    async def first(self, k: int) -> int:
        return await self._call(k)

    async def second(self, k: int) -> int:
        return await self._call(k)

    async def _call(self, k: int) -> int:
        self.began.append(asyncio.get_running_loop().time())
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return k

    def run(self, first: Any, second: Any, rows: int = 8, **options: Any) -> list[Any]:
        """The rows of both functions, one after the other."""

        def build(stream: AsyncStream) -> AsyncStream:
            return stream.ordered_wait(first, "k", as_="x", **options).ordered_wait(second, "k", as_="y", **options)

        found: list[Any] = run_stream(build, [{"k": k} for k in range(rows)], "k bigint")
        assert [row["k"] for row in found] == list(range(rows))
        return found


@pytest.fixture
def calls() -> Calls:
    return Calls()


SHARED: list[Callable[[Calls], tuple[Any, Any]]] = [lambda calls: (calls.first, calls.second)]
TWICE: list[Callable[[Calls], tuple[Any, Any]]] = [
    lambda calls: (calls.first, calls.first),
    lambda calls: (async_pandas_udf(calls.first), async_pandas_udf(calls.first).with_options(timeout=100)),
]


@pytest.mark.parametrize("functions", [*SHARED, *TWICE])
def test_a_budget_with_a_name_is_one(calls: Calls, functions: Any) -> None:
    """Two functions made 10 calls of one budget of 5."""
    found = calls.run(*functions(calls), budget=Budget(5, "calls", name="month"), on_spent="null")
    assert len(calls.began) == 5
    assert sum(row[name] is not None for row in found for name in "xy") == 5


@pytest.mark.parametrize("functions", TWICE)
def test_a_function_that_is_used_twice_has_one_limit(calls: Calls, functions: Any) -> None:
    """With max_calls=10 it made 16 calls, and with job_capacity=3 it had 6 in flight."""
    calls.run(*functions(calls), max_calls=10, on_spent="null")
    assert len(calls.began) == 10
    calls.most = 0
    calls.run(*functions(calls), job_capacity=3)
    assert calls.most == 3
    calls.began.clear()
    calls.run(*functions(calls), rate_limit=RateLimit(2, burst=1))
    assert most_within(1.0, calls.began) <= 3
    assert calls.began[-1] - calls.began[0] >= 15 / 2 - 0.1


@pytest.mark.parametrize("options", [{"max_calls": 5, "on_spent": "null"}, {"job_capacity": 3}])
def test_two_functions_have_two_limits_without_a_name(calls: Calls, options: Any) -> None:
    calls.run(calls.first, calls.second, **options)
    assert (len(calls.began), calls.most) == ((10, 5) if "max_calls" in options else (16, 6))


def test_a_call_waits_for_what_another_function_has_reserved(calls: Calls) -> None:
    """And goes on when the other one gives back what it did not use, or fails when that is spent."""
    budget = Budget(10, reserve=8, settle=lambda k, result: 1.0, name="b")
    found = calls.run(calls.first, calls.second, 2, budget=budget, on_spent="null")
    assert [row["y"] for row in found] == [0, None]
    assert len(calls.began) == 3  # 3 are spent, and 8 are not left
    assert calls.most == 1


def test_budgets_of_one_name_with_other_amounts_look_at_the_same_sum(calls: Calls) -> None:
    """As on Spark: a call begins when what all have spent leaves enough of its own amount."""

    def build(stream: AsyncStream) -> AsyncStream:
        small, large = (Budget(amount, "calls", name="b") for amount in (2, 6))
        first = stream.ordered_wait(calls.first, "k", as_="x", budget=small, on_spent="null")
        return first.ordered_wait(calls.second, "k", as_="y", budget=large, on_spent="null")

    found = run_stream(build, [{"k": k} for k in range(8)], "k bigint")
    assert [sum(row[name] is not None for row in found) for name in "xy"] == [2, 4]


@pytest.mark.parametrize(("by", "made"), [(None, 4), ("k", 8)])
def test_windows_and_keys_of_a_budget_are_one(calls: Calls, by: str | None, made: int) -> None:
    """Of 8 rows, of four keys; the kit's calls are all in one window."""
    budget = Budget(made // 2, "calls", name="b", per="day", by=by)

    def build(stream: AsyncStream) -> AsyncStream:
        first = stream.ordered_wait(calls.first, "k", as_="x", budget=budget, on_spent="null")
        return first.ordered_wait(calls.second, "k", as_="y", budget=budget, on_spent="null")

    run_stream(build, [{"k": k % 2} for k in range(12)], "k bigint")
    assert len(calls.began) == (made // 2 if by is None else made)


def test_attempts_count_for_all(calls: Calls) -> None:
    """Retries too."""
    tried = []

    async def fails(k: int) -> int:
        tried.append(k)
        raise ConnectionError

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1)
    calls.run(
        fails, calls.second, 4, budget=Budget(7, "calls", name="b"), retry=retry, on_error="null", on_spent="null"
    )
    assert len(tried) + len(calls.began) == 7


@pytest.mark.parametrize("scope", ["job", "task"])
def test_a_limit_with_a_name_is_one(calls: Calls, scope: Any) -> None:
    calls.run(calls.first, calls.second, rate_limit=RateLimit(2, burst=1, name="r", scope=scope))
    assert calls.began[-1] - calls.began[0] >= 15 / 2 - 0.1


def test_a_limit_by_key_is_one(calls: Calls) -> None:
    calls.run(calls.first, calls.first, rate_limit=RateLimit(1, "minute", burst=1, by="k"))
    assert most_within(50.0, calls.began) <= 8
    assert calls.began[-1] >= 60.0
