"""P3, P3b and P3c: calls that wait for a timer, so that only the operator decides how many are in flight.

P3 has the latencies of real services; in P3b and P3c a few calls are very slow. A slow call of P3c takes as long as 250
usual ones: Flink holds five times as many rows there, as somebody would set it up who knows that; ours is as installed.
`gather` waits for the slowest call of each batch of 10,000 rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from .._calls import Calls
from .._harness import Case, Settings, System, Target
from .._spark import local_spark
from .._work import lognormal, mix

__all__ = ("P3", "P3B", "P3C")

USUAL = 0.02  # seconds
PEERS = ("flink", "flink unordered", "jvm", "ray", "daft", "pyflink")


@contextlib.contextmanager
def real(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, lognormal(settings.rows(20_000)))
        yield [
            System("bare", calls.bare),
            System("column", calls.column),
            System("ordered_wait", calls.ordered),
            System("unordered_wait", calls.unordered),
            System("handwritten", calls.handwritten),
            System("gather", calls.gather),
            *calls.peers(settings, PEERS),
        ]


@contextlib.contextmanager
def heavy_tail(
    latencies: Callable[[Settings], Sequence[float]], room: int, settings: Settings
) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, latencies(settings))
        yield [
            System("bare", calls.bare),
            System("ordered_wait", calls.ordered),
            System("handwritten", calls.handwritten),
            System("gather", calls.gather),
            *calls.peers(settings, ("flink",), room=room),
        ]


def against(ours: str, **bounds: float) -> tuple[Target, ...]:
    return tuple(Target("calls/s", ours, least=bound, against=other) for other, bound in bounds.items())


P3 = Case(
    "P3",
    "calls of lognormal latency (mean 19 ms, sigma 0.8), 100 in flight",
    real,
    (
        *against("column", bare=0.97),
        *against("ordered_wait", bare=0.97, handwritten=0.98, flink=0.98),
        *against("unordered_wait", bare=0.97, handwritten=0.98),
        Target("calls/s", "unordered_wait", least=0.98, against="flink unordered"),
    ),
    minutes=7.0,
    peers=PEERS,
)
P3B = Case(
    "P3b",
    "calls of 20 ms of which 1% take 1 s, 100 in flight, in order",
    partial(heavy_tail, lambda settings: mix(settings.rows(15_000), USUAL, 0.01, 1.0), 100),
    against("ordered_wait", bare=0.97, handwritten=0.98, flink=0.98),
    minutes=2.9,
    peers=("flink",),
)
P3C = Case(
    "P3c",
    "calls of 20 ms of which 0.1% take 5 s, 100 in flight, in order",
    partial(heavy_tail, lambda settings: mix(settings.rows(15_000), USUAL, 0.001, 5.0), 500),
    against("ordered_wait", bare=0.97, handwritten=0.98, flink=0.98),
    minutes=5.6,
    peers=("flink",),
)
