"""Tasks that lease permits and shares keep the limits of the job, also when the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import Budget, KeyCapacity, RateLimit
from asyncudf._limits.capacity.job import CapacityShare, prepare_shares
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.health.job import SharedFailures
from asyncudf._limits.health.option import ErrorBudget, Failures
from asyncudf._limits.rates.job import SharedPermits, open_limits
from tests.kit.coordinators import (
    OnGivenTime,
    Server,
    begin_calls,
    coordinator,
    leased,
    linked,
    space_of_its_own,
    start_server,
)
from tests.kit.engines import run_tasks
from tests.kit.errors import is_of_the_task

pytestmark = pytest.mark.services


@pytest.mark.usefixtures("given_time")
async def test_a_limit_with_a_name_is_one_over_jobs(server: Server) -> None:
    """Two jobs on one server: limits of the same name are one, the others are each job's own."""
    async with OnGivenTime(server) as one, OnGivenTime(server) as other:
        other.on_given_time.space = one.on_given_time.space

        async def calls(connection: OnGivenTime, limit: RateLimit) -> int:
            begun: list[float] = []
            permits, look = await leased(connection, [(limit.name or connection.key("", "x"), limit)])
            await begin_calls(permits, look, begun, seconds=5.0)
            await permits.close()
            return len(begun)

        own, named = RateLimit(1, "hour"), RateLimit(1, "hour", name="model")
        assert [await calls(task, own) for task in (one, other)] == [1, 1]
        assert [await calls(task, named) for task in (one, other)] == [1, 0]


class Caller:
    """A task that always has as much in flight as it may, of what it wants."""

    def __init__(self, connection: Coordinator, name: str, total: int, wanted: int) -> None:
        self.in_flight, self.wanted = 0, wanted
        self.share = CapacityShare(linked(connection, name, self.start), "x", total, self.demand)

    def demand(self) -> tuple[int, int]:
        return self.in_flight, max(self.wanted, self.in_flight)

    def start(self) -> None:
        self.in_flight = max(self.in_flight, min(self.share.limit, self.wanted))

    def end(self, calls: int) -> None:
        """Some calls end, and others begin in their place."""
        self.in_flight = max(0, self.in_flight - calls)
        self.start()


async def settle(callers: list[Caller], total: int, is_so: Callable[[], bool]) -> None:
    """Let calls end and begin until it is so; never are there too many."""
    while not is_so():
        for caller in callers:
            caller.end(2)
        assert sum(caller.in_flight for caller in callers) <= total
        await asyncio.sleep(0.01)


async def test_shares_follow_what_tasks_want(connection: OnGivenTime) -> None:
    """The first has all, then three have their parts, then one wants little and the others have the rest."""
    async with asyncio.timeout(10.0):
        await prepare_shares(connection, ["x"])
        callers = [Caller(connection, "t0", 40, 100)]
        await settle(callers, 40, lambda: callers[0].in_flight == 40)
        callers += [Caller(connection, f"t{number}", 40, 100) for number in (1, 2)]
        await settle(callers, 40, lambda: sorted(one.in_flight for one in callers) == [13, 13, 14])
        callers[1].wanted = 2
        callers[1].share.poke()
        await settle(callers, 40, lambda: sorted(one.in_flight for one in callers) == [2, 19, 19])
        for caller in callers[1:]:
            await caller.share.close()
        assert callers[1].share.limit == 0
        await settle(callers[:1], 40, lambda: callers[0].in_flight == 40)
        await callers[0].share.close()


async def test_without_the_coordinator_nothing_begins_and_the_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the lease is over the share is none, as nobody knows who else has it; permits come no more."""
    monkeypatch.setattr("asyncudf._limits.capacity.job.LEASE", 0.6)
    errors: list[BaseException] = []
    server = start_server()
    look = asyncio.Event()
    async with coordinator(server, space_of_its_own(), patience=1.0) as connection:
        await prepare_shares(connection, ["x"])
        await open_limits(connection, [("x", RateLimit(1, burst=1))])
        share = CapacityShare(linked(connection, "t", lambda: None, errors.append), "x", 40, lambda: (0, 100))
        permits = SharedPermits(linked(connection, "t", look.set, errors.append), [("x", RateLimit(1, burst=1))])
        while share.limit < 40 or not permits.take([1.0]):
            await asyncio.sleep(0.01)
        server.close()
        while share.limit:
            await asyncio.sleep(0.01)
        while len(errors) < 2:
            assert not permits.take([1.0])
            assert share.limit == 0
            await asyncio.sleep(0.01)
        await asyncio.gather(share.close(), permits.close())
    assert all(map(is_of_the_task, errors[:2]))
    assert "has not answered for 1 s" in str(errors[0])


async def test_failures_of_all_tasks_spend_one_budget(connected: Coordinator) -> None:
    """No task has failed for more than five rows, the job has; each hears the counts of all."""
    heard: list[Failures] = []
    budget = ErrorBudget.of(5)
    tasks = [SharedFailures(linked(connected), "x", part, budget, heard.append) for part in ("0", "1")]
    tasks[0].add(100, {"KeyError": 3}, ["KeyError: 'a'"])
    tasks[1].add(10, {"KeyError": 1, "OSError": 1}, ["OSError: x"])
    await asyncio.sleep(0.2)
    assert heard == []
    tasks[0].add(1, {"OSError": 1}, ["OSError: y"])
    for task in tasks:
        await task.close()
    assert [(one.rows, one.failed, dict(one.types)) for one in heard] == [(111, 6, {"KeyError": 4, "OSError": 2})]
    assert sorted(heard[0].examples) == ["KeyError: 'a'", "OSError: x", "OSError: y"]


async def test_a_share_is_given_back_whatever_its_task_is_at(server: Server) -> None:
    """In the middle of a question too: what the client awaits then must let a cancellation through."""
    for moment in range(200):
        async with coordinator(server, space_of_its_own()) as connection:
            share = CapacityShare(linked(connection, "one"), "x", 5, lambda: (0, 3))
            for _ in range(moment % 20):
                await asyncio.sleep(0)  # as many turns of the loop
            async with asyncio.timeout(5.0):
                await share.close()


@pytest.mark.parametrize(
    "options",
    [
        {"job_capacity": 4},
        {"job_capacity": KeyCapacity(4, by="tenant")},
        {"rate_limit": RateLimit(100)},
        {"rate_limit": RateLimit(100, by="tenant")},
        {"budget": Budget(100, "calls")},
        {"budget": Budget(100, "calls", by="tenant")},
    ],
    ids=["calls", "calls of keys", "rate", "rate of keys", "budget", "budget of keys"],
)
def test_a_task_that_ends_asks_the_coordinator_no_more(server: Server, options: dict[str, Any]) -> None:
    """What it shares with other tasks would go on to ask, and to keep what it has, until the worker ends."""

    def left_beside(*others: Callable[..., Any]) -> int:
        left = list[int]()

        async def long(tenant: str, row: int) -> None:
            await asyncio.sleep(20)
            left.append(len(asyncio.all_tasks()))

        run_tasks(server, [*others, long], [("a", 1)], **options)
        return left[0]

    async def short(tenant: str, row: int) -> None:
        return None

    assert left_beside(short) == left_beside()
