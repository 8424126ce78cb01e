"""When Python's garbage collector runs in a task: by time, and not by the number of new objects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator

LOOK_GAP = 0.02  # seconds between two looks at least
WORK_TO_COLLECTION = 40  # times as long as a collection takes, which the thread has to work until the next one
NEW_OBJECTS = 100_000  # new objects, after which Python itself collects: while code blocks the loop, nobody looks


@contextlib.contextmanager
def collecting_by_time(
    loop: asyncio.AbstractEventLoop, worked: Callable[[], float] = time.thread_time
) -> Iterator[None]:
    """A block in which the loop, once it runs, collects if there are as many new objects as Python's threshold says.

    The user's settings hold: a disabled collector stays disabled, and a threshold stays that is 0, at least
    `NEW_OBJECTS`, or set during the block. At the end the thresholds are as before.
    """
    # Python's own collector runs after 700 new objects, which are the rows of a few milliseconds, and finds them all in
    # use: up to a fifth of a worker's time. Python cannot be told how many objects stay in use. Here the time of
    # collections is bounded instead, and so is the work until the next look: 20 ms, or more the more objects are in
    # use. Always all generations: calls that wait have outlived the young ones.
    before = few, *others = gc.get_threshold()
    own = (NEW_OBJECTS, *others)
    if not 0 < few < NEW_OBJECTS:  # also the second chain in a worker
        yield
        return

    timer: asyncio.TimerHandle
    due = 0.0  # how long the thread has worked when the next collection may begin

    def look() -> None:
        nonlocal timer, due
        start = worked()
        if start >= due and gc.isenabled() and gc.get_threshold() == own and gc.get_count()[0] > few:
            if gc.collect():
                start = worked()  # to free garbage is no lost time: what does a collection take that finds none?
                gc.collect()
            due = worked() + WORK_TO_COLLECTION * (worked() - start)
        timer = loop.call_later(max(LOOK_GAP, due - worked()), look)

    gc.set_threshold(*own)
    timer = loop.call_later(LOOK_GAP, look)
    try:
        yield
    finally:
        timer.cancel()
        if gc.get_threshold() == own:
            gc.set_threshold(*before)
