"""Tells that synchronous code keeps the event loop from coming round, seen from a thread beside it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType

from .._text.safe import printable

__all__ = ("BlockedTime", "watched")


INTERVAL = 0.25  # seconds between two looks
LIMIT = 1.0  # seconds that a loop may take to come round
MOMENT = 0.005  # seconds at one place of the user's code that are no work of Python's
OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
STANDARD = os.path.dirname(os.__file__) + os.sep
LIBRARIES = ("numpy", "pandas", "pyarrow", "pyspark", "redis", "opentelemetry")  # asyncudf itself calls the last two
IMPORTS = "<frozen importlib"
LIFE_CYCLE = ("resources.py", "_called")  # under which open and close run, and they may take their time

logger = logging.getLogger("asyncudf")


class BlockedTime:
    """Makes of looks at a loop how long it was blocked.

    Attributes:
        total: seconds in which it was, as far as they were told.
    """

    # Of a look that comes late only the time counts in which the loop's thread has worked: it let no other thread run.
    # In a halt of the whole process it has not, and nothing can be said of the loop.
    #
    # total: all that was told; _spell: how long it has been blocked without a break, told once it is over the limit
    # _last, _worked: when the last look was, and what the thread had worked by then

    def __init__(self, now: float, worked: float) -> None:
        self.total = 0.0
        self._spell = 0.0
        self._last = now
        self._worked = worked

    def is_hogged(self, now: float, worked: float) -> bool:
        """Whether this look comes late, and the loop's thread has worked meanwhile."""
        return now - self._last > 2 * INTERVAL and worked - self._worked > INTERVAL

    def look(self, now: float, worked: float, is_blocked: bool) -> bool:
        """Whether it has been blocked for longer than the limit.

        Args:
            worked: how long the loop's thread has, in all.
            is_blocked: the user's code runs, and the loop has not come round since the last look, or is held up.
        """
        passed = now - self._last
        if passed > 2 * INTERVAL:
            passed = min(passed, worked - self._worked)
        self._last, self._worked = now, worked
        if not is_blocked:
            self._spell = 0.0
            return False
        before, self._spell = self._spell, self._spell + passed
        if self._spell <= LIMIT:
            return False
        self.total += passed if before > LIMIT else self._spell
        return True


@contextlib.contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[BlockedTime]:
    """Around what runs the loop in this thread: warns once, and tells the total in the end."""
    watch = _Watch(loop, threading.get_ident(), _clock_of_this_thread())
    with contextlib.suppress(RuntimeError):  # no thread can be started: nobody watches
        watch.start()
    try:
        yield watch.blocked
    finally:
        watch.over.set()
        if watch.is_alive():
            watch.join(timeout=LIMIT)


class _Watch(threading.Thread):
    """Looks at the loop's thread four times a second: where its user's code is, and whether the loop comes round."""

    # Not asyncio's debug mode: it times each callback, which slows all of them down, and tells of a call that blocks
    # only when that has ended. A thread beside it costs nothing per row, and can say where the call is while it blocks.
    #
    # Each look sends a callback to the loop, unless the last one has not been called yet.
    # _came_round: whether the callback sent last was called; _told: whom the warning named, None before it

    def __init__(self, loop: asyncio.AbstractEventLoop, watched: int, worked: Callable[[], float]) -> None:
        super().__init__(name="asyncudf-watch", daemon=True)
        self._loop = loop
        self._watched = watched
        self._came_round = True
        self._told: str | None = None
        self._worked = worked
        self.blocked = BlockedTime(time.monotonic(), worked())
        self.over = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the loop is closed, its thread has ended
            while not self.over.wait(INTERVAL):
                frames = _frames_of_user(self._frame())
                name = _name(frames[0]) if frames else ""  # at once: what has returned does not tell who has called it
                is_hogged = self.blocked.is_hogged(time.monotonic(), self._worked())
                if frames and self._came_round and not is_hogged and not self._stays():
                    frames = []
                if self.blocked.look(time.monotonic(), self._worked(), bool(frames)) and self._told is None:
                    self._told = name
                    _warn(name, frames, is_hogged)
                del frames
                if self._came_round:
                    self._came_round = False
                    self._loop.call_soon_threadsafe(self._come_round)
        if self._told is not None:
            told = "the event loop was blocked for %.1f s in all, by %s or the like; see the warning above"
            logger.warning(told, self.blocked.total, self._told)

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._watched)

    def _stays(self) -> bool:
        """Whether the thread is held up where it is: one of many calls that block, each for a moment only."""
        frame = self._frame()
        place = None if frame is None else frame.f_lasti
        worked = self._worked()
        time.sleep(MOMENT)
        if self._worked() - worked > 10 * MOMENT:  # it let no other thread run
            return True
        return frame is not None and self._frame() is frame and frame.f_lasti == place

    def _come_round(self) -> None:
        self._came_round = True


def _clock_of_this_thread() -> Callable[[], float]:
    """Seconds that this thread has worked, for another one to read; those of the process where that cannot be done."""
    if sys.platform == "linux":
        return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))
    return time.process_time


def _frames_of_user(innermost: FrameType | None) -> Sequence[FrameType]:
    """The frames of a call's own code, from the outermost; none while the library works, imports, opens or closes."""
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    files = [frame.f_code.co_filename for frame in frames]
    if any(inner.startswith(IMPORTS) and outer.startswith(OWN) for inner, outer in itertools.pairwise(files)):
        return ()  # redis imports dozens of modules, of other packages too, when the first task with limits begins
    started = False
    for number, frame in enumerate(reversed(frames)):
        code = frame.f_code
        if code.co_filename.startswith(OWN):
            started = True
            if (os.path.basename(code.co_filename), code.co_name) == LIFE_CYCLE:
                break
        elif started and not _is_library(code.co_filename):
            return frames[: len(frames) - number][::-1]
    return ()


def _is_library(file: str) -> bool:
    """Whether it is code of Python's or of a data library's, which is never taken for the user's."""
    is_standard = file.startswith(STANDARD) and "-packages" not in file
    return is_standard or file.startswith(("<frozen", *_libraries()))


def _libraries() -> tuple[str, ...]:
    """Where those that are loaded lie: a folder of the user's may be called like one of them."""
    return tuple(folder + os.sep for name in LIBRARIES for folder in getattr(sys.modules.get(name), "__path__", ()))


def _name(outermost: FrameType) -> str:
    """Of the operator that called it, else of the function itself."""
    frame = outermost.f_back
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        name = getattr(frame.f_locals.get("self"), "name", None)
        if isinstance(name, str):
            return name
        frame = frame.f_back
    return outermost.f_code.co_qualname


def _warn(name: str, frames: Sequence[FrameType], is_hogged: bool) -> None:
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    logger.warning(
        "%s has blocked the event loop for more than %g s: meanwhile no other call goes on and no deadline is seen. "
        "Synchronous code such as time.sleep or requests.get must not be called in an async def: await an asynchronous "
        "client, or declare a plain def, which runs in a thread. %s:\n%s",
        name,
        LIMIT,
        "It let no other thread run meanwhile; when it had, it was at" if is_hogged else "It is at",
        printable("".join(stack.format())),
    )
