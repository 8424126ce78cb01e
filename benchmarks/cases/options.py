"""What an option adds to a call that gives way to the event loop once: the engine alone on uvloop.

`plain` has a deadline for each row, as the others have, and no other option. What is told is above a bare program that
was measured right before, as in P9. The limits let every call in; the store is a dict in memory, so that its own work
is not counted: `missed` keeps a result for each row, `found` has one for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvloop

from asyncudf import CircuitBreaker, Hedge, RateLimit
from asyncudf.testing import MemoryStore

from .._engine import engine_seconds
from .._harness import Case, Sample, Settings, System
from .._work import suspends_once
from .p9_suspended import bare_seconds, beside_bare

__all__ = ("OPTIONS",)

ROWS = 50_000
MODE = "ordered"
CHOSEN: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "attempt_timeout": lambda: {"attempt_timeout": 1.0},
    "rate_limit": lambda: {"rate_limit": RateLimit(1e9)},
    "breaker": lambda: {"breaker": CircuitBreaker()},
    "job_capacity": lambda: {"job_capacity": 1_000},
    "hedge": lambda: {"hedge": Hedge(after=1.0)},
    'capacity="auto"': lambda: {"capacity": "auto"},
}


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    yield [
        *(System(name, partial(above_bare, rows, options)) for name, options in CHOSEN.items()),
        System("store, missed", partial(above_bare, rows, lambda: {"store": MemoryStore(), "version": "1"})),
        System("store, found", partial(of_filled_store, rows)),
    ]


def above_bare(rows: int, options: Callable[[], dict[str, Any]]) -> Sample:
    loop = uvloop.new_event_loop
    own = partial(engine_seconds, suspends_once, rows, MODE, loop, **options())
    return beside_bare(rows, own, partial(bare_seconds, rows, loop))


def of_filled_store(rows: int) -> Sample:
    options = {"store": MemoryStore(), "version": "1"}
    engine_seconds(suspends_once, rows, MODE, uvloop.new_event_loop, **options)
    return above_bare(rows, lambda: options)


OPTIONS = Case(
    "OPTIONS",
    "a function that suspends once, with one option more",
    systems,
    loop="on uvloop",
)
