"""A rate limit that is settled is used to the full by all tasks of a job, and kept; on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pytest

from asyncudf import Budget, FatalError, RateLimit
from asyncudf._limits.coordinator.client import LEASE
from tests.kit.coordinators import Server
from tests.kit.engines import run_tasks

pytestmark = [pytest.mark.services, pytest.mark.figures]

RESERVED = 1_000.0


class Call(NamedTuple):
    began: float
    task: int
    used: float


class Job:
    """Tasks that always have rows, which begin one after the other; each call reserves 1,000.

    Args:
        takes: seconds of a call.
        uses: of what it has reserved.
        seconds: for which all tasks run, after 2 s in which what is reserved bounds the calls.
        apart: seconds between the first rows of two tasks.
    """

    def __init__(
        self,
        limit: Callable[..., RateLimit],
        tasks: int,
        *,
        takes: tuple[float, float] = (0.03, 0.07),
        uses: tuple[float, float] = (100.0, 400.0),
        seconds: float = 4.0,
        warm: float = 2.0,
        apart: float = 0.1,
    ) -> None:
        self.limit = limit(cost=RESERVED, settle=lambda n, used: used)
        self.tasks, self._takes, self._uses = tasks, takes, uses
        # The first question makes the limit, of which nobody has permits before the end of a lease.
        self._begins = [0.0, *(LEASE + apart * number for number in range(1, tasks))]
        self.begin = self._begins[-1] + (LEASE if tasks == 1 else 0.0) + warm
        self.end = self.begin + seconds
        self.calls = list[Call]()

    def run(self, server: Server, rows: int, **options: Any) -> None:
        options = {"capacity": 200, "rate_limit": self.limit, **options}
        ended = run_tasks(
            server, map(self._of_task, range(self.tasks)), self._rows(rows), begins=self._begins, **options
        )
        assert all("the test is over" in str(error) for error in ended), "a task had no more rows"

    def _rows(self, rows: int) -> Iterable[int]:
        return repeat(0, rows) if self.limit.by else range(rows)

    def _of_task(self, task: int) -> Callable[..., Any]:
        rng = random.Random(task)

        async def ask(n: int) -> float:
            now = asyncio.get_running_loop().time()
            if now >= self.end:
                raise FatalError("the test is over")
            used = rng.uniform(*self._uses)
            self.calls.append(Call(now, task, used))
            await asyncio.sleep(rng.uniform(*self._takes))
            return used

        return ask

    @property
    def used(self) -> float:
        """The share of the rate that was used while all tasks ran."""
        used = sum(call.used for call in self.calls if call.began >= self.begin)
        return used * self.limit.interval / (self.end - self.begin)

    @property
    def shares(self) -> list[int]:
        """The calls of each task in that time, the fewest first."""
        calls = Counter(call.task for call in self.calls if call.began >= self.begin)
        return sorted(calls[task] for task in range(self.tasks))

    @property
    def worst(self) -> float:
        """The most that any period has used, as a share of the permits."""
        calls, most, used, first = sorted(self.calls), 0.0, 0.0, 0
        for call in calls:
            used += call.used
            while calls[first].began <= call.began - self.limit.period:
                used -= calls[first].used
                first += 1
            most = max(most, used)
        return most / self.limit.permits


PER_SECOND = partial(RateLimit, 100_000)
PER_MINUTE = partial(RateLimit, 600_000, "minute")


@pytest.mark.parametrize("tasks", [1, 4, 8])
def test_tasks_that_begin_one_after_the_other_use_all_of_a_rate(server: Server, tasks: int) -> None:
    """Each task had asked for what a call reserves, and needed a quarter of it when it came.

    The rest became stale, so the block was too long: a task that began later got one call in a turn, for ever. Four
    used 96% together, in shares of 1 to 28, and lost more as one after the other ended: 93.5% in all.
    """
    job = Job(PER_SECOND, tasks)
    job.run(server, rows=6_000 // tasks)
    assert job.used >= 0.99
    assert job.worst <= 1.04
    assert job.shares[0] >= 0.5 * job.shares[-1]


def test_a_budget_beside_it_takes_nothing_of_a_rate(server: Server) -> None:
    """What each call has reserved of both comes back with its end, as in P26 of the benchmarks."""
    job = Job(PER_SECOND, 4)
    job.run(server, rows=1_500, budget=Budget(10.0, reserve=RESERVED / 1e6, settle=lambda n, used: used / 1e6))
    assert job.used >= 0.99
    assert job.worst <= 1.04


def test_many_tasks_use_all_of_a_rate(server: Server) -> None:
    """Of 40 each lost more than it used, 77% in all."""
    job = Job(PER_SECOND, 40, apart=0.02, warm=6.0)
    job.run(server, rows=400)
    assert job.used >= 0.99
    assert job.worst <= 1.04


@pytest.mark.parametrize("uses", [(1.0, 1_000.0), (500.0, 2_000.0)])
def test_calls_that_use_anything_use_all_of_a_rate(server: Server, uses: tuple[float, float]) -> None:
    """Also more than they have reserved, for which later calls make up: it was 96 and 73%.

    Nobody knows before a call what it uses, so a second may have some calls of those that use more than others.
    """
    job = Job(PER_SECOND, 4, uses=uses)
    job.run(server, rows=1_500)
    assert job.used >= 0.99
    assert job.worst <= 1.04 + 2 * uses[1] / 100_000


def test_without_a_burst_nothing_that_comes_back_is_lost(server: Server) -> None:
    """What calls give back becomes stale within 20 ms then, unless a call waits: 2% did."""
    job = Job(partial(PER_SECOND, burst=1), 4)
    job.run(server, rows=1_500)
    assert job.used >= 0.99
    assert job.worst <= 1.02 + 2 * RESERVED / 100_000


@pytest.mark.parametrize("takes", [(0.02, 0.02), (0.5, 2.0)])
def test_a_rate_of_a_minute_is_used(server: Server, takes: tuple[float, float]) -> None:
    job = Job(PER_MINUTE, 4, takes=takes, seconds=40.0, warm=20.0)
    job.run(server, rows=900)
    assert job.used >= 0.99
    assert job.worst <= 1.04


@pytest.mark.parametrize("tasks", [1, 4, 8])
def test_a_key_uses_all_of_its_rate(server: Server, tasks: int) -> None:
    """What came back went to the coordinator, which had reserved permits ahead for the tasks, and gave it once more.

    One task used 27% and four 75%. Eight used 100%, and up to 119% of a second.
    """
    job = Job(partial(PER_SECOND, by="n"), tasks)
    job.run(server, rows=6_000 // tasks)
    assert job.used >= 0.99
    assert job.worst <= 1.04
    assert job.shares[0] >= 0.5 * job.shares[-1]
