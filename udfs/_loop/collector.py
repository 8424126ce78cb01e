"""Looks for cyclic garbage by the clock: thousands of rows that wait are no garbage, though they are many objects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

__all__ = ("collecting_by_time",)


OFTEN = 0.02  # seconds between two looks at least
SHARE = 40  # times as long as a collection takes until the next one
MANY = 100_000  # new objects, after which Python itself collects: while code blocks the loop, nobody looks


@contextlib.contextmanager
def collecting_by_time(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A block in which the loop, once it runs, collects if there are as many new objects as Python's threshold says.

    Settings of the user's hold: what is disabled stays so, a threshold of 0 or of `MANY` too, and one that is set
    meanwhile. At the end the thresholds are as before.
    """
    # Python's own collector runs after 700 new objects, which are the rows of a few milliseconds, and finds them all in
    # use: up to a fifth of a worker's time. It cannot be told how many objects are no garbage. Here its time is
    # bounded instead, and so is the time for which garbage lives: the next look comes after 20 ms, or later by as much
    # as there are objects in use. Always all generations: calls that wait have outlived the young ones.
    before = few, *others = gc.get_threshold()
    own = (MANY, *others)
    if not 0 < few < MANY:  # also the second chain in a worker
        yield
        return

    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        start = loop.time()
        if gc.isenabled() and gc.get_threshold() == own and gc.get_count()[0] > few and gc.collect():
            start = loop.time()  # to free garbage is no lost time: what does a collection take that finds none?
            gc.collect()
        timer = loop.call_later(max(OFTEN, SHARE * (loop.time() - start)), look)

    gc.set_threshold(*own)
    timer = loop.call_later(OFTEN, look)
    try:
        yield
    finally:
        timer.cancel()
        if gc.get_threshold() == own:
            gc.set_threshold(*before)
