"""The peers of `benchmarks/peers` as systems of a case."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ._harness import Sample, Settings, System, UnavailableError
from ._meter import Processes
from .peers import PeerUnavailable, Program, Workload, version

__all__ = ("of_requests", "peer_systems")


def peer_systems(
    settings: Settings,
    names: Sequence[str],
    workload: Workload,
    values: Callable[[Workload, float], dict[str, float]],
    *,
    room: int = 100,
) -> list[System]:
    """Those peers that were asked for, each with all the calls to make.

    Args:
        names: `flink`, or `flink unordered` for another mode than `ordered`.
        room: how many times the capacity the rows are that a peer holds, where it can be told.
    """
    systems = []
    for name in names:
        peer, _, mode = name.partition(" ")
        if peer in settings.peers:
            own = dataclasses.replace(workload, room=room, mode="unordered" if mode else "ordered")
            run = PeerRun(peer, own, values)
            systems.append(System(name, run, run.close))
    return systems


def of_requests(used: Mapping[str, float], rows: int, cpu_of_task: float | None = None) -> dict[str, float]:
    """What requests have cost: the CPU of the task's process, and what all processes of a system have used."""
    found = {} if cpu_of_task is None else {"CPU us/request of the task": cpu_of_task / rows * 1e6}
    found |= {"CPU us/request": used["cpu"] / rows * 1e6} if "cpu" in used else {}
    return found | ({"peak MB": used["peak"]} if "peak" in used else {})


class PeerRun:
    """Measures a peer, whose process begins with the warm-up and ends with the case."""

    def __init__(self, peer: str, workload: Workload, values: Callable[[Workload, float], dict[str, float]]) -> None:
        self._peer, self._workload, self._values = peer, workload, values
        self._program: Program | None = None

    def __call__(self) -> Sample:
        rows = len(self._workload.latencies)
        try:
            if self._program is None:
                version(self._peer)
                self._program = Program(self._peer, self._workload)
            used: Mapping[str, float] = {}
            with contextlib.ExitStack() as stack:
                if self._workload.url:
                    used = stack.enter_context(Processes(self._program.pid).watched())
                done = self._program.run(rows)
        except PeerUnavailable as reason:
            raise UnavailableError(str(reason)) from reason
        values = self._values(self._workload, done.seconds) | of_requests(used, rows)
        return Sample(values, done.version, done.note)

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
