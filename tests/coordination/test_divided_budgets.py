"""Amounts of windows and keys that tasks share: never passed, used up, and gone on with; on a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asyncudf import Budget, FatalError, ResultStore
from asyncudf._limits.budgets.job import BUDGET_LEASE
from asyncudf._limits.budgets.keyed import KeyedBudget
from asyncudf._limits.budgets.windows import DAY, window_at
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._stores.ledgers import Ledger, ledger_of
from tests.chaos.divided_budgets import run_program
from tests.kit.coordinators import SERVER_TIME, OnGivenTime, Server, coordinator, linked, space_of_its_own
from tests.kit.engines import run_tasks
from tests.kit.thorough import times

pytestmark = pytest.mark.services

MIDNIGHT = window_at("day", SERVER_TIME).end - SERVER_TIME  # on a loop's clock


class Task:
    """A task that shares a budget, and makes calls of its keys by hand."""

    def __init__(self, connection: Coordinator, budget: Budget, name: str = "t", ledger: Ledger | None = None) -> None:
        self.woken, self.error = asyncio.Event(), list[BaseException]()

        def fail(error: BaseException) -> None:
            self.error.append(error)
            self.woken.set()

        link = linked(connection, name, self.woken.set, fail)
        self.amounts = KeyedBudget(link, "b:USD:", budget, ledger, lambda _: self.woken.set())

    async def reserve(self, key: str, need: float = 1.0) -> Any:
        """What has so much reserved, when it is there; None if it never will be."""
        while not (amount := self.amounts.of(key)).ask(need):
            if self.error:
                raise self.error[0]
            if amount.is_spent(need):
                return None
            self.woken.clear()
            await self.woken.wait()
        amount.reserve(need)
        return amount

    async def spend_all(self, key: str, cost: float = 1.0) -> int:
        """How many calls of this cost, which reserve 1, a key has left."""
        made = 0
        while (amount := await self.reserve(key)) is not None:
            amount.settle(1.0, cost)
            made += 1
        return made

    def die(self) -> None:
        """It is never heard of again."""
        self.amounts._task.cancel()


PAID = Budget(10, reserve=1, settle=lambda key, paid: paid, by="key", name="b")
DAILY = Budget(10, reserve=1, settle=lambda key, paid: paid, by="key", name="b", per="day")


async def test_each_key_has_its_amount_over_all_tasks(connection: OnGivenTime) -> None:
    tasks = [Task(connection, PAID, f"t{number}") for number in range(4)]
    made = await asyncio.gather(*(task.spend_all(key, 0.5) for task in tasks for key in "abc"))
    assert sum(made) == 3 * 19, "before the last call of each key 0.5 are left"
    for task in tasks:
        await task.amounts.close()


async def test_a_task_that_dies_loses_what_it_had_reserved_of_each_key(connection: OnGivenTime) -> None:
    """The others know it after its lease, though they have asked for it all the time."""
    dead, alive = Task(connection, PAID, "dead"), Task(connection, PAID, "alive")
    for _ in range(4):
        assert await dead.reserve("a")
    assert await dead.reserve("b")
    await asyncio.sleep(1.0)
    dead.die()
    begun = asyncio.get_running_loop().time()
    assert await asyncio.gather(alive.spend_all("a"), alive.spend_all("b")) == [6, 9]
    assert asyncio.get_running_loop().time() - begun <= BUDGET_LEASE + 1
    await alive.amounts.close()


async def test_a_question_whose_answer_is_lost_counts_once(connection: OnGivenTime, monkeypatch: Any) -> None:
    run, lost = connection.run, random.Random(1)

    async def lossy(*question: Any) -> Any:
        while True:
            answer = await run(*question)
            if lost.random() < 0.6:
                return answer

    monkeypatch.setattr(connection, "run", lossy)
    tasks = [Task(connection, PAID, f"t{number}") for number in range(3)]
    made = await asyncio.gather(*(task.spend_all(key) for task in tasks for key in "ab"))
    assert sum(made) == 20
    for task in tasks:
        await task.amounts.close()


class TestMidnight:
    async def test_it_comes_in_mid_run(self, connection: OnGivenTime) -> None:
        """Calls in flight settle in the old day; what waits begins in the new one, which has all of its amount."""
        task, other = Task(connection, DAILY), Task(connection, DAILY, "other")
        await asyncio.sleep(MIDNIGHT - 10)
        old = [await task.reserve("a") for _ in range(10)]
        waiting = asyncio.create_task(other.reserve("a"))
        await asyncio.sleep(5)
        assert not waiting.done()
        begun = await waiting
        assert 0 <= asyncio.get_running_loop().time() - MIDNIGHT < 0.2
        begun.settle(1.0, 1.0)
        for amount in old:
            amount.settle(1.0, 0.0)
        assert await asyncio.gather(task.spend_all("a"), task.spend_all("b")) == [9, 10]
        for one in (task, other):
            await one.amounts.close()

    async def test_a_server_whose_clock_is_set_back_opens_no_day_again(self, connection: OnGivenTime) -> None:
        budget = DAILY
        task = Task(connection, budget)
        await asyncio.sleep(MIDNIGHT + 1)
        assert await task.spend_all("a") == 10
        clock = connection.on_given_time.run
        connection.on_given_time.run = lambda script, now, *about: clock(script, now - 5000, *about)  # type: ignore[method-assign]
        late = Task(connection, budget, "late")
        assert await late.spend_all("a") == 0
        assert late.amounts.window == window_at("day", SERVER_TIME + MIDNIGHT)
        for one in (task, late):
            await one.amounts.close()

    async def test_a_run_whose_clock_is_behind_the_ledger_goes_on_in_its_day(
        self, connection: OnGivenTime, tmp_path: Path
    ) -> None:
        tomorrow = window_at("day", SERVER_TIME + DAY)
        async with ledger_of(ResultStore.disk(tmp_path), "b") as ledger:
            assert ledger is not None
            await ledger.add(tomorrow, "before", 1, {"a": 7.0})
            task = Task(connection, DAILY, ledger=ledger)
            assert await task.spend_all("a") == 3
            assert task.amounts.window == tomorrow
            await task.amounts.close()


@pytest.mark.parametrize("kind", ["disk", "redis"])
class TestLedger:
    def store(self, kind: str, server: Server, folder: Path) -> ResultStore:
        return ResultStore.disk(folder) if kind == "disk" else ResultStore.redis(server.url, space_of_its_own())

    # Without a name the runs share nothing on the coordinator, as if each had its own.

    def test_the_next_run_goes_on_with_what_is_left_of_each_key(
        self, server: Server, tmp_path: Path, kind: str
    ) -> None:
        """Also if this one was killed: what it had reserved is written before its calls begin."""
        store = self.store(kind, server, tmp_path)

        async def run(amount: float, *, is_killed: bool) -> list[int]:
            async with ledger_of(store, "b") as ledger, coordinator(server, space_of_its_own()) as connection:
                task = Task(connection, dataclasses.replace(PAID, amount=amount, name=None), space_of_its_own(), ledger)
                if is_killed:
                    assert await task.reserve("a")
                    task.die()
                    return []
                made = [await task.spend_all(key) for key in "ab"]
                await task.amounts.close()
                return made

        assert asyncio.run(run(4, is_killed=False)) == [4, 4]
        asyncio.run(run(6, is_killed=True))
        assert asyncio.run(run(6, is_killed=False)) == [1, 2]


class TestLostMemory:
    async def test_what_a_key_has_spent_is_read_from_the_ledger_again(
        self, connection: OnGivenTime, tmp_path: Path
    ) -> None:
        async with ledger_of(ResultStore.disk(tmp_path), "b") as ledger:
            task, other = Task(connection, PAID, "t", ledger), Task(connection, PAID, "other", ledger)
            in_flight = [await task.reserve("a") for _ in range(4)]
            (await other.reserve("a")).settle(1.0, 1.0)
            connection.on_given_time.forget()
            made = asyncio.create_task(other.spend_all("a"))
            await asyncio.sleep(3)
            for amount in in_flight:
                amount.settle(1.0, 0.5)
            assert 5 <= await made <= 7, "1 and 4 x 0.5 are spent by others; that the rest comes back is not known anew"
            for one in (task, other):
                await one.amounts.close()

    async def test_without_one_the_job_ends_and_no_task_that_runs_again_spends_anything(
        self, connection: OnGivenTime
    ) -> None:
        task = Task(connection, PAID)
        assert await task.reserve("a")
        connection.on_given_time.forget()
        with pytest.raises(FatalError, match="the coordinator has lost what was spent of the budget of 10 USD by"):
            await task.reserve("b")
        with pytest.raises(FatalError, match="nobody else knows it"):
            await Task(connection, PAID, "again").reserve("b")


async def test_many_keys_take_one_number_each(connection: OnGivenTime) -> None:
    task = Task(connection, PAID)
    keys = [f"{number:032x}" for number in range(1000)]
    for key in keys:
        (await task.reserve(key)).settle(1.0, 0.37)
    await asyncio.sleep(1.0)
    client = connection.on_given_time._redis
    (name,) = [
        name for name in client.keys(f"*{connection.on_given_time.space}*amounts*") if not name.endswith(":ends")
    ]
    assert Counter(client.hmget(name, keys)) == {"0.37": 1000}
    assert client.memory_usage(name, samples=0) < 110 * len(keys)
    assert not task.amounts._open._amounts
    await task.amounts.close()


def test_rows_of_keys_that_have_to_wait_stop_nobody(server: Server) -> None:
    """One tenant's calls take long and hold all of its budget; those of the others are made meanwhile."""
    ended: dict[str, float] = {}

    async def ask(tenant: str, x: int) -> int:
        await asyncio.sleep(10.0 if tenant == "slow" else 0.1)
        ended[tenant] = asyncio.get_running_loop().time()
        return x

    rows = [("slow", x) for x in range(8)] + [("quick", x) for x in range(8)]
    budget = Budget(2, reserve=1, settle=lambda tenant, x, result: 0.1, by="tenant")
    answers = run_tasks(server, [ask], rows, budget=budget, capacity=4, on_spent="null")
    assert answers == [[*range(8), *range(8)]]
    assert ended["quick"] < 10.0 < ended["slow"]


@pytest.mark.parametrize("seed", times(5, 10))
def test_random_programs_with_kills_pass_no_amount(server: Server, seed: int) -> None:
    """`python -m tests.chaos.divided_budgets 200` runs more of them."""
    assert run_program(server, seed).faults == []
