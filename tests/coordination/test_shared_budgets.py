"""A budget that tasks share: never passed, used up, and gone on with by the next run; on a real server."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import ResultStore
from asyncudf._coordination.budgets import LEASE, Ledger, SharedBudget
from asyncudf._coordination.periodic import TaskLink
from asyncudf._stores.ledgers import ledger_of
from tests.kit.coordinators import Server, coordinator, linked, space_of_its_own

pytestmark = pytest.mark.services


def budget_of(link: TaskLink, total: float, ledger: Ledger | None = None) -> SharedBudget:
    keys = [link.key("budget", "x"), link.key("holders", "x")]
    return SharedBudget(link, keys, total, is_settled=True, ledger=ledger)


async def spend_all(budget: SharedBudget, woken: asyncio.Event, rng: random.Random) -> float:
    """Reserve 1 for each call and spend less, until that is not left; what was spent."""
    spent, calls = 0.0, set[asyncio.Task[None]]()

    async def call() -> None:
        nonlocal spent
        await asyncio.sleep(rng.random() * 0.01)
        cost = rng.random()
        spent += cost
        budget.settle(1.0, cost)
        woken.set()

    while True:
        while not budget.has(1.0):
            if budget.is_spent(1.0):
                await asyncio.gather(*calls)
                return spent
            woken.clear()
            await woken.wait()
        budget.reserve(1.0)
        calls.add(asyncio.create_task(call()))
        await asyncio.sleep(0)


@given(total=st.integers(1, 60), tasks=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_tasks_spend_all_but_less_than_a_call_and_never_more(server: Server, total: int, tasks: int, seed: int) -> None:
    async def job() -> float:
        async with coordinator(server, space_of_its_own()) as connection, asyncio.timeout(60):
            woken = [asyncio.Event() for _ in range(tasks)]
            budgets = [budget_of(linked(connection, f"t{number}", one.set), total) for number, one in enumerate(woken)]
            rngs = [random.Random(seed + number) for number in range(tasks)]
            spent = await asyncio.gather(*map(spend_all, budgets, woken, rngs))
            for budget in budgets:
                await budget.close()
            return sum(spent)

    spent = asyncio.run(job())
    assert total - 1.0 < spent <= total


def test_a_task_that_dies_loses_what_it_had_reserved(server: Server) -> None:
    """And no more than as much again, which it may hold for its next calls."""

    async def job() -> None:
        async with coordinator(server, space_of_its_own()) as connection:
            woken, other = asyncio.Event(), asyncio.Event()
            dead = budget_of(linked(connection, "dead", woken.set), 100.0)
            while not dead.has(3.0):
                await woken.wait()
                woken.clear()
            dead.reserve(3.0)
            dead._task.cancel()  # it is never heard of again
            alive = budget_of(linked(connection, "alive", other.set), 100.0)
            while not alive.has(90.0):
                await other.wait()
                other.clear()
            assert alive.spent_by_all == 0.0
            await alive.close()

    asyncio.run(job())
    assert LEASE == 60.0


@pytest.mark.parametrize("kind", ["disk", "redis"])
def test_the_next_run_goes_on_with_what_is_left(server: Server, tmp_path: Path, kind: str) -> None:
    """Also if this one was killed: what it had reserved is written before its calls begin."""
    store = ResultStore.disk(str(tmp_path)) if kind == "disk" else ResultStore.redis(server.url, space_of_its_own())

    async def run(total: float, calls: int, *, is_killed: bool) -> tuple[int, float]:
        async with coordinator(server, space_of_its_own()) as connection, ledger_of(store, "b:USD") as ledger:
            woken = asyncio.Event()
            budget = budget_of(linked(connection, space_of_its_own(), woken.set), total, ledger)
            made = 0
            for _ in range(calls):
                while not budget.has(1.0) and not budget.is_spent(1.0):
                    woken.clear()
                    await woken.wait()
                if budget.is_spent(1.0):
                    break
                budget.reserve(1.0)
                made += 1
                if not is_killed:
                    budget.settle(1.0, 0.5)
            if is_killed:
                budget._task.cancel()
            else:
                await budget.close()
            return made, budget.spent_by_all

    assert asyncio.run(run(10.0, 4, is_killed=False)) == (4, 2.0)
    assert asyncio.run(run(10.0, 3, is_killed=True))[0] == 3
    made, spent = asyncio.run(run(10.0, 99, is_killed=False))
    assert 10.0 - 1.0 < spent <= 10.0
    assert 2.0 + 3.0 + 0.5 * made <= 10.0
    assert made >= 4, "little more than what was reserved is lost"


def test_a_store_of_an_executor_keeps_no_ledger() -> None:
    async def job() -> None:
        async with ledger_of(ResultStore.executor(max_bytes=2**24), "b") as ledger:
            assert ledger is None
        async with ledger_of(None, "b") as ledger:
            assert ledger is None

    asyncio.run(job())


def test_an_older_answer_does_not_replace_a_younger_one(server: Server, tmp_path: Path) -> None:
    async def job(store: ResultStore) -> None:
        async with ledger_of(store, "b") as ledger:
            assert ledger is not None
            await ledger.write("run", 10, 5.0)
            await ledger.write("run", 9, 99.0)
            await ledger.write("other", 1, 2.0)
            assert await ledger.spent_before("new") == 7.0
            assert await ledger.spent_before("run") == 2.0

    asyncio.run(job(ResultStore.disk(str(tmp_path))))
    asyncio.run(job(ResultStore.redis(server.url, space_of_its_own())))
