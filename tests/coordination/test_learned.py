"""Tasks of a job learn one limit together, by what the service tells any of them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest

from asyncudf import RateLimit, http
from tests.kit.coordinators import OnGivenTime, Server
from tests.kit.engines import run_tasks
from tests.kit.limited import now
from tests.kit.telling_services import JOBS, run_job

pytestmark = pytest.mark.services

LIMIT = RateLimit.from_headers("openai", start=60, at_most=60_000, burst=1)


def told(limit: float, left: float | None = None, reset: str = "60s") -> dict[str, str]:
    parts = {"limit": f"{limit:.0f}", "remaining": f"{limit if left is None else left:.0f}", "reset": reset}
    return {f"x-ratelimit-{part}-requests": value for part, value in parts.items()}


def test_a_job_gets_what_a_service_allows_and_is_hardly_refused(server: Server) -> None:
    """Eight tasks, of which each kept permits of a faster pace that were too short for a call: nobody called for 10 s.

    `python -m benchmarks.learned_limits` has all services.
    """
    found = run_job(server, JOBS["IETF's, sliding, limit halves"], 1)
    assert found.served >= 90.0
    assert found.refused <= 2.0


def test_what_one_task_is_told_all_know(server: Server) -> None:
    """Only one of four tasks is told anything; from then on all begin as many calls together as are allowed."""
    times: list[float] = []

    def task(number: int) -> object:
        async def call(row: int) -> int:
            times.append(now())
            await asyncio.sleep(0.05)
            if number == 0:
                http.tell_limits(told(1200))
            return row

        return call

    run_tasks(server, [task(number) for number in range(4)], range(100), rate_limit=LIMIT)  # type: ignore[misc]
    late = Counter(math.floor(time) for time in times if time >= 8.0)
    assert max(late.values()) <= 22
    assert sorted(late.values())[len(late) // 2] >= 18


def test_the_old_answer_of_a_task_that_stalls_undoes_nothing(server: Server) -> None:
    """Its call began before all others and ends after most: that the limit was used up is no news by then."""
    ends: list[float] = []

    def task(number: int) -> object:
        async def call(row: int) -> int:
            is_old = number == 0 and row == 0
            await asyncio.sleep(8.0 if is_old else 0.05)
            http.tell_limits(told(6, 0, "10m0s") if is_old else told(1200))
            ends.append(now())
            return row

        return call

    run_tasks(server, [task(number) for number in range(2)], range(200), rate_limit=LIMIT)  # type: ignore[misc]
    assert max(ends) < 40.0


def test_a_coordinator_that_forgets_is_told_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit was learned from one answer alone. Then the server lost its memory, and the tasks know it still."""
    times = list[float]()
    asked = OnGivenTime.run
    has_forgotten = False

    async def run(self: OnGivenTime, *arguments: object) -> object:
        nonlocal has_forgotten
        if not has_forgotten and self.clock() > 5.0:
            has_forgotten = True
            self.on_given_time.forget()
        return await asked(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OnGivenTime, "run", run)

    async def call(row: int) -> int:
        times.append(now())
        if row == 0:
            http.tell_limits(told(1200))
        return row

    run_tasks(server, [call] * 2, range(150), rate_limit=LIMIT)
    assert has_forgotten
    assert len([time for time in times if time > 12.0]) > 0
    assert max(times) < 30.0
