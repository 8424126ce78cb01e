"""JOB and EXECUTORS: whole jobs, each in a process of its own.

JOB has calls of 20 ms, 100 in flight. Cold is the time from the start of a process to its first 1,000 results, with all
that it has to import, to start and to compile. Warm is the next job in the same process.

EXECUTORS has one task in each executor, in a process of its own as on a cluster, and 100 calls of 20 ms in each task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from .._calls import per_call
from .._harness import Case, Sample, Settings, System, Target, UnavailableError
from .._peers import peer_systems
from .._work import CAPACITY
from ..peers import PeerUnavailable, Program, Workload, version

__all__ = ("EXECUTORS", "JOB")

LATENCY = 0.02  # seconds
OURS = ("bare", "asyncudf", "handwritten", "gather")
PEERS = ("flink", "ray", "daft")
FEW, MANY = 1_000, 10_000  # rows
COLD, WARM, LARGE = f"s for {FEW:,} rows cold", f"s for {FEW:,} rows warm", f"s for {MANY:,} rows warm"
CLUSTERS = {"one executor": "local-cluster[1,1,1024]", "two executors": "local-cluster[2,1,1024]"}


@contextlib.contextmanager
def jobs(settings: Settings) -> Iterator[list[System]]:
    names = [*OURS, *(name for name in PEERS if name in settings.peers)]
    yield [System(name, partial(job, name, Workload([LATENCY] * settings.rows(MANY)))) for name in names]


def job(name: str, workload: Workload) -> Sample:
    few = max(1, len(workload.latencies) * FEW // MANY)
    start = time.perf_counter()
    seconds = []
    try:
        version(name)
        with contextlib.closing(Program(name, workload)) as program:
            for rows in (few, few, len(workload.latencies)):
                done = program.run(rows)
                seconds.append(time.perf_counter() - start)
                start = time.perf_counter()
    except PeerUnavailable as reason:
        raise UnavailableError(str(reason)) from reason
    cold, warm, large = seconds
    return Sample({COLD: cold, WARM: warm, LARGE: large}, done.version)


@contextlib.contextmanager
def executors(settings: Settings) -> Iterator[list[System]]:
    systems = []
    for tasks, (name, master) in enumerate(CLUSTERS.items(), 1):
        workload = Workload([LATENCY] * settings.rows(20_000), master=master, tasks=tasks)
        ideal = Workload(workload.latencies, capacity=tasks * CAPACITY)
        values = partial(of_all_tasks, ideal)
        [system] = peer_systems(Settings(peers=("asyncudf",)), ("asyncudf",), workload, values)
        systems.append(System(name, system.measure, system.close))
    yield systems


def of_all_tasks(ideal: Workload, _: Workload, seconds: float) -> dict[str, float]:
    return per_call(ideal, seconds)


JOB = Case(
    "JOB",
    "whole jobs of 1,000 and 10,000 calls of 20 ms, cold and warm",
    jobs,
    (
        Target(COLD, "asyncudf", most=1.1, against="handwritten"),
        Target(LARGE, "asyncudf", most=1.1, against="handwritten"),
    ),
    minutes=6.0,
    how="without a round to warm up",
    peers=PEERS,
    is_cold=True,
)
EXECUTORS = Case(
    "EXECUTORS",
    "calls of 20 ms in one and in two executors",
    executors,
    (Target("calls/s", "two executors", least=1.9, against="one executor"),),
    minutes=1.2,
)
