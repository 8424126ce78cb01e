"""Limits of a job hold, and are used to the full, with many tasks and with a coordinator far away."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis

from asyncudf import RateLimit
from asyncudf._limits.budgets.job import SPEND
from asyncudf._limits.capacity.job import SHARE, CapacityShare, prepare_shares
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.health.job import HEALTH, SharedFailures
from asyncudf._limits.health.option import ErrorBudget, Failures
from tests.kit.coordinators import (
    OnGivenTime,
    Scripts,
    Server,
    begin_calls,
    leased,
    linked,
    run_on_given_time,
    space_of_its_own,
)

pytestmark = pytest.mark.services

TRIPS = [0.001, 0.02, 0.05, 0.3]


@pytest.mark.usefixtures("given_time")
@pytest.mark.parametrize("trip", TRIPS)
@pytest.mark.parametrize("rate", [100, 1000])
async def test_a_coordinator_far_away_costs_little_of_a_rate(server: Server, rate: int, trip: float) -> None:
    """At 40 ms one task got 22 of 100 permits a second, and 22.7 of 1,000: one for each round trip, stale or nearly so.

    No second has more than the rate, the burst and 2%.
    """
    limit, begun = RateLimit(rate), list[float]()
    async with OnGivenTime(server, trip) as connection:
        permits, look = await leased(connection, [("x", limit)])
        await begin_calls(permits, look, begun, seconds=8.0)
        await permits.close()
    steady = [time for time in begun if time >= 3.0]
    assert len(steady) >= (0.95 if trip < 0.1 else 0.3) * 5 * rate
    most = max(sum(begin <= one < begin + 1.0 for one in begun) for begin in begun[::10])
    assert most <= 1.02 * rate + limit.saved


@pytest.mark.parametrize("tasks", [20, 100, 400])
async def test_a_share_is_there_within_a_second(connection: OnGivenTime, tasks: int) -> None:
    """The first tasks have everything at first; 100 shared 21 of 40, and of 400 none had any for twelve seconds."""
    loop = asyncio.get_running_loop()
    await prepare_shares(connection, ["x"])
    flying, shares = [0] * tasks, list[CapacityShare]()

    def begin(task: int) -> None:
        while flying[task] < min(100, shares[task].limit):
            flying[task] += 1
            loop.call_later(0.05, end, task)
        assert sum(flying) <= 40

    def end(task: int) -> None:
        flying[task] -= 1
        begin(task)

    def add(task: int) -> None:
        demand, wake = (lambda: (flying[task], 100)), (lambda: begin(task))
        shares.append(CapacityShare(linked(connection, f"t{task}", wake), "x", 40, demand))

    for task in range(tasks):
        add(task)
    await asyncio.sleep(1.0)
    assert sum(share.limit > 0 for share in shares) >= min(tasks, 40)
    await asyncio.sleep(1.0)
    assert sum(flying) == 40
    await asyncio.gather(*(share.close() for share in shares))


def commands(server: Server, script: str, keys: list[str], tasks: int, *arguments: object) -> float:
    """How many commands a question takes on the server when so many tasks are there."""
    scripts = Scripts(server)
    scripts.space = space_of_its_own()
    for task in range(tasks):
        scripts.run(script, 0.0, keys, f"t{task}", *arguments)
    with redis.Redis.from_url(server.url) as client:
        client.config_resetstat()
        for task in range(20):
            scripts.run(script, 1.0, keys, f"t{task}", *arguments)
        counted = sum(one["calls"] for one in client.info("commandstats").values())
    scripts.close()
    return float(counted)


@pytest.mark.parametrize(
    ("script", "keys", "arguments"),
    [
        (SHARE, ["x", "leases", "pace"], (40, 0, 100, 4.0)),
        (SPEND, ["x", "holders", "pace"], (10**6, 1, 0, 0, 0, 1, 1, 60.0, "", 0, 1000)),
        (HEALTH, ["x", "pace"], (20, 0.5, 10.0, 4.0, 0, "s", "", 0.0)),
    ],
)
def test_a_question_costs_the_same_whatever_the_tasks(
    server: Server, script: str, keys: list[str], arguments: tuple[object, ...]
) -> None:
    """With 4,000 tasks each question read 4,000 entries, which took 29 ms."""
    assert commands(server, script, keys, 1000, *arguments) <= commands(server, script, keys, 50, *arguments) + 20


def test_tasks_ask_less_often_when_they_are_many(scripts: Scripts) -> None:
    """Together 2,000 times a second at most, as far as they wait for what the answer says."""
    told = (20, 0.5, 10.0, 4.0, 0, "", "", 0.0)
    behind = [float(scripts.run(HEALTH, 0.0, ["x", "pace"], f"t{task}", *told)[0]) for task in range(1000)]
    assert behind[0] <= 0.001
    assert behind[-1] == pytest.approx(0.5, abs=0.01)
    assert float(scripts.run(HEALTH, 5.0, ["x", "pace"], "t", *told)[0]) <= 0.001


async def test_rows_of_a_task_that_is_run_again_count_once(connected: Coordinator) -> None:
    """An attempt failed after 34 of 100 rows had; the next one counts the same rows: 46 of 134 were told."""
    told: list[Failures] = []
    budget = ErrorBudget.of(0)
    for part, rows, failed in [("0", 34, 12), ("0", 100, 34), ("0", 50, 20), ("1", 10, 1)]:
        attempt = SharedFailures(linked(connected), "x", part, budget, told.append)
        attempt.add(rows // 2, {"ValueError": failed // 2})
        await asyncio.sleep(0.05)
        attempt.add(rows - rows // 2, {"ValueError": failed - failed // 2})
        await attempt.close()
    assert [(one.rows, one.failed) for one in told[-1:]] == [(110, 35)]
    assert told[-1].types == {"ValueError": 35}


def test_a_coordinator_that_is_too_slow_is_named(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A warning, once, instead of a stall that nobody can explain."""

    async def job() -> None:
        async with OnGivenTime(server, 2.0) as connection:
            for _ in range(3):
                await connection.run("return 1", [])

    with caplog.at_level(logging.WARNING, "asyncudf"):
        run_on_given_time(job)
    assert len(caplog.records) == 1
    assert "takes 2.0 s to answer" in caplog.text
