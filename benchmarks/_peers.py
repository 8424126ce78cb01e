"""The peers of `benchmarks/peers` as systems of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ._harness import AT_ITS_BEST, Kind, Sample, Settings, System, UnavailableError
from .peers import PEERS, Mode, PeerUnavailable, Workload, run

__all__ = ("ROOM", "TIMEOUT", "WARM_UP", "Values", "peer_systems", "rows_within")

WARM_UP = 20  # the share of the rows
PATIENCE = 25.0  # seconds for all rows: far more than a peer needs that others may be compared with
BUDGET = 5.0  # seconds of a round of a peer that would take longer
ROOM = Workload.room
TIMEOUT = 60.0  # seconds; a deadline for every row, as ours has
Values = Callable[[Sequence[float], float], Mapping[str, float]]  # of the latencies and the seconds that it took


def peer_systems(
    settings: Settings,
    latencies: Sequence[float],
    mode: Mode,
    values: Values,
    *,
    room: int = ROOM,
    url: str = "",
) -> list[System]:
    """The peers that were asked for, each with these calls to make.

    Args:
        room: how many times the capacity the rows are that a peer at its best holds, where it can be told.
        url: where their calls make a request each; the latencies are what is expected then.
    """
    if settings.peers is None:
        return []
    chosen = [name for name in PEERS if not settings.peers or name in settings.peers]
    workload = Workload(latencies, mode, timeout=TIMEOUT, room=room, url=url)
    return [System(name, PeerRun(name, workload, values), _kind(name)) for name in chosen]


def _kind(peer: str) -> Kind:
    return "peer at its best" if peer.endswith(AT_ITS_BEST) else "peer"


class PeerRun:
    """Measures a peer, each time in a process of its own: its just-in-time compiler starts cold, unlike Spark's.

    So there is nothing to warm up; the first round, of a twentieth of the rows, shows that it can run, and how fast.
    From it the rows of all rounds follow, so that they are alike: all of them, unless it is a great deal slower than
    others, some of which are a thousand times slower. Its note says so.
    """

    def __init__(self, name: str, workload: Workload, values: Values) -> None:
        self._name = name
        self._workload = workload
        self._values = values
        self._rows: int | None = None  # of a round; not known yet

    def __call__(self) -> Sample:
        all_rows = len(self._workload.latencies)
        latencies = self._workload.latencies[: self._rows or max(1, all_rows // WARM_UP)]
        try:
            done = run(self._name, dataclasses.replace(self._workload, latencies=latencies))
        except PeerUnavailable as reason:
            raise UnavailableError(str(reason)) from reason
        fewer = "" if done.rows == all_rows else f"; {done.rows:,} rows, as many as a round has time for"
        if self._rows is None:
            self._rows = rows_within(latencies, done.seconds, all_rows)
        return Sample(self._values(latencies, done.seconds), done.version, done.note + fewer)


def rows_within(latencies: Sequence[float], seconds: float, most: int) -> int:
    """How many rows a round has time for, if these few took so many seconds.

    The longest of them does not count: many rows have it beside each other, where few only wait for it.
    """
    rate = len(latencies) / max(seconds - max(latencies), 1e-9)
    return most if most <= PATIENCE * rate else 1 + int(BUDGET * rate)
