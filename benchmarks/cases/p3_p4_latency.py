"""P3 and P4: calls of lognormal latency, 100 in flight, through Spark, ordered and unordered.

`bare asyncio` is a program of 100 tasks that take the next row each, without order, deadlines or Spark: what one
event loop can do. Counted is for all systems the time from the start of the first call to the arrival of the last
result. The ideal is the sum of the latencies / 100.

`queue_size=capacity` is Flink's rule: calls in flight and finished rows that wait for their turn share one bound; it
gets a fifth of the calls. `gather` waits for the slowest call of each Arrow batch; the program that makes the calls
looks whether the batches are as large as their line says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from asyncudf import ordered_wait, unordered_wait

from .._calls import Calls
from .._harness import BEST_PEER, Case, Settings, System, Target
from .._peers import peer_systems
from .._spark import local_spark
from .._work import BARE, CAPACITY, LOOPS, SAME_LOOP, lognormal, rates

__all__ = ("P3", "P4")

CALLS = 30_000
REPETITIONS = 3


@contextlib.contextmanager
def ordered(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, lognormal(settings.rows(CALLS)))
        flinks_rule = partial(calls.fifth().operator, ordered_wait, queue_size=CAPACITY)
        yield [
            *(System(name, partial(calls.bare, loop), "reference") for name, loop in BARE.items()),
            System("column", calls.column),
            System("ordered_wait", partial(calls.operator, ordered_wait)),
            System("ordered_wait, queue_size=capacity", flinks_rule, "reference"),
            System("gather per batch of 10,000", calls.gather, "reference"),
            System("gather per batch of 1,000", calls.in_batches_of(1_000).gather, "reference"),
            *peer_systems(settings, calls.latencies, "ordered", rates),
        ]


@contextlib.contextmanager
def unordered(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, lognormal(settings.rows(CALLS)))
        yield [
            *(System(name, partial(calls.bare, loop), "reference") for name, loop in BARE.items()),
            System("unordered_wait", partial(calls.operator, unordered_wait)),
            *peer_systems(settings, calls.latencies, "unordered", rates),
        ]


P3 = Case(
    "P3",
    "calls of lognormal latency (mean 19 ms, sigma 0.8), 100 in flight, ordered",
    ordered,
    targets=(
        Target("calls/s", "column", 0.97, against=SAME_LOOP),
        Target("calls/s", "ordered_wait", 0.97, against=SAME_LOOP),
        Target("calls/s", "ordered_wait", 0.98, against=BEST_PEER),
    ),
    repetitions=REPETITIONS,
    plots=("% of the ideal",),
    loop=LOOPS,
)
P4 = Case(
    "P4",
    "calls of lognormal latency (mean 19 ms, sigma 0.8), 100 in flight, unordered",
    unordered,
    targets=(
        Target("calls/s", "unordered_wait", 0.97, against=SAME_LOOP),
        Target("calls/s", "unordered_wait", 0.98, against=BEST_PEER),
    ),
    repetitions=REPETITIONS,
    plots=("% of the ideal",),
)
