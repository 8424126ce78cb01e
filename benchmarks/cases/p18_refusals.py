"""P18: a job beside a service that refuses calls, in virtual time: 50 calls of 20 ms in flight, in one task.

Figures of each service: how near the job comes to its ideal, in percent, and how many calls are refused. Beside it two
simple rules, simulated: after a refusal all calls pause until its row may be called again, or each row waits alone.
Virtual time makes every run the same; tests/calls/test_services_that_refuse.py has the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial

from asyncudf import http
from asyncudf.testing import run_rows

from .._harness import Case, Sample, Settings, System
from .._refusing import CAPACITY, LATENCY, SERVICES, Refusing

__all__ = ("P18",)


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    yield [
        System(f"{rule}: {name}", partial(run, job), "ours" if rule == "asyncudf" else "reference")
        for name, job in SERVICES.items()
        for rule, run in RULES.items()
    ]


def ours(job: Refusing) -> Sample:
    service, calls, refused, end = job.service(), 0, 0, 0.0

    async def call(row: int) -> int:
        nonlocal calls, refused, end
        calls += 1
        wait = service(row, asyncio.get_running_loop().time())
        await asyncio.sleep(LATENCY)
        if wait is not None:
            refused += 1
            raise http.ThrottledError(429, retry_after=wait)
        end = asyncio.get_running_loop().time()
        return row

    run_rows(call, range(job.rows), capacity=CAPACITY, output_mode="unordered", timeout=None)
    return sample(job, end, calls, refused)


def simulated(job: Refusing, *, all_pause: bool) -> Sample:
    """The same job by a rule that knows no more than the wait of each refusal."""
    service, calls, refused, in_flight, paused_until, now, end = job.service(), 0, 0, 0, 0.0, 0.0, 0.0
    rows, numbers = deque(range(job.rows)), itertools.count()
    events: list[tuple[float, int, int, float | None, bool]] = []  # time, number, row, wait, whether it is back
    while rows or events:
        while rows and in_flight < CAPACITY and now >= paused_until:
            row, calls, in_flight = rows.popleft(), calls + 1, in_flight + 1
            heapq.heappush(events, (now + LATENCY, next(numbers), row, service(row, now), True))
        if not events:
            now = paused_until
            continue
        time, _, row, wait, is_answer = heapq.heappop(events)
        if rows and in_flight < CAPACITY and now < paused_until < time:
            heapq.heappush(events, (time, next(numbers), row, wait, is_answer))
            now = paused_until
            continue
        now = time
        in_flight -= is_answer
        if not is_answer:
            rows.appendleft(row)
        elif wait is None:
            end = now
        else:
            refused += 1
            if all_pause:
                paused_until = max(paused_until, now + wait)
            heapq.heappush(events, (now + wait, next(numbers), row, None, False))
    return sample(job, end, calls, refused)


def sample(job: Refusing, end: float, calls: int, refused: int) -> Sample:
    return Sample({"% of the ideal": 100 * job.ideal / end, "refused, in % of the calls": 100 * refused / calls})


RULES = {
    "asyncudf": ours,
    "all pause": partial(simulated, all_pause=True),
    "each for itself": partial(simulated, all_pause=False),
}

P18 = Case(
    "P18",
    "services that refuse calls, in virtual time",
    systems,
    loop="a virtual clock",
)
