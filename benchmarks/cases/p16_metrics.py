"""P16: what the metrics and the account of time add to a row, with the engine alone on uvloop.

The same calls are made with counters that count nothing, right before; what is told is the difference of the two, in
CPU time. It is a small part of either, so there are many rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import uvloop

from .._engine import engine_seconds
from .._harness import Case, Sample, Settings, System, Target
from .._meter import metered
from .._work import instant, suspends_once

__all__ = ("P16",)

ROWS = {"instant": 1_000_000, "suspended": 200_000}
MOST = {"instant": 0.05, "suspended": 0.3}  # us
FUNCTIONS: dict[str, Callable[[int], Awaitable[int]]] = {"instant": instant, "suspended": suspends_once}
MODES = ("ordered", "unordered")
ADDED = "CPU us/row of metrics"


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    yield [
        System(f"{kind}, {mode}", partial(beside_uncounted, function, settings.rows(ROWS[kind]), mode))
        for kind, function in FUNCTIONS.items()
        for mode in MODES
    ]


def beside_uncounted(function: Callable[[int], Awaitable[int]], rows: int, mode: str) -> Sample:
    def cpu(*, is_counted: bool) -> float:
        with metered() as used:
            engine_seconds(function, rows, mode, uvloop.new_event_loop, is_counted=is_counted)
        return used["cpu"] / rows * 1e6

    uncounted, counted = cpu(is_counted=False), cpu(is_counted=True)
    return Sample({"CPU us/row": counted, ADDED: counted - uncounted})


P16 = Case(
    "P16",
    "the metrics and the account of time, with the engine alone",
    systems,
    targets=tuple(Target(ADDED, f"{kind}, {mode}", MOST[kind]) for kind in FUNCTIONS for mode in MODES),
    repetitions=9,
    plots=(ADDED,),
    loop="on uvloop",
)
