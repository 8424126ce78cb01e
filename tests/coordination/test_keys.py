"""Limits by key over all tasks of a job: each key's is kept and used to the full, in bounded memory; virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import RateLimit
from asyncudf._limits.rates.keyed import RESERVE, SharedKeys, open_keys
from tests.kit.coordinators import OnGivenTime, Scripts, Server, linked
from tests.kit.engines import run_tasks
from tests.kit.limited import most_within, now

pytestmark = pytest.mark.services

START = 1.7e9


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("limit", [RateLimit(20, by="tenant"), RateLimit(120, "minute", by="tenant")])
def test_each_key_has_the_limit_over_all_tasks(server: Server, limit: RateLimit, mode: str) -> None:
    """One of 20 tenants has 60% of the rows: it takes as long as its limit says, and the others are done before."""
    rng = random.Random(1)
    begun = defaultdict[int, list[float]](list)

    def task() -> Callable[..., Any]:
        async def noted(tenant: int, row: int) -> int:
            begun[tenant].append(now())
            await asyncio.sleep(0.02)
            return row

        return noted

    rows = [(0 if rng.random() < 0.6 else rng.randrange(1, 20), row) for row in range(100)]
    ended = run_tasks(server, [task() for _ in range(4)], rows, capacity=5, output_mode=mode, rate_limit=limit)
    assert [sorted(rows) for rows in ended] == [[*range(100)]] * 4  # type: ignore[type-var,arg-type]
    most = limit.permits * 1.02 + limit.saved
    assert max(most_within(limit.period, times) for times in begun.values()) <= most
    first = min(times[0] for times in begun.values())
    big = begun.pop(0)
    assert big[-1] - first <= 1.05 * len(big) * limit.interval
    assert max(times[-1] for times in begun.values()) - first <= 0.5 * (big[-1] - first)


def test_a_key_is_one_number_and_is_forgotten(scripts: Scripts) -> None:
    """When its permits are all there again, it has no entry."""
    names, reserve = ["limit", "a", "b", "pace"], (1.0, 5.0, 4.0)
    scripts.run(RESERVE, START, names, *reserve, 0.0, 0.0, 0.0, 0.0)  # the epoch begins when a lease is over
    starts = scripts.run(RESERVE, START + 10, names, *reserve, 0.0, 2.0, 0.0, 1.0)[3:]
    assert [float(start) - START for start in starts] == [9, 9]
    starts = scripts.run(RESERVE, START + 10, names, *reserve, 0.0, 1.0, 0.5, 1.0)[3:]
    assert [float(start) - START for start in starts] == [11, 9.5]
    scripts.run(RESERVE, START + 60, ["limit", "a", "pace"], *reserve, 0.0, 0.0)
    assert [
        float(one) - START for one in scripts.run(RESERVE, START + 60, names, *reserve, 0.0, 1.0, 0.0, 1.0)[3:]
    ] == [
        59,
        59,
    ]


@pytest.mark.usefixtures("given_time")
async def test_one_question_asks_for_many_keys(connection: OnGivenTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keys cost two questions, and what a task has used it has forgotten."""
    limit, woken = RateLimit(5, "minute", by="tenant"), list[str]()
    await open_keys(connection, [("x", limit)])
    keys = SharedKeys(linked(connection), "x", limit, woken.append)
    asked = list[int]()
    question = keys._question
    monkeypatch.setattr(keys, "_question", lambda of: asked.append(len(of)) or question(of))
    names = [f"tenant {number}" for number in range(1000)]
    for name in names:
        if keys.is_full:
            await asyncio.sleep(0.1)
        assert keys.due(name, 1.0, now(), 1) is None
    await asyncio.sleep(0.1)
    assert sorted(woken) == sorted(names)
    assert asked == [500, 500]
    for name in names[500:]:
        assert keys.due(name, 1.0, now(), 1) == now()
        keys.use(name, 1.0, now())
    await asyncio.sleep(60.0)
    assert not keys._leased
    await keys.close()


@pytest.mark.usefixtures("given_time")
async def test_a_server_without_a_memory_grants_nothing_twice(connection: OnGivenTime) -> None:
    """Keys begin anew when all that was granted has run out, and a task learns that its permits are void."""
    limit, woken = RateLimit(1, per=10.0, by="tenant"), list[str]()
    await open_keys(connection, [("x", limit)])
    keys = SharedKeys(linked(connection), "x", limit, woken.append)

    async def due() -> float:
        while (found := keys.due("a", 1.0, now(), 1)) is None:
            await asyncio.sleep(0.05)
        return found

    assert await due() == pytest.approx(now(), abs=0.1)
    keys.use("a", 1.0, now())
    assert await due() == pytest.approx(10, abs=0.1)
    connection.on_given_time.forget()
    woken.clear()
    await asyncio.sleep(4.0)
    assert woken == ["a"]
    assert await due() == pytest.approx(16, abs=2.5)  # a lease after the loss, and no burst
    await keys.close()
