"""Tasks that lease permits and shares keep the limits of the job, also when one is killed or the server is away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from asyncudf import RateLimit
from asyncudf._coordination.budgets import SharedFailures
from asyncudf._coordination.client import Coordinator
from asyncudf._coordination.permits import SharedPermits, open_limits
from asyncudf._coordination.share import CapacityShare, prepare_shares
from asyncudf._policies.error_budget import ErrorBudget, Failures
from tests.kit.coordinators import (
    OnGivenTime,
    Server,
    coordinator,
    linked,
    run_on_given_time,
    space_of_its_own,
    start_server,
)
from tests.kit.errors import is_of_the_task

pytestmark = pytest.mark.services


async def begin_calls(permits: SharedPermits, look: asyncio.Event, begun: list[float]) -> None:
    """Begin calls until it is cancelled, each as soon as it may, and note when they began."""
    clock = asyncio.get_running_loop().time
    while True:
        now = clock()
        if permits.take([1.0]):
            begun.append(now)
            continue
        look.clear()
        await look.wait()


async def begin_calls_for(permits: SharedPermits, look: asyncio.Event, seconds: float) -> list[float]:
    """When those calls began that could begin in so many seconds."""
    begun: list[float] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await begin_calls(permits, look, begun)
    return begun


def test_tasks_together_keep_a_rate(server: Server) -> None:
    """Three tasks that want all they can get: no half second has more than its part, and most of it is used."""
    limit = RateLimit(200, per=0.5)

    async def job() -> None:
        async def task() -> list[float]:
            look = asyncio.Event()
            permits = SharedPermits(linked(connection, "t", look.set), [("x", limit)])
            begun = await begin_calls_for(permits, look, 2.0)
            await permits.close()
            return begun

        async with OnGivenTime(server) as connection:
            await open_limits(connection, [("x", limit)])
            begun = sorted(itertools.chain.from_iterable(await asyncio.gather(*(task() for _ in range(3)))))
        most = max(sum(begin <= one < begin + 0.5 for one in begun) for begin in begun)
        assert most <= 1.02 * 200 + limit.saved
        assert len(begun) >= 0.95 * 800

    run_on_given_time(job)


def test_what_a_task_has_not_used_the_next_one_has(server: Server) -> None:
    """A permit of an hour is given back when its task ends without a call."""
    limit = RateLimit(1, "hour", burst=1)

    async def job() -> None:
        async with OnGivenTime(server) as connection:
            look = asyncio.Event()
            await open_limits(connection, [("x", limit)])
            first = SharedPermits(linked(connection, "t", look.set), [("x", limit)])
            assert not first.take([1.0])
            await look.wait()  # it has come
            await first.close()
            second = SharedPermits(linked(connection, "t", look.set), [("x", limit)])
            assert len(await begin_calls_for(second, look, 0.3)) == 1
            await second.close()

    run_on_given_time(job)


def test_a_limit_with_a_name_is_one_over_jobs(server: Server) -> None:
    """Two jobs on one server: limits of the same name are one, the others are each job's own."""

    async def job() -> None:
        async with OnGivenTime(server) as one, OnGivenTime(server) as other:
            other.on_given_time.space = one.on_given_time.space

            async def calls(connection: OnGivenTime, limit: RateLimit) -> int:
                look, limits = asyncio.Event(), [(limit.name or connection.key("", "x"), limit)]
                await open_limits(connection, limits)
                permits = SharedPermits(linked(connection, "t", look.set), limits)
                begun = await begin_calls_for(permits, look, 5.0)
                await permits.close()
                return len(begun)

            own, named = RateLimit(1, "hour"), RateLimit(1, "hour", name="model")
            assert [await calls(task, own) for task in (one, other)] == [1, 1]
            assert [await calls(task, named) for task in (one, other)] == [1, 0]

    run_on_given_time(job)


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


def test_shares_follow_what_tasks_want(server: Server) -> None:
    """The first has all, then three have their parts, then one wants little and the others have the rest."""

    async def job() -> None:
        async with OnGivenTime(server) as connection, asyncio.timeout(10.0):
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

    run_on_given_time(job)


KILLED = """
import asyncio, sys, time
from asyncudf._coordination.client import Coordinator
from asyncudf._coordination import share as shares
from asyncudf._coordination.client import TaskLink
from asyncudf._coordination.share import CapacityShare

shares.LEASE = 2.0  # seconds

async def task():
    async with Coordinator(sys.argv[1], sys.argv[2], clock=time.monotonic) as connection:
        share = CapacityShare(TaskLink(connection, "killed", lambda: None, print), "x", 40, lambda: (share.limit, 100))
        while share.limit < 40:
            await asyncio.sleep(0.01)
        print("all", flush=True)
        await asyncio.sleep(60)

asyncio.run(task())
"""


def test_the_share_of_a_killed_task_comes_back(server: Server) -> None:
    """It had all of it, and could not say good-bye; test_shares.py tells how soon."""

    async def job() -> None:
        async with coordinator(server, space := space_of_its_own()) as connection:
            await prepare_shares(connection, ["x"])
            command = [sys.executable, "-c", KILLED, server.url, space]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
                assert killed.stdout is not None
                assert killed.stdout.readline() == "all\n"
                caller = Caller(connection, "other", 40, 100)
                await asyncio.sleep(0.3)
                assert caller.in_flight == 0
                killed.send_signal(signal.SIGKILL)
                await settle([caller], 40, lambda: caller.in_flight == 40)
                await caller.share.close()

    asyncio.run(job())


def test_without_the_coordinator_nothing_begins_and_the_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the lease is over the share is none, as nobody knows who else has it; permits come no more."""
    monkeypatch.setattr("asyncudf._coordination.share.LEASE", 0.6)
    errors: list[BaseException] = []

    async def job() -> None:
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

    asyncio.run(job())
    assert all(map(is_of_the_task, errors[:2]))
    assert "has not answered for 1 s" in str(errors[0])


def test_failures_of_all_tasks_spend_one_budget(server: Server) -> None:
    """No task has failed for more than five rows, the job has; each hears the counts of all."""

    async def job() -> None:
        heard: list[Failures] = []
        async with coordinator(server, space_of_its_own()) as connection:
            budget = ErrorBudget.of(5)
            tasks = [SharedFailures(linked(connection), "x", part, budget, heard.append) for part in ("0", "1")]
            tasks[0].add(100, {"KeyError": 3}, ["KeyError: 'a'"])
            tasks[1].add(10, {"KeyError": 1, "OSError": 1}, ["OSError: x"])
            await asyncio.sleep(0.2)
            assert heard == []
            tasks[0].add(1, {"OSError": 1}, ["OSError: y"])
            for task in tasks:
                await task.close()
        assert [(one.rows, one.failed, dict(one.types)) for one in heard] == [(111, 6, {"KeyError": 4, "OSError": 2})]
        assert sorted(heard[0].examples) == ["KeyError: 'a'", "OSError: x", "OSError: y"]

    asyncio.run(job())


def test_a_share_is_given_back_whatever_its_task_is_at(server: Server) -> None:
    """In the middle of a question too: what the client awaits then must let a cancellation through."""

    async def job() -> None:
        for moment in range(200):
            async with coordinator(server, space_of_its_own()) as connection:
                share = CapacityShare(linked(connection, "one"), "x", 5, lambda: (0, 3))
                for _ in range(moment % 20):
                    await asyncio.sleep(0)  # as many turns of the loop
                async with asyncio.timeout(5.0):
                    await share.close()

    asyncio.run(job())
