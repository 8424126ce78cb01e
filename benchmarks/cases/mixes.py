"""P3b and P3c: calls of which a few are very slow; no target is set for them.

`gather` waits for the slowest call of each Arrow batch of 10,000 rows. In P3c a slow call takes as long as 250 usual
ones: peers at their best have room for twice as many rows for each call in flight, as somebody would give them who
knows that. Ours is as installed, with room for 100; another line has what that somebody would give it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from asyncudf import ordered_wait, unordered_wait

from .._calls import Calls
from .._harness import BEST_PEER, Case, Settings, System, Target
from .._peers import ROOM, peer_systems
from .._spark import local_spark
from .._work import BARE, CAPACITY, LOOPS, SAME_LOOP, mix, rates

__all__ = ("P3B", "P3C")

CALLS = 30_000
USUAL = 0.02  # seconds
TARGETS = (
    Target("calls/s", "ordered_wait", against=SAME_LOOP),
    Target("calls/s", "ordered_wait", against="gather"),
    Target("calls/s", "ordered_wait", against=BEST_PEER),
    Target("calls/s", "unordered_wait", against=SAME_LOOP),
)


@contextlib.contextmanager
def systems(share: float, slow: float, room: int, settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        calls = Calls(session, mix(settings.rows(CALLS), USUAL, share, slow))
        yield [
            *(System(name, partial(calls.bare, loop), "reference") for name, loop in BARE.items()),
            System("ordered_wait", partial(calls.operator, ordered_wait)),
            *with_room(calls, room),
            System("unordered_wait", partial(calls.operator, unordered_wait)),
            System("gather", calls.gather, "reference"),
            *peer_systems(settings, calls.latencies, "ordered", rates, room=room),
        ]


def with_room(calls: Calls, room: int) -> list[System]:
    """Ours with the room that the peers at their best have, where that is not the default."""
    size = room * CAPACITY
    wait = partial(calls.operator, ordered_wait, queue_size=size)
    return [] if room == ROOM else [System(f"ordered_wait, queue_size={size:,}", wait, "reference")]


def case(case_id: str, percent: float, slow: float, room: int) -> Case:
    title = f"calls of 20 ms of which {percent:g}% take {slow:g} s, 100 in flight"
    run = partial(systems, percent / 100, slow, room)
    return Case(case_id, title, run, TARGETS, repetitions=3, plots=("% of the ideal",), loop=LOOPS)


P3B = case("P3b", 1, 1.0, ROOM)
P3C = case("P3c", 0.1, 5.0, 5 * ROOM)
