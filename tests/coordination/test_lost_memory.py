"""A rate holds while tasks die, and while the coordinator dies, forgets or is full; the log says so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable

import pytest
import redis

from asyncudf import RateLimit
from asyncudf._limits.coordinator.client import LEASE
from asyncudf._limits.rates.job import open_limits
from tests.kit.coordinators import (
    SERVER_TIME,
    OnGivenTime,
    Server,
    begin_calls,
    coordinator,
    leased,
    space_of_its_own,
    start_server,
    start_server_again,
)
from tests.kit.errors import task_fails
from tests.kit.limited import most_within

pytestmark = pytest.mark.services

FAULT, SECONDS = 8.3, 32.0
RATES = [(RateLimit(100), 5), (RateLimit(2), 20), (RateLimit(100, burst=300), 3)]


async def begin_in_tasks(connection: OnGivenTime, fault: str, limit: RateLimit, tasks: int) -> list[float]:
    """Tasks that always have a call to make; a fault comes by, and a third of them die of it."""
    begun: list[float] = []
    await open_limits(connection, [("x", limit)])

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(begin_calls(*await leased(connection, [("x", limit)], is_open=False), begun))

    running = [await start() for _ in range(tasks)]
    await asyncio.sleep(FAULT)
    for one in running[: tasks // 3]:
        one.cancel()
    FAULTS[fault](connection)
    running += [await start() for _ in range(tasks // 3)]
    await asyncio.sleep(SECONDS - FAULT)
    for one in running:
        one.cancel()
    return begun


def forget(connection: OnGivenTime) -> None:
    connection.on_given_time.forget()


def go_back(connection: OnGivenTime) -> None:
    """Another server takes its place, with what it had copied some seconds before."""
    script = "return redis.call('SET', KEYS[1], string.format('other@1 %.17g inf', tonumber(ARGV[1]) - 8))"
    connection.on_given_time.run(script, SERVER_TIME + connection.clock(), [connection.key("permits", "x")])


FAULTS: dict[str, Callable[[OnGivenTime], None]] = {
    "tasks die": lambda connection: None,
    "it forgets": forget,
    "an old copy": go_back,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("limit", "tasks"), RATES)
async def test_no_second_has_too_many_whatever_is_lost(
    connection: OnGivenTime, caplog: pytest.LogCaptureFixture, fault: str, limit: RateLimit, tasks: int
) -> None:
    """A coordinator that had forgotten granted at once what tasks had already, for as long as they waited with it."""
    caplog.set_level(logging.WARNING, "asyncudf")
    begun = await begin_in_tasks(connection, fault, limit, tasks)
    assert most_within(1.0, begun) <= 1.02 * limit.permits + limit.saved
    steady = [one for one in begun if one >= FAULT + 15.0]
    assert len(steady) >= 0.95 * limit.permits * (SECONDS - FAULT - 15.0) - 1
    assert len(caplog.records) == (fault != "tasks die")
    assert all("has lost what it knew of a rate limit" in one.message for one in caplog.records)


async def test_what_a_dear_call_owes_is_not_forgotten(connection: OnGivenTime) -> None:
    """Each begins when the burst is there and pays for half a minute; a new coordinator waits for as long as that."""
    limits, begun = [("x", RateLimit(60, "minute", burst=5))], list[float]()
    running: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as tasks:
        await open_limits(connection, limits)
        for _ in range(4):  # each time a task that holds nothing yet
            permits, look = await leased(connection, limits, is_open=False)
            running.append(tasks.create_task(begin_calls(permits, look, begun, cost=30.0)))
            await asyncio.sleep(10.0)
            forget(connection)
        await asyncio.sleep(120.0)
        for one in running:
            one.cancel()
    assert len(begun) >= 3
    assert most_within(60.0, begun) * 30 <= 60 + 30


async def test_permits_that_nobody_uses_are_asked_for_again(connection: OnGivenTime) -> None:
    """A task keeps its permit of an hour as long as the coordinator knows of it, and no longer."""
    for is_lost in (False, True):
        connection.on_given_time.forget()
        permits, _ = await leased(connection, [("x", RateLimit(1, "hour"))])
        permits.take([1.0])
        await asyncio.sleep(2 * LEASE)
        if is_lost:
            connection.on_given_time.forget()
        assert not permits.take([1.0])
        await asyncio.sleep(1.0)
        assert (permits.take([1.0]) is None) == is_lost
        await permits.close()


async def test_after_a_server_that_begins_anew_calls_wait_for_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """And go on at the rate."""
    monkeypatch.setattr("asyncudf._limits.rates.job.LEASE", 1.0)
    monkeypatch.setattr("asyncudf._limits.rates.job.RENEWED", 0.5)
    limit, begun, first = RateLimit(100, per=0.5), list[float](), start_server()
    async with coordinator(first, space_of_its_own()) as connection:
        permits, look = await leased(connection, [("x", limit)])
        calls = asyncio.create_task(begin_calls(permits, look, begun))
        await asyncio.sleep(0.6)
        first.close()
        await asyncio.sleep(0.3)
        with contextlib.closing(await asyncio.to_thread(start_server_again, first)):
            lost = time.monotonic()
            async with asyncio.timeout(20.0):
                while begun[-1] < lost + 1.5:
                    await asyncio.sleep(0.05)
            calls.cancel()
            await permits.close()
    assert most_within(0.5, begun) <= 1.02 * 100 + limit.saved
    assert any(later - one > 0.9 for one, later in itertools.pairwise(begun)), "a key was lost"


def test_a_server_without_memory_is_waited_for_and_then_named(caplog: pytest.LogCaptureFixture) -> None:
    """No call begins meanwhile; the log says why after a second, and the error, if it stays so."""

    async def job() -> None:
        limits, begun = [("x", RateLimit(50, burst=1))], list[float]()
        async with coordinator(server, space_of_its_own()) as connection:
            permits, look = await leased(connection, limits)
            client.config_set("maxmemory", 1)
            calls = asyncio.create_task(begin_calls(permits, look, begun))
            while not caplog.records:
                await asyncio.sleep(0.05)
            assert begun == []
            client.config_set("maxmemory", 0)
            while not begun:
                await asyncio.sleep(0.05)
            calls.cancel()
            await permits.close()
        client.config_set("maxmemory", 1)
        async with coordinator(server, space_of_its_own(), patience=0.3) as connection:
            await open_limits(connection, limits)

    with (
        contextlib.closing(start_server()) as server,
        redis.Redis.from_url(server.url) as client,
        caplog.at_level(logging.WARNING, "asyncudf"),
        task_fails(match=r"has kept nothing for 0.3 s \(.*maxmemory.*limits of the job cannot be kept"),
    ):
        asyncio.run(job())
    assert "has kept nothing for 2 s (command not allowed" in caplog.text
    assert "calls wait, for 30 s at most" in caplog.text


@pytest.mark.usefixtures("given_time")
@pytest.mark.parametrize("name", [None, "model"])
async def test_the_first_calls_of_a_job_wait_only_where_others_may_have_made_some(
    server: Server, name: str | None
) -> None:
    """The driver has opened the limits; without it, and on a server that may have forgotten, it takes a lease."""

    async def first(*, is_open: bool) -> float:
        begun: list[float] = []
        async with OnGivenTime(server) as connection:
            permits, look = await leased(connection, [("x", RateLimit(10, burst=5, name=name))], is_open=is_open)
            start = connection.clock()
            await begin_calls(permits, look, begun, calls=1)
            await permits.close()
        return begun[0] - start

    begin = await first(is_open=True)
    assert begin <= (0.1 if name is None else LEASE)
    assert LEASE < await first(is_open=False) < LEASE + 1.0
