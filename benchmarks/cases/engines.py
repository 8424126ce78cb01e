"""P30: calls of 20 ms on Sail, beside Spark Connect, in two tasks with 100 in flight each; each engine in a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .._harness import Case, Settings, System, Target
from .._peers import PeerRun
from .._work import CAPACITY, seconds_at_best
from ..peers import Workload

__all__ = ("P30",)

TASKS = 2


@contextlib.contextmanager
def engines(settings: Settings) -> Iterator[list[System]]:
    workload = Workload([0.02] * settings.rows(20_000), tasks=TASKS)

    def values(workload: Workload, seconds: float) -> dict[str, float]:
        ideal = seconds_at_best(workload.latencies, TASKS * CAPACITY)
        return {"calls/s": len(workload.latencies) / seconds, "% of the ideal": 100 * ideal / seconds}

    runs = {"Sail": PeerRun("sail", workload, values), "Spark Connect": PeerRun("connect", workload, values)}
    yield [System(name, run, run.close) for name, run in runs.items()]


P30 = Case(
    "P30",
    "calls of 20 ms through ordered_wait in two tasks, on Sail and over Spark Connect",
    engines,
    (Target("% of the ideal", "Sail", least=95),),
    minutes=0.8,
    how="whole queries",
)
