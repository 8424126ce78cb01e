"""P9: what the engine adds to a call that gives way to the event loop once, as every real call does; on both loops.

`bare` is a plain program of 100 tasks that take the next row each, without order and deadlines. The engine has a
deadline for each row. It is measured right after a bare program of its own, and `above bare` is the difference of the
two. `gather` is `asyncio.gather` over each batch of 10,000 rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import uvloop

from .._engine import engine_seconds, gather_seconds
from .._harness import Case, Sample, Settings, System, Target
from .._work import CAPACITY, Loop, pulled, run, settle_collector, suspends_once

__all__ = ("P9",)

ROWS = 200_000
MOST = 2.0  # us above the bare program
LOOPS: dict[str, Loop] = {"asyncio's loop": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
MODES = ("ordered", "unordered")
Seconds = Callable[[], float]


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    yield [system for name, loop in LOOPS.items() for system in on_loop(name, loop, rows)]


def on_loop(name: str, loop: Loop, rows: int) -> list[System]:
    bare = partial(bare_seconds, rows, loop)
    gather = partial(gather_seconds, suspends_once, rows, loop)
    return [
        System(f"bare on {name}", partial(per_row, rows, bare), "reference"),
        *(
            System(
                f"{mode} on {name}",
                partial(beside_bare, rows, partial(engine_seconds, suspends_once, rows, mode, loop), bare),
            )
            for mode in MODES
        ),
        System(f"gather on {name}", partial(per_row, rows, gather), "reference"),
    ]


def bare_seconds(rows: int, loop: Loop) -> float:
    settle_collector()
    start = time.perf_counter()
    assert len(run(pulled(suspends_once, range(rows), CAPACITY), loop)) == rows
    return time.perf_counter() - start


def per_row(rows: int, seconds: Seconds) -> Sample:
    return Sample({"us/row": seconds() / rows * 1e6})


def beside_bare(rows: int, engine: Seconds, bare: Seconds) -> Sample:
    without, own = (seconds() / rows * 1e6 for seconds in (bare, engine))
    return Sample({"us/row": own, "us/row above bare": own - without})


P9 = Case(
    "P9",
    "the engine alone, a function that suspends once, a deadline for each row",
    systems,
    targets=tuple(Target("us/row above bare", f"{mode} on {name}", MOST) for name in LOOPS for mode in MODES),
    plots=("us/row",),
    loop="on the loop that a line names",
)
