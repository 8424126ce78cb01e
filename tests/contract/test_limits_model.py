"""A rate and a budget against one model, of which a task alone and tasks with a coordinator are two implementations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import Budget, RateLimit
from asyncudf.testing import run_rows
from tests.kit.coordinators import Server, space_of_its_own, start_server
from tests.kit.engines import run_tasks
from tests.kit.limited import most_within, now
from tests.kit.thorough import examples

SHARED = pytest.mark.parametrize("tasks", [1, 4])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with contextlib.closing(start_server()) as started:
        yield started


class Rate:
    """When calls of these costs may begin, if all rows are there and slots enough: one permit after another."""

    def __init__(self, permits: int, period: float, burst: int) -> None:
        self.interval, self.burst = period / permits, burst
        self.empty = -burst * self.interval  # when there is no permit left

    def begin(self, cost: float, at: float = 0.0) -> float:
        begins = max(at, self.empty + min(cost, self.burst) * self.interval)
        self.empty = max(self.empty, begins - self.burst * self.interval) + cost * self.interval
        return begins


RATES = {"permits": st.integers(1, 50), "period": st.sampled_from([1.0, 7.0]), "burst": st.integers(1, 8)}


def asked(begun: list[float]) -> Callable[[float], Any]:
    async def ask(cost: float) -> float:
        begun.append(now())
        await asyncio.sleep(0.01)
        return cost

    return ask


@given(**RATES, costs=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_a_task_alone_begins_each_call_when_the_model_does(
    permits: int, period: float, burst: int, costs: list[int]
) -> None:
    begun: list[float] = []
    limit = RateLimit(permits, period, burst, cost=lambda cost: cost)
    assert run_rows(asked(begun), costs, rate_limit=limit) == costs
    model = Rate(permits, period, burst)
    assert begun == pytest.approx([model.begin(cost) for cost in costs])


@pytest.mark.services
@SHARED
@settings(max_examples=examples(0.4))
@given(**RATES, calls=st.integers(1, 40))
def test_tasks_with_a_coordinator_keep_the_rate_and_use_it(
    server: Server, tasks: int, permits: int, period: float, burst: int, calls: int
) -> None:
    begun: list[float] = []
    limit = RateLimit(permits, period, burst)
    assert run_tasks(server, [asked(begun)] * tasks, range(calls), rate_limit=limit) == [[*range(calls)]] * tasks
    model = Rate(permits, period, 1)  # the burst is what a quiet time saves up: there was none
    steady = [model.begin(1) for _ in begun]
    assert most_within(period, begun) <= 1.02 * permits + burst
    assert begun[-1] - begun[0] <= steady[-1] / 0.95 + 0.5


@pytest.mark.services
@pytest.mark.parametrize("slots", [{"capacity": 4}, {"job_capacity": 40}])
def test_tasks_with_few_slots_use_the_rate_too(server: Server, slots: dict[str, int]) -> None:
    begun: list[float] = []

    async def ask(row: int) -> int:
        begun.append(now())
        await asyncio.sleep(0.05)
        return row

    rows = range(120)
    assert run_tasks(server, [ask] * 10, rows, rate_limit=RateLimit(400), **slots) == [[*rows]] * 10
    assert begun[-1] - begun[0] <= len(begun) / 400 * 1.1


class Money:
    """Which calls are made one after another: as long as what one reserves is left; then it costs what it costs."""

    def __init__(self, amount: int) -> None:
        self.left = amount

    def call(self, reserved: int, cost: int) -> bool:
        if reserved > self.left:
            return False
        self.left -= cost
        return True


COSTS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def paid(spent: list[int]) -> Callable[[int], Any]:
    async def pay(cost: int) -> int:
        spent.append(cost)
        await asyncio.sleep(0.1)
        return cost

    return pay


@given(amount=st.integers(5, 60), costs=COSTS)
def test_a_task_alone_spends_on_the_calls_that_the_model_makes(amount: int, costs: list[int]) -> None:
    spent: list[int] = []
    budget = Budget(amount, reserve=5, settle=lambda cost, result: result)
    got = run_rows(paid(spent), costs, capacity=1, budget=budget, on_spent="null")
    model = Money(amount)
    assert got == [cost if model.call(5, cost) else None for cost in costs]
    assert sum(spent) == amount - model.left


@pytest.mark.services
@SHARED
@given(amount=st.integers(5, 60), costs=COSTS)
def test_tasks_with_a_coordinator_spend_no_more_and_leave_less_than_a_call(
    server: Server, tasks: int, amount: int, costs: list[int]
) -> None:
    spent: list[int] = []
    budget = Budget(amount, reserve=5, settle=lambda cost, result: result, name=space_of_its_own())
    got = run_tasks(server, [paid(spent)] * tasks, costs, capacity=3, budget=budget, on_spent="null")
    assert sum(spent) <= amount
    if any(None in rows for rows in got if isinstance(rows, list)):
        assert amount - sum(spent) < 5
    else:
        assert sum(spent) == tasks * sum(costs)


@pytest.mark.services
@SHARED
@pytest.mark.parametrize(("max_calls", "budget"), [(10, 20), (20, 10), (10, 10)])
def test_of_two_budgets_of_calls_the_smaller_one_holds(server: Server, tasks: int, max_calls: int, budget: int) -> None:
    """On the coordinator they were one, whose amount was that of the budget: `max_calls` was never asked."""
    spent: list[int] = []
    limits: dict[str, Any] = {"max_calls": max_calls, "budget": Budget(budget, "calls"), "on_spent": "null"}
    got = run_tasks(server, [paid(spent)] * tasks, range(100), **limits)
    assert len(spent) == 10
    assert sum(one is not None for rows in got if isinstance(rows, list) for one in rows) == 10
