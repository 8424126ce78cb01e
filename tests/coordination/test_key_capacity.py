"""`KeyCapacity` over all tasks: neither passed nor wasted, and what a dead task had comes back; virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import KeyCapacity, RateLimit
from asyncudf._limits.capacity.keyed import KEY_SHARES, SharedKeyCalls, prepare_key_shares
from asyncudf._limits.coordinator.client import LEASE, Coordinator
from tests.kit.coordinators import OnGivenTime, Scripts, Server, linked, space_of_its_own
from tests.kit.engines import run_tasks
from tests.kit.limited import most_within, now

pytestmark = pytest.mark.services

START = 1.7e9
FOUR = KeyCapacity(4, by="tenant")


class Tenants:
    """A service that counts the calls of each tenant, from whatever task."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._rng = seconds, random.Random(3)
        self._in_flight = defaultdict[int, int](int)
        self.most = 0
        self.begun = defaultdict[int, list[float]](list)

    def task(self) -> Callable[..., Any]:
        async def call(tenant: int, row: int) -> int:
            self.begun[tenant].append(now())
            self._in_flight[tenant] += 1
            self.most = max(self.most, self._in_flight[tenant])
            await asyncio.sleep(self._seconds * self._rng.uniform(0.8, 1.2))
            self._in_flight[tenant] -= 1
            return row

        return call


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("tasks", [1, 3, 8])
@pytest.mark.parametrize("seconds", [0.1, 0.4])
def test_neither_a_rate_nor_calls_in_flight_are_passed_or_wasted(
    server: Server, seconds: float, tasks: int, mode: str
) -> None:
    """One of 50 tenants has 60% of the rows: it takes as long as the lower of its bounds says."""
    rng, service, rate = random.Random(1), Tenants(seconds), RateLimit(20, burst=1, by="tenant")
    rows = [(0 if rng.random() < 0.6 else rng.randrange(1, 50), row) for row in range(800 // tasks)]
    ended = run_tasks(
        server, [service.task() for _ in range(tasks)], rows, capacity=100, output_mode=mode, rate_limit=rate,
        job_capacity=FOUR,
    )  # fmt: skip
    assert [sorted(rows) for rows in ended] == [[*range(len(rows))]] * tasks  # type: ignore[type-var,arg-type]
    assert service.most <= 4
    assert max(most_within(1.0, times) for times in service.begun.values()) <= 20 * 1.02 + 1
    big = service.begun[0]
    assert big[-1] - big[0] <= 1.1 * len(big) * max(seconds / 4, 1 / 20)


def shares_of(scripts: Scripts, time: float, task: str, keeps: int, want: int, total: int = 4) -> list[int]:
    """What a task is answered that asks for a key."""
    answer = scripts.run(KEY_SHARES, time, ["hash", "pace"], task, total, LEASE, "a", keeps, want)
    return [int(one) for one in answer[2:]]


class TestTheCallsOfAKey:
    def test_are_shared_while_others_wait(self, scripts: Scripts) -> None:
        shares_of(scripts, START, "one", 0, 0)
        begin = START + LEASE + 0.1
        assert shares_of(scripts, begin, "one", 0, 4) == [4, 0]
        assert shares_of(scripts, begin, "two", 0, 3) == [0, 0]
        assert shares_of(scripts, begin, "one", 4, 4) == [4, 2]
        assert shares_of(scripts, begin, "one", 2, 4) == [2, 2]
        assert shares_of(scripts, begin, "two", 0, 3) == [2, 2]

    @pytest.mark.parametrize(
        ("total", "wants", "shares"),
        [
            (4, [4, 4, 4], [1, 1, 2]),  # one task gets the call that is left
            (7, [7, 7, 7, 7], [1, 2, 2, 2]),
            (8, [1, 8, 8], [1, 3, 4]),  # others get what one does not want
            (8, [1, 2, 3], [1, 2, 3]),
            (3, [3, 3, 3, 3, 3], [0, 0, 1, 1, 1]),
        ],
    )
    def test_are_all_used_though_they_do_not_come_out_even(
        self, scripts: Scripts, total: int, wants: list[int], shares: list[int]
    ) -> None:
        """With a share rounded down four tasks of seven calls had four in flight; three tasks of four calls three."""
        shares_of(scripts, START, "one", 0, 0)
        begin, has, most = START + LEASE + 0.1, [0] * len(wants), [math.inf] * len(wants)
        for step in range(20):
            for task, want in enumerate(wants):
                kept = int(min(has[task], most[task]))
                has[task], share = shares_of(scripts, begin + step / 100, f"{task}", kept, want, total)
                most[task] = share or math.inf
            assert sum(has) <= total
        assert sorted(has) == shares

    def test_of_a_dead_task_are_free_when_its_lease_is_over(self, scripts: Scripts) -> None:
        shares_of(scripts, START, "one", 0, 0)
        begin = START + LEASE + 0.1
        assert shares_of(scripts, begin, "dead", 0, 4) == [4, 0]
        got = {step: shares_of(scripts, begin + step / 10, "other", 0, 4)[0] for step in range(45)}
        assert min(step for step, may in got.items() if may) in (40, 41)

    def test_are_not_free_because_no_task_asked(self, scripts: Scripts) -> None:
        """The server was away: the first task that comes back must not get what others have in flight."""
        shares_of(scripts, START, "one", 0, 0)
        begin = START + LEASE + 0.1
        assert shares_of(scripts, begin, "one", 0, 4) == [4, 0]
        assert shares_of(scripts, begin + 60, "two", 0, 4) == [0, 0]
        assert shares_of(scripts, begin + 60.1, "one", 4, 4) == [4, 2]


class Task:
    """A task's calls of a key."""

    def __init__(self, connection: Coordinator, name: str) -> None:
        self.waiting = 0
        self.calls = SharedKeyCalls(linked(connection, name), "x", FOUR, lambda key: self.waiting, lambda key: None)

    async def begin(self, key: str = "a") -> float:
        """Wait until a call may begin, and begin it; returns when."""
        row = object()
        async with asyncio.timeout(30):
            while not self.calls.may_begin(key, row, now()):
                self.waiting = 1
                await asyncio.sleep(0.01)
        self.waiting = 0
        self.calls.began(key, row)
        return now()

    def end(self) -> None:
        self.calls.ended("a", now())


@pytest.mark.usefixtures("given_time")
async def test_a_task_gives_back_what_it_does_not_use(connection: OnGivenTime) -> None:
    await prepare_key_shares(connection, "x")
    one, two = Task(connection, "one"), Task(connection, "two")
    for _ in range(4):
        assert await one.begin() < 1
    waiting = asyncio.ensure_future(two.begin())
    await asyncio.sleep(10)
    assert not waiting.done()
    for _ in range(4):
        one.end()
    assert await waiting < 10.6
    two.end()
    await asyncio.sleep(1)
    assert not one.calls._shares
    assert not two.calls._shares
    await one.calls.close()
    await two.calls.close()


@pytest.mark.usefixtures("given_time")
async def test_a_task_that_ends_gives_back_at_once(connection: OnGivenTime) -> None:
    await prepare_key_shares(connection, "x")
    one, two = Task(connection, "one"), Task(connection, "two")
    for _ in range(4):
        await one.begin()
    await one.calls.close()
    ended = now()
    assert await two.begin() < ended + 0.2
    await two.calls.close()


@pytest.mark.usefixtures("given_time")
async def test_what_a_killed_task_had_is_free_within_five_seconds(connection: OnGivenTime) -> None:
    await prepare_key_shares(connection, "x")
    one, two = Task(connection, "one"), Task(connection, "two")
    for _ in range(4):
        await one.begin()
    await asyncio.sleep(6)
    waiting = asyncio.ensure_future(two.begin())
    await asyncio.sleep(1)
    assert not waiting.done()
    killed = now()
    one.calls._task.cancel()
    assert await waiting < killed + 5
    await two.calls.close()


@pytest.mark.usefixtures("given_time")
@pytest.mark.parametrize("seconds", [0, 2, 4.5])
@pytest.mark.parametrize("is_at_work", [False, True])
async def test_the_calls_of_a_dead_task_are_free_whenever_another_asks(
    connection: OnGivenTime, seconds: float, *, is_at_work: bool
) -> None:
    """Leases do not run out while no task asks, and so tasks ask though they have nothing to say."""
    await prepare_key_shares(connection, "x")
    dead, alive = Task(connection, "dead"), Task(connection, "alive")
    for _ in range(4):
        await dead.begin()
    if is_at_work:
        await alive.begin("b")
    await asyncio.sleep(20)
    dead.calls._task.cancel()
    killed = now()
    await asyncio.sleep(seconds)
    assert await alive.begin() <= killed + 5
    await alive.calls.close()


class Behind(OnGivenTime):
    """The connection to a coordinator that has too much to do: it asks for the longest pauses."""

    async def run(self, script: str, keys: Any, *arguments: object) -> Any:
        _, *answer = await super().run(script, keys, *arguments)
        return ["4", *answer]


@pytest.mark.usefixtures("given_time")
async def test_a_task_renews_what_it_has_though_the_coordinator_is_behind(server: Server) -> None:
    space = space_of_its_own()
    async with Behind(server, trip=0.5, space=space) as slow, OnGivenTime(server, space=space) as quick:
        await prepare_key_shares(quick, "x")
        one, two = Task(slow, "one"), Task(quick, "two")
        for _ in range(4):
            await one.begin()
        waiting = asyncio.ensure_future(two.begin())
        await asyncio.sleep(20)
        assert not waiting.done()
        one.end()
        assert await waiting < now() + 6
        await one.calls.close()
        await two.calls.close()


@pytest.mark.usefixtures("given_time")
async def test_a_task_with_very_many_keys_renews_those_with_calls_first(server: Server) -> None:
    """A question is about 256 keys. With thousands, those with calls were renewed too late: another task had them."""
    space = space_of_its_own()
    async with Behind(server, space=space) as slow, OnGivenTime(server, space=space) as quick:
        await prepare_key_shares(quick, "x")
        one, two = Task(slow, "one"), Task(quick, "two")
        for _ in range(4):
            await one.begin()
        for other in range(3000):
            one.calls.may_begin(f"key {other}", object(), now())
        await asyncio.sleep(4)
        waiting = asyncio.ensure_future(two.begin())
        await asyncio.sleep(20)
        assert not waiting.done()
        waiting.cancel()
        await one.calls.close()
        await two.calls.close()


@pytest.mark.usefixtures("given_time")
async def test_a_server_without_a_memory_gives_nothing_twice(connection: OnGivenTime) -> None:
    """What tasks have in flight they keep; others get calls when that has been said, or is over."""
    await prepare_key_shares(connection, "x")
    one, two = Task(connection, "one"), Task(connection, "two")
    for _ in range(4):
        await one.begin()
    connection.on_given_time.forget()
    waiting = asyncio.ensure_future(two.begin())
    await asyncio.sleep(10)
    assert not waiting.done()
    one.end()
    assert await waiting < now() + 1
    await one.calls.close()
    await two.calls.close()
