"""The peers of `benchmarks/peers` as systems of a case; they are imported only with --peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._harness import Kind, Sample, Settings, System, UnavailableError

__all__ = ("TIMEOUT", "Values", "peer_systems")

WARM_UP = 20  # the share of the rows
TIMEOUT = 60.0  # seconds; a deadline for every row, as ours has
Values = Callable[[Sequence[float], float], Mapping[str, float]]  # of the latencies and the seconds that it took


def peer_systems(
    settings: Settings, latencies: Sequence[float], mode: str, values: Values, budget: float | None = None
) -> list[System]:
    """The peers that were asked for, each with these calls to make.

    Args:
        budget: seconds that a round may take, as far as the warm-up tells: among peers with an instant function
            some are a thousand times slower than others.
    """
    if settings.peers is None:
        return []
    peers: Any = importlib.import_module("benchmarks.peers")
    unknown = set(settings.peers) - set(peers.PEERS)
    if unknown:
        raise SystemExit(f"there is no peer {', '.join(sorted(unknown))}; there are {', '.join(peers.PEERS)}")
    chosen = [name for name in peers.PEERS if not settings.peers or name in settings.peers]
    return [System(name, PeerRun(peers, name, latencies, mode, values, budget), _kind(name)) for name in chosen]


def _kind(peer: str) -> Kind:
    return "peer at its best" if peer.endswith("-best") else "peer"


class PeerRun:
    """Measures a peer, each time in a process of its own: its just-in-time compiler starts cold, unlike Spark's.

    So there is nothing to warm up; the first round, of a twentieth of the rows, shows that it can run, and how fast.
    """

    def __init__(
        self, peers: Any, name: str, latencies: Sequence[float], mode: str, values: Values, budget: float | None
    ) -> None:
        self._peers = peers
        self._name = name
        self._latencies = latencies
        self._mode = mode
        self._values = values
        self._budget = budget
        self._rows = max(1, len(latencies) // WARM_UP)

    def __call__(self) -> Sample:
        latencies = self._latencies[: self._rows]
        try:
            done = self._peers.run(self._name, self._peers.Workload(latencies, mode=self._mode, timeout=TIMEOUT))
        except self._peers.PeerUnavailable as reason:
            raise UnavailableError(str(reason)) from reason
        budget = float("inf") if self._budget is None else self._budget
        self._rows = int(min(len(self._latencies), 1 + budget * done.rows / done.seconds))
        fewer = "" if done.rows == len(self._latencies) else f"; {done.rows:,} rows, as many as a round has time for"
        return Sample(self._values(latencies, done.seconds), done.version, done.note + fewer)
