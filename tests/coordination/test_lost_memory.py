"""A rate holds while tasks die, and while the coordinator dies, forgets, evicts keys or is full; the log says so."""

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
from asyncudf._coordination.client import LEASE
from asyncudf._coordination.permits import SharedPermits, open_limits
from tests.kit.coordinators import (
    SERVER_TIME,
    OnGivenTime,
    Server,
    coordinator,
    linked,
    run_on_given_time,
    space_of_its_own,
    start_server,
    start_server_again,
)
from tests.kit.errors import task_fails

pytestmark = pytest.mark.services

FAULT, SECONDS = 12.3, 40.0
RATES = [(RateLimit(100), 5), (RateLimit(2), 20), (RateLimit(100, burst=300), 3)]


def worst(begun: list[float], period: float) -> int:
    """The most calls that any period has."""
    return max(sum(first <= one < first + period for one in begun) for first in begun)


async def begin_calls(permits: SharedPermits, look: asyncio.Event, begun: list[float], cost: float = 1.0) -> None:
    clock = permits._clock
    while True:
        if permits.take([cost]):
            begun.append(clock())
        else:
            look.clear()
            await look.wait()


async def begin_in_tasks(connection: OnGivenTime, fault: str, limit: RateLimit, tasks: int) -> list[float]:
    """Tasks that always have a call to make; a fault comes by, and a third of them die of it."""
    begun: list[float] = []
    await open_limits(connection, [("x", limit)])

    def start() -> asyncio.Task[None]:
        look = asyncio.Event()
        return asyncio.create_task(
            begin_calls(SharedPermits(linked(connection, "t", look.set), [("x", limit)]), look, begun)
        )

    running = [start() for _ in range(tasks)]
    await asyncio.sleep(FAULT)
    for one in running[: tasks // 3]:
        one.cancel()
    FAULTS[fault](connection)
    running += [start() for _ in range(tasks // 3)]
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
def test_no_second_has_too_many_whatever_is_lost(
    server: Server, caplog: pytest.LogCaptureFixture, fault: str, limit: RateLimit, tasks: int
) -> None:
    """A coordinator that had forgotten granted at once what tasks had already, for as long as they waited with it."""
    begun: list[float] = []

    async def job() -> None:
        async with OnGivenTime(server) as connection:
            begun.extend(await begin_in_tasks(connection, fault, limit, tasks))

    with caplog.at_level(logging.WARNING, "asyncudf"):
        run_on_given_time(job)
    assert worst(begun, 1.0) <= 1.02 * limit.permits + limit.saved
    steady = [one for one in begun if one >= FAULT + 15.0]
    assert len(steady) >= 0.95 * limit.permits * (SECONDS - FAULT - 15.0) - 1
    assert len(caplog.records) == (fault != "tasks die")
    assert all("has lost what it knew of a rate limit" in one.message for one in caplog.records)


def test_what_a_dear_call_owes_is_not_forgotten(server: Server) -> None:
    """Each begins when the burst is there and pays for half a minute; a new coordinator waits for as long as that."""
    limits, begun = [("x", RateLimit(60, "minute", burst=5))], list[float]()
    running: list[asyncio.Task[None]] = []

    async def job() -> None:
        async with OnGivenTime(server) as connection, asyncio.TaskGroup() as tasks:
            await open_limits(connection, limits)
            for _ in range(4):  # each time a task that holds nothing yet
                look = asyncio.Event()
                permits = SharedPermits(linked(connection, "t", look.set), limits)
                running.append(tasks.create_task(begin_calls(permits, look, begun, 30.0)))
                await asyncio.sleep(10.0)
                forget(connection)
            await asyncio.sleep(120.0)
            for one in running:
                one.cancel()

    run_on_given_time(job)
    assert len(begun) >= 3
    assert worst(begun, 60.0) * 30 <= 60 + 30


def test_permits_that_nobody_uses_are_asked_for_again(server: Server) -> None:
    """A task keeps its permit of an hour as long as the coordinator knows of it, and no longer."""

    async def job() -> None:
        async with OnGivenTime(server) as connection:
            limits, look = [("x", RateLimit(1, "hour"))], asyncio.Event()
            for is_lost in (False, True):
                connection.on_given_time.forget()
                await open_limits(connection, limits)
                permits = SharedPermits(linked(connection, "t", look.set), limits)
                permits.take([1.0])
                await asyncio.sleep(2 * LEASE)
                if is_lost:
                    connection.on_given_time.forget()
                assert not permits.take([1.0])
                await asyncio.sleep(1.0)
                assert permits.take([1.0]) == (not is_lost)
                await permits.close()

    run_on_given_time(job)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncudf._coordination.permits.LEASE", 1.0)
    monkeypatch.setattr("asyncudf._coordination.permits.RENEWED", 0.5)


def evict(first: Server) -> Server:
    with redis.Redis.from_url(first.url) as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 300_000)
        client.config_set("maxmemory-policy", "allkeys-random")
        for number in range(3000):
            client.set(f"other:{number}", "x" * 1000)
        client.config_set("maxmemory", 0)
    return first


def begin_anew(first: Server) -> Server:
    first.close()
    time.sleep(0.3)
    return start_server_again(first)


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("fault", [evict, begin_anew])
def test_a_server_that_evicts_keys_or_begins_anew(fault: Callable[[Server], Server]) -> None:
    """Calls wait for a lease, and go on at the rate."""
    limit, begun = RateLimit(100, per=0.5), list[float]()
    first = start_server()

    async def job() -> None:
        look = asyncio.Event()
        async with coordinator(first, space_of_its_own()) as connection:
            await open_limits(connection, [("x", limit)])
            permits = SharedPermits(linked(connection, "t", look.set), [("x", limit)])
            calls = asyncio.create_task(begin_calls(permits, look, begun))
            await asyncio.sleep(0.8)
            with contextlib.closing(await asyncio.to_thread(fault, first)):
                lost = time.monotonic()
                async with asyncio.timeout(20.0):
                    while begun[-1] < lost + 2.0:
                        await asyncio.sleep(0.05)
                calls.cancel()
                await permits.close()

    with contextlib.closing(first):
        asyncio.run(job())
    assert worst(begun, 0.5) <= 1.02 * 100 + limit.saved
    assert any(later - one > 0.9 for one, later in itertools.pairwise(begun)), "a key was lost"


def test_a_server_without_memory_is_waited_for_and_then_named(caplog: pytest.LogCaptureFixture) -> None:
    """No call begins meanwhile; the log says why after a second, and the error, if it stays so."""

    async def job() -> None:
        look = asyncio.Event()
        limits = [("x", RateLimit(50, burst=1))]
        async with coordinator(server, space_of_its_own()) as connection:
            await open_limits(connection, limits)
            permits = SharedPermits(linked(connection, "t", look.set), limits)
            begun: list[float] = []
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


@pytest.mark.parametrize("name", [None, "model"])
def test_the_first_calls_of_a_job_wait_only_where_others_may_have_made_some(server: Server, name: str | None) -> None:
    """The driver has opened the limits; without it, and on a server that may have forgotten, it takes a lease."""

    async def first(*, is_open: bool, seconds: float = 30.0) -> float:
        limits, look, begun = [("x", RateLimit(10, burst=5, name=name))], asyncio.Event(), list[float]()
        async with OnGivenTime(server) as connection:
            if is_open:
                await open_limits(connection, limits)
            permits = SharedPermits(linked(connection, "t", look.set), limits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    start = connection.clock()
                    await begin_calls(permits, look, begun)
            await permits.close()
        return begun[0] - start

    async def job() -> None:
        begin = await first(is_open=True)
        assert begin <= (0.1 if name is None else LEASE)
        assert LEASE < await first(is_open=False) < LEASE + 1.0

    run_on_given_time(job)
