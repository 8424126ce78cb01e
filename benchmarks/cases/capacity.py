"""CAPACITY: the throughput by the number of calls in flight, with calls of 20 ms.

It grows with the capacity until the event loop is busy all the time; `bare asyncio` shows where that is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from .._calls import Calls
from .._harness import Case, Settings, System
from .._spark import local_spark
from .._work import BARE

__all__ = ("CAPACITY_GROWTH",)

CAPACITIES = (1, 10, 100, 1_000, 10_000)
LATENCY = 0.02  # seconds
ROUNDS = 200  # calls of each slot, 4 seconds of waiting
MOST = 500_000  # calls


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        sizes = {capacity: settings.rows(min(ROUNDS * capacity, MOST)) for capacity in CAPACITIES}
        calls = {capacity: Calls(session, [LATENCY] * rows, capacity) for capacity, rows in sizes.items()}
        yield [
            *(System("column", each.column, at=capacity) for capacity, each in calls.items()),
            *(
                System(name, partial(each.bare, loop), "reference", at=capacity)
                for name, loop in BARE.items()
                for capacity, each in calls.items()
            ),
        ]


CAPACITY_GROWTH = Case(
    "CAPACITY",
    "the throughput of calls of 20 ms, by capacity",
    systems,
    repetitions=3,
    axis="capacity",
    plots=("calls/s",),
)
