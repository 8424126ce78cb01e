"""Warns when synchronous code blocks the event loop, from a thread beside it."""

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

from ..._errors.safe import presentable
from ..._errors.traces import OWN
from ..._observe.waits import SOON, Wait, Waiting
from .limited import result_of

INTERVAL = 0.25  # seconds between two checks
TURN_LIMIT = 1.0  # seconds that a turn of the loop may take
WAITS_AFTER = 0.005  # seconds; code that stays at one place for so long waits, and does not compute
STANDARD = os.path.dirname(os.__file__) + os.sep
LIBRARIES = ("numpy", "pandas", "pyarrow", "pyspark", "redis", "opentelemetry")  # asyncudf itself calls the last two
IMPORTS = "<frozen importlib"
Stack = Sequence[tuple[FrameType, int]]  # frames with their lines, from the outermost

logger = logging.getLogger("asyncudf")


class BlockedTime:
    """Adds up how long a loop was blocked, check by check; `total`: in all spells that were longer than the limit."""

    # Of the time before a late check only that counts in which the loop's thread has worked: it let no other thread
    # run. In a halt of the whole process it has not worked, and nothing can be said of the loop.

    def __init__(self, now: float, worked: float) -> None:
        self.total = 0.0
        # How long the loop has been blocked without a break; counted in total once it is over the limit.
        self._spell = 0.0
        self._last = now  # when the last check was
        self._worked = worked  # the seconds that the thread had worked by then

    def is_hogged(self, now: float, worked: float) -> bool:
        """Whether this check is late, and the loop's thread has worked meanwhile."""
        return now - self._last > 2 * INTERVAL and worked - self._worked > INTERVAL

    def check(self, now: float, worked: float, is_blocked: bool) -> bool:
        """Whether the loop has been blocked for longer than the limit.

        `is_blocked`: the user's code runs, and the loop has made no turn since the last check, or waits in that code.
        """
        passed = now - self._last
        if passed > 2 * INTERVAL:
            passed = min(passed, worked - self._worked)
        self._last, self._worked = now, worked
        if not is_blocked:
            self._spell = 0.0
            return False
        before, self._spell = self._spell, self._spell + passed
        if self._spell <= TURN_LIMIT:
            return False
        self.total += passed if before > TURN_LIMIT else self._spell
        return True


@contextlib.contextmanager
def watched(loop: asyncio.AbstractEventLoop, look: Callable[[], object] = lambda: None) -> Iterator[BlockedTime]:
    """A block that runs the loop in this thread: warns once if it is blocked, and logs the total in the end.

    If the loop makes no turn for `SOON` seconds, whatever runs there, the log has a line with the stack, and `look` is
    called, which the loop cannot call; and again after twice as long.
    """
    watch = _Watch(loop, threading.get_ident(), _clock_of_this_thread(), look)
    with contextlib.suppress(RuntimeError):  # no thread can be started: nobody watches
        watch.start()
    try:
        yield watch.blocked
    finally:
        watch.over.set()
        if watch.is_alive():
            watch.join(timeout=TURN_LIMIT)


class _Watch(threading.Thread):
    """Checks the loop's thread four times a second: where the user's code is, and whether the loop makes turns."""

    # Not asyncio's debug mode: it times each callback, which slows all of them down, and reports a call that blocks
    # only when that has ended. A thread beside it costs nothing per row, and sees where the call is while it blocks.
    #
    # Each check sends a callback to the loop, unless the last one has not been called yet.

    def __init__(
        self, loop: asyncio.AbstractEventLoop, watched: int, worked: Callable[[], float], look: Callable[[], object]
    ) -> None:
        super().__init__(name="asyncudf-watch", daemon=True)
        self._loop = loop
        self._watched = watched
        self._has_turned = True  # whether the callback sent last was called
        self._named: str | None = None  # whom the warning named; None before it
        self._worked = worked
        self._look = look
        # Seconds without a turn. A check counts few of them: before a late check the process was halted.
        self._stands = 0.0
        self._tell_at = SOON  # how long that may last before the next line
        self.blocked = BlockedTime(time.monotonic(), worked())
        self.over = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # the loop is closed, its thread has ended
            while not self.over.wait(INTERVAL):
                name, stack = _user_code(self._frame())
                is_hogged = self.blocked.is_hogged(time.monotonic(), self._worked())
                if stack and self._has_turned and not is_hogged and not self._stays():
                    stack = ()
                if self.blocked.check(time.monotonic(), self._worked(), bool(stack)) and self._named is None:
                    self._named = name
                    _warn(name, stack, is_hogged)
                self._stands = 0.0 if self._has_turned else self._stands + INTERVAL
                if self._stands >= self._tell_at:
                    self._tell_at *= 2
                    self._tell(name)
                del stack
                if self._has_turned:
                    self._has_turned = False
                    self._loop.call_soon_threadsafe(self._turn)
        if self._named is not None:
            logger.warning(
                "the event loop was blocked for %.1f s in all, by %s or the like; see the warning above",
                self.blocked.total,
                self._named,
            )

    def _tell(self, name: str) -> None:
        """The loop makes no turn: say where it is, and what waits."""
        # Also where a resource that opens blocks the loop, or a library: these are never taken for the user's calls.
        now = time.monotonic()
        stack = "".join(traceback.format_stack(self._frame()))
        wait = Wait(Waiting.EVENT_LOOP, name or "the task", now - self._stands)
        logger.warning("%s. It is at:\n%s", wait.text(now), presentable(stack))
        with contextlib.suppress(Exception):  # the loop goes on, and changes what is looked at
            self._look()

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._watched)

    def _stays(self) -> bool:
        """Whether the thread waits where it is: in one of many calls that block, each for a moment only."""
        frame = self._frame()
        place = None if frame is None else frame.f_lasti
        worked = self._worked()
        time.sleep(WAITS_AFTER)
        if self._worked() - worked > 10 * WAITS_AFTER:  # it let no other thread run
            return True
        return frame is not None and self._frame() is frame and frame.f_lasti == place

    def _turn(self) -> None:
        self._has_turned = True


def _clock_of_this_thread() -> Callable[[], float]:
    """A clock of the seconds that this thread has worked, for another thread; of the process where there is none."""
    if sys.platform == "linux":
        return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))
    return time.process_time


def _user_code(innermost: FrameType | None) -> tuple[str, Stack]:
    """The name of a call, and the frames of its own code with their lines, from the outermost.

    Without frames while the library works, imports, opens or closes.
    """
    # All at once, first of all: a frame that goes on is at another line, and one that has returned has no caller.
    stack = [] if innermost is None else [*traceback.walk_stack(innermost)][::-1]
    files = [frame.f_code.co_filename for frame, _ in stack]
    if any(outer.startswith(OWN) and inner.startswith(IMPORTS) for outer, inner in itertools.pairwise(files)):
        return "", ()  # redis imports dozens of modules, of other packages too, when the first task with limits begins
    started = False
    for number, file in enumerate(files):
        if file.startswith(OWN):
            started = True
            if stack[number][0].f_code is result_of.__code__:  # open and close may take their time
                break
        elif started and not _is_library(file) and not _is_generated(file, files[number - 1]):
            return _name(stack[: number + 1]), stack[number:]
    return "", ()


def _is_library(file: str) -> bool:
    """Whether it is code of Python's or of a data library's, which is never taken for the user's."""
    is_standard = file.startswith(STANDARD) and "-packages" not in file
    return is_standard or file.startswith(("<frozen", *_libraries()))


def _is_generated(file: str, caller: str) -> bool:
    """Whether it is code that a data library has made of a text, such as the `__init__` of a dataclass."""
    return file == "<string>" and caller.startswith(_libraries())


def _libraries() -> tuple[str, ...]:
    """The folders of the loaded libraries, as a folder of the user may have the name of a library."""
    return tuple(folder + os.sep for name in LIBRARIES for folder in getattr(sys.modules.get(name), "__path__", ()))


def _name(stack: Stack) -> str:
    """The name of the operator that called the function in the last frame; without one, of the function."""
    *callers, (function, _) = stack
    for frame, _ in reversed(callers):
        if not frame.f_code.co_filename.startswith(OWN):
            break
        name = getattr(frame.f_locals.get("self"), "name", None)
        if isinstance(name, str):
            return name
    return function.f_code.co_qualname


def _warn(name: str, stack: Stack, is_hogged: bool) -> None:
    logger.warning(
        "%s has blocked the event loop for more than %g s: meanwhile no other call goes on and no deadline is seen. "
        "Synchronous code such as time.sleep or requests.get must not be called in an async def: await an asynchronous "
        "client, or declare a plain def, which runs in a thread. %s:\n%s",
        name,
        TURN_LIMIT,
        "It let no other thread run meanwhile; when it had, it was at" if is_hogged else "It is at",
        presentable("".join(traceback.StackSummary.extract(stack).format())),
    )
