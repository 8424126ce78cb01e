"""P18: a job beside a service that refuses calls, in virtual time: 50 calls of 20 ms in flight, in one task.

Figures of each service: how near the job comes to its ideal, in percent, and how many calls are refused. Beside it two
simple rules, simulated: after a refusal all calls pause until its row may be called again, or each row waits alone.
Virtual time makes every run the same; tests/calls/test_services_that_refuse.py has the bounds.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from .._harness import Case, Sample, Settings, System
from .._refusing import CAPACITY, LATENCY, SERVICES, Outcome, Refusing, run_with_asyncudf

__all__ = ("P18",)


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    yield [
        System(f"{rule}: {name}", partial(sampled, run, job), "ours" if rule == "asyncudf" else "reference")
        for name, job in SERVICES.items()
        for rule, run in RULES.items()
    ]


def sampled(run: Callable[[Refusing], Outcome], job: Refusing) -> Sample:
    outcome = run(job)
    return Sample({"% of the ideal": outcome.of_ideal, "refused, in % of the calls": outcome.refused})


def simulated(job: Refusing, *, all_pause: bool) -> Outcome:
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
    return Outcome.of(job, end, calls, refused)


RULES = {
    "asyncudf": run_with_asyncudf,
    "all pause": partial(simulated, all_pause=True),
    "each for itself": partial(simulated, all_pause=False),
}

P18 = Case(
    "P18",
    "services that refuse calls, in virtual time",
    systems,
    loop="a virtual clock",
)
