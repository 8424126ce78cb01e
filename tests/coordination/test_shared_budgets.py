"""A budget that tasks share: never passed, used up, and gone on with by the next run; on a real server."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import Budget, FatalError, RateLimit, ResultStore, async_pandas_udf
from asyncudf._limits.budgets.job import BUDGET_LEASE, SharedBudget
from asyncudf._limits.budgets.option import CALLS
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.link import TaskLink
from asyncudf._stores.ledgers import Ledger, ledger_of
from tests.kit import engines
from tests.kit.coordinators import OnGivenTime, Server, coordinator, linked, space_of_its_own
from tests.kit.engines import run_tasks

pytestmark = pytest.mark.services


def budget_of(link: TaskLink, total: float, ledger: Ledger | None = None) -> SharedBudget:
    return SharedBudget(link, "x", Budget(total), ledger)


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
        while not budget.ask(1.0):
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


async def test_a_task_that_dies_loses_what_it_had_reserved(connected: Coordinator) -> None:
    """And no more than as much again, which it may hold for its next calls."""
    woken, other = asyncio.Event(), asyncio.Event()
    dead = budget_of(linked(connected, "dead", woken.set), 100.0)
    while not dead.ask(3.0):
        await woken.wait()
        woken.clear()
    dead.reserve(3.0)
    dead._task.cancel()  # it is never heard of again
    alive = budget_of(linked(connected, "alive", other.set), 100.0)
    while not alive.ask(90.0):
        await other.wait()
        other.clear()
    assert alive.spent_by_all == 0.0
    await alive.close()
    assert BUDGET_LEASE == 60.0


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
                while not budget.ask(1.0) and not budget.is_spent(1.0):
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


async def reserve(budget: SharedBudget, woken: asyncio.Event, need: float) -> bool:
    """Reserve so much when it is there; False if it never will be."""
    while not budget.ask(need):
        if budget.is_spent(need):
            return False
        woken.clear()
        await woken.wait()
    budget.reserve(need)
    return True


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_a_coordinator_that_forgets_grants_nothing_twice(
    connection: OnGivenTime, tmp_path: Path, *, has_ledger: bool
) -> None:
    """Tasks that have ended spent 6 of 10, and the one at work 1 and has 1 in flight: 8 when the memory was lost."""
    store = ResultStore.disk(str(tmp_path)) if has_ledger else None
    async with ledger_of(store, "b") as ledger:

        def begun(task: str) -> tuple[SharedBudget, asyncio.Event]:
            woken = asyncio.Event()
            return budget_of(linked(connection, task, woken.set), 10.0, ledger), woken

        for number in range(2):
            budget, woken = begun(f"ended {number}")
            for _ in range(3):
                assert await reserve(budget, woken, 1.0)
                budget.settle(1.0, 1.0)
            await budget.close()
        budget, woken = begun("at work")
        assert await reserve(budget, woken, 1.0)
        budget.settle(1.0, 1.0)
        assert await reserve(budget, woken, 1.0)
        await asyncio.sleep(5)
        connection.on_given_time.forget()
        await asyncio.sleep(5)
        budget.settle(1.0, 1.0)
        other, other_woken = begun("new")
        made = 0
        while await reserve(other, other_woken, 1.0):
            other.settle(1.0, 1.0)
            made += 1
        assert made in (1, 2), "the call in flight may count twice"
        assert budget.spent_by_all >= 8.0
        await budget.close()
        await other.close()
        if ledger is not None:
            assert 9.0 <= await ledger.spent_before("next run") <= 11.0


class Broken:
    """A ledger that cannot be written for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = asyncio.get_running_loop().time() + seconds
        self.written = 0.0

    async def spent_before(self, run: str) -> float:
        return 0.0

    async def write(self, run: str, number: int, amount: float) -> None:
        if asyncio.get_running_loop().time() < self._end:
            raise OSError("no space at redis://me:secret@host")
        self.written = amount


@pytest.mark.parametrize("seconds", [20.0, 60.0])
async def test_no_call_begins_before_the_ledger_is_written(connection: OnGivenTime, seconds: float) -> None:
    """It may be away as long as the coordinator; then the job ends and says why."""
    errors: list[BaseException] = []
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    ledger = Broken(seconds)
    budget = budget_of(linked(connection, "t", woken.set, lambda e: errors.append(e) or woken.set()), 10.0, ledger)  # type: ignore[func-returns-value]
    assert not budget.ask(1.0)
    await woken.wait()
    if seconds < 30.0:
        assert seconds <= loop.time() < seconds + 3
        assert budget.ask(1.0)
        assert ledger.written == 1.0
    else:
        (error,) = errors
        assert isinstance(error, FatalError)
        assert "could not be kept in the store= for 30 s" in str(error)
        assert "OSError: no space" in str(error)
        assert "secret" not in str(error)
        assert not budget.ask(1.0)
    await budget.close()


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("divided", [{}, {"per": "day"}, {"by": "tenant"}], ids=["whole", "day", "by"])
def test_a_far_coordinator_does_not_make_calls_wait_for_each_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, divided: dict[str, Any], seconds: float
) -> None:
    """Of a budget that is settled one call was made a round trip: 30 s for 600 calls, which take 1.5 s."""
    ended: list[float] = []

    async def ask(tenant: str, x: int) -> float:
        await asyncio.sleep(seconds)
        ended.append(asyncio.get_running_loop().time())
        return 0.5

    trip = 0.05
    monkeypatch.setattr(engines, "OnGivenTime", lambda server, space: OnGivenTime(server, trip, space))
    budget = Budget(1000, reserve=1, settle=lambda tenant, x, paid: paid, **divided)
    rows = [("acme", x) for x in range(600)]
    run_tasks(server, [ask], rows, capacity=20, budget=budget, returnType="double")
    assert len(ended) == 600
    assert max(ended) < 600 / 20 * max(seconds, trip) + 0.7


@pytest.mark.parametrize(("divided", "late"), [({}, 1.5), ({"by": "tenant"}, 2.5), ({"per": 3600.0}, 2.5)])
def test_calls_that_are_counted_keep_what_they_use_up(
    server: Server, monkeypatch: pytest.MonkeyPatch, divided: dict[str, Any], late: float
) -> None:
    """A task gave back ten times a second what it had of a window or a key, and asked for it again: 27 s, not 15 s."""
    ended: list[float] = []

    async def ask(tenant: str, x: int) -> int:
        await asyncio.sleep(0.5)
        ended.append(asyncio.get_running_loop().time())
        return x

    monkeypatch.setattr(engines, "OnGivenTime", lambda server, space: OnGivenTime(server, 0.2, space))
    rows = [("acme", x) for x in range(600)]
    run_tasks(server, [ask], rows, capacity=20, budget=Budget(1000, CALLS, **divided))
    assert len(ended) == 600
    assert max(ended) < 600 / 20 * 0.5 + late


async def test_a_task_asks_ahead_for_no_more_than_it_has_in_flight(connection: OnGivenTime) -> None:
    """A task that is killed then loses twice what its calls in flight had reserved."""
    woken, other = asyncio.Event(), asyncio.Event()
    dead = SharedBudget(linked(connection, "dead", woken.set), "x", Budget(100.0), waiting=lambda _: 5)
    for _ in range(5):
        assert await reserve(dead, woken, 1.0)
    await asyncio.sleep(0.1)
    assert dead.ask(1.0), "the next call need not wait"
    dead._task.cancel()
    alive = SharedBudget(linked(connection, "alive", other.set), "x", Budget(100.0))
    await asyncio.sleep(BUDGET_LEASE)
    assert await reserve(alive, other, 100.0 - 2 * 5.0)
    assert alive.spent_by_all <= 10.0
    await alive.close()


async def test_a_budget_with_a_name_outlives_a_night(connection: OnGivenTime) -> None:
    """It was forgotten after an hour, and then spent again."""
    named = Budget(3.0, CALLS, name=space_of_its_own())
    for number, expected in enumerate([True, False]):
        woken = asyncio.Event()
        budget = SharedBudget(linked(connection, f"t{number}", woken.set), f"{named.name}:{CALLS}", named)
        assert await reserve(budget, woken, 2.0) is expected
        await budget.close()
        await asyncio.sleep(12 * 3600)


async def test_small_calls_of_a_large_budget_are_asked_for(connected: Coordinator) -> None:
    """A call of less than a billionth of the budget was never counted."""
    woken = asyncio.Event()
    budget = budget_of(linked(connected, "t", woken.set), 1e10)
    assert not budget.ask(1.0)
    assert await reserve(budget, woken, 1.0)
    await budget.close()


def test_functions_that_share_two_budgets_do_not_wait_in_a_circle(server: Server) -> None:
    """Each had got what its call needed of its first budget, and waited for what the other had."""

    async def ask(x: int) -> int:
        await asyncio.sleep(0.1)
        return x

    one, two = (
        Budget(1, reserve=1, settle=lambda x, result: float(x > 7), name=f"{space_of_its_own()} {name}")
        for name in "ab"
    )
    functions = [
        async_pandas_udf(ask, budget=budgets, on_spent="null", capacity=3) for budgets in ([one, two], [two, one])
    ]
    answers = run_tasks(server, functions, range(10))
    assert [len(rows) for rows in answers if isinstance(rows, list)] == [10, 10]


@pytest.mark.parametrize("trip", [0.001, 0.2])
def test_permits_that_calls_have_not_used_are_there_for_the_one_that_waits(
    server: Server, trip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 are reserved for each call and 100 used; the rest became stale while a call waited for its permits."""
    begun: list[float] = []

    async def ask(x: int) -> float:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.05)
        return 100.0

    monkeypatch.setattr(engines, "OnGivenTime", lambda server, space: OnGivenTime(server, trip, space))
    limit = RateLimit(5000, cost=400, settle=lambda x, used: used)
    run_tasks(server, [ask] * 4, range(50), capacity=50, rate_limit=limit, returnType="double")
    assert max(begun) - min(begun) < 0.6 * 200 * 400 / 5000
    assert max(sum(100 for one in begun if first <= one < first + 1) for first in begun) <= 5000 + 400 + 100
