"""What is counted over a query, failed rows and calls made: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio as redis

from asyncudf import Budget, CircuitBreaker
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._limits.budget import CALLS
from asyncudf._limits.coordinator import Coordinator, TaskLink
from asyncudf._limits.failures import ErrorBudget, Failures, SharedFailures
from asyncudf._limits.health import SharedHealth
from asyncudf._limits.shared_budget import SharedBudget
from tests.kit.coordinators import CutOff, Server, coordinator, fail, linked, space_of_its_own, time_to_live

pytestmark = pytest.mark.services


@pytest.mark.parametrize("turns", range(12))
async def test_the_last_failures_spend_the_budget(connected: Coordinator, turns: int) -> None:
    """Whatever the task is at when its last row is done: it looks at what has come together, and counts once."""
    heard: list[Failures] = []
    task = SharedFailures(linked(connected), "x", "part", ErrorBudget.of(3), heard.append)
    task.add(5, {"ValueError": 5}, ["ValueError: x"])
    for _ in range(turns):
        await asyncio.sleep(0)
    await task.close()
    assert {(one.rows, one.failed) for one in heard} == {(5, 5)}


async def test_failures_that_were_cut_off_are_told_again(server: Server) -> None:
    """The task ends while its connection hangs: what it was about to tell is told by the next one."""
    heard: list[Failures] = []
    async with CutOff(server) as connection:
        task = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), heard.append)
        task.add(5, {"ValueError": 5}, ["ValueError: x"])
        while not connection.asked:
            await asyncio.sleep(0)
        task.add(2, {"ValueError": 1}, ["ValueError: y"])
        await task.close()
    assert [(one.rows, one.failed, one.examples) for one in heard] == [(7, 6, ["ValueError: x", "ValueError: y"])]


async def test_who_is_gone_is_not_waited_for_twice(server: Server) -> None:
    """The task has failed because nobody answered; to ask again would only make that last longer."""
    errors: list[BaseException] = []
    async with CutOff(server, lost=99, gives_up=True) as connection:
        failures = SharedFailures(
            linked(connection, "t", lambda: None, errors.append), "x", "part", ErrorBudget.of(3), fail
        )  # type: ignore[arg-type]
        failures.add(5, {"ValueError": 5}, [])
        health = SharedHealth(linked(connection, "t", lambda: None, errors.append), "x", CircuitBreaker())
        health.pause(1e9)
        spending = budget_of(linked(connection, "t", lambda: None, errors.append))
        spending.of("").ask(1)
        while len(errors) < 3:
            await asyncio.sleep(0)
        for one in (failures, health, spending):
            await one.close()  # type: ignore[attr-defined]
        assert connection.asked == 3


async def test_what_was_seen_of_a_service_and_cut_off_is_told_again(server: Server) -> None:
    """Failures and the pause: another task hears of both."""
    options = CircuitBreaker(window=2)
    async with CutOff(server) as connection:
        one = SharedHealth(linked(connection, "one"), "x", options)
        one.ended(0, CallOutcome.DOWN, 0.0)
        one.pause(connection.clock() + 100.0)
        while not connection.asked:
            await asyncio.sleep(0)
        one.ended(0, CallOutcome.DOWN, 0.0)
        await one.close()
        woken = asyncio.Event()
        other = SharedHealth(linked(connection, "other", woken.set), "x", options)
        await woken.wait()
        assert other.open_since is not None
        assert other.paused_until == pytest.approx(connection.clock() + 100.0, abs=5.0)
        await other.close()


async def test_a_query_without_anything_to_tell_leaves_little(server: Server) -> None:
    """Each micro-batch of a stream is a query: what it leaves is gone soon, and of its health nothing is kept."""
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        woken = asyncio.Event()
        health = SharedHealth(linked(connection, "t", woken.set), "x", CircuitBreaker())
        await woken.wait()
        failures = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), fail)  # type: ignore[arg-type]
        failures.add(10, {"ValueError": 1}, ["ValueError: " + "y" * 10_000])
        bought = asyncio.Event()
        spending = budget_of(linked(connection, "t", bought.set))
        assert not spending.of("").ask(1)
        await bought.wait()
        for one in (health, failures, spending):
            await one.close()  # type: ignore[attr-defined]
        left = await time_to_live(client, space)
        assert sorted(left) == ["amounts", "answers", "clock", "examples", "failures", "pace", "parts"]
        assert max(left["examples"], left["failures"]) <= 15 * 60_000
        assert max(left["amounts"], left["clock"], left["answers"]) <= 60 * 60_000
        (example,) = await client.lrange(connection.key("examples", "x"), 0, -1)
        assert len(example) == 200


async def test_what_a_service_has_said_is_kept_for_as_long_as_it_holds(server: Server) -> None:
    """A pause of an hour is known for an hour, by whoever comes then."""
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        health = SharedHealth(linked(connection), "x", None)
        health.pause(connection.clock() + 3600.0)
        await health.close()
        assert (await time_to_live(client, space))["health"] > 3600_000


async def test_counts_are_not_forgotten_while_their_tasks_work(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that have nothing new to tell tell that they are there."""
    monkeypatch.setattr("asyncudf._limits.failures.REPORT_EVERY", 0.01)
    monkeypatch.setattr("asyncudf._limits.failures.REFRESH", 0.01)
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        bought = asyncio.Event()
        failures = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), fail)  # type: ignore[arg-type]
        spending = budget_of(linked(connection, "t", bought.set))
        failures.add(10, {"ValueError": 1}, ["ValueError: x"])
        assert not spending.of("").ask(1)
        await bought.wait()
        spending.of("").reserve(1)
        async with asyncio.timeout(10.0):
            while len(await time_to_live(client, space)) < 3:
                await asyncio.sleep(0.005)
            for name in await client.keys(f"*{space}*"):
                await client.pexpire(name, 60_000)
            kept = "amounts", "clock", "examples", "failures", "parts"
            while min(left for kind, left in (await time_to_live(client, space)).items() if kind in kept) <= 60_000:
                await asyncio.sleep(0.005)
        await failures.close()
        await spending.close()


def budget_of(link: TaskLink, total: float = 5) -> SharedBudget:
    return SharedBudget(link, "x", Budget(total, CALLS), None, lambda _: link.wake())


async def make_calls(spending: SharedBudget, woken: asyncio.Event, calls: int) -> int:
    """Make so many, each as soon as it may; how many were made before all were spent."""
    for made in range(calls):
        while not spending.of("").ask(1):
            if spending.of("").is_spent(1):
                return made
            woken.clear()
            await woken.wait()
        spending.of("").reserve(1)
    return calls


async def test_a_query_makes_all_calls_of_its_budget(connected: Coordinator) -> None:
    """One task has made its last call, which takes long, and holds others: those that need them get all of them."""
    woken = [asyncio.Event() for _ in range(3)]
    tasks = [budget_of(linked(connected, f"t{number}", one.set), 200) for number, one in enumerate(woken)]
    assert await make_calls(tasks[0], woken[0], 20) == 20
    tasks[0].of("").ask(1)  # and does not use it: its row needs none any more
    both = [make_calls(task, event, 90) for task, event in zip(tasks[1:], woken[1:], strict=True)]
    async with asyncio.timeout(20.0):
        assert await asyncio.gather(*both) == [90, 90]
        assert await make_calls(tasks[1], woken[1], 1) == 0
    for task in tasks:
        await task.close()
