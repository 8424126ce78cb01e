"""What the tasks of this process wait for, and the stacks of their coroutines and threads: printed at SIGUSR1."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from ..._errors.safe import presentable
from ..._errors.traces import OWN
from .event_loops import awaited, call_threads

SIGNAL = getattr(signal, "SIGUSR1", None)  # Windows has none
LEFT_OUT = (OWN, contextlib.__file__, threading.__file__)  # files whose frames are not shown
TRIES = 5  # to list the coroutines of a loop that goes on meanwhile


class Listener:
    """A task that the signal's report includes, from `open` to `close`.

    Args:
        waits: what the task waits for, in lines.
        loop: with the coroutines, and the thread in which it runs; None: there is no loop yet.
    """

    # Python lets the main thread alone set a handler, and runs it there. Spark's worker runs a task in its main thread;
    # where a task has another thread (Sail, the driver's own threads) it is in the report if a task of the main thread
    # has set the handler.
    #
    # While there is one in `_of_main` the handler is set.

    _open: dict[Listener, None] = {}  # those of this process
    _of_main: dict[Listener, None] = {}  # those that the main thread has opened
    _before: Any = None  # the handler before
    _action: int | None = None  # what the system calls then

    def __init__(
        self,
        waits: Callable[[], Sequence[str]],
        loop: asyncio.AbstractEventLoop | None = None,
        thread: threading.Thread | None = None,
    ) -> None:
        self._waits, self._loop, self._thread = waits, loop, thread

    def open(self) -> None:
        self._open[self] = None
        if SIGNAL is not None and threading.current_thread() is threading.main_thread():
            self._of_main[self] = None
            before = signal.getsignal(SIGNAL)
            is_of_c = before is None or (before is signal.SIG_DFL and _action() is not None)
            if before is not _print_all and not is_of_c:
                with contextlib.suppress(ValueError):  # another interpreter of the process
                    signal.signal(SIGNAL, _print_all)
                    Listener._before, Listener._action = before, _action()

    def close(self) -> None:
        """Set the handler back with the last of the main thread, unless it was changed since; may be called again."""
        self._open.pop(self, None)
        self._of_main.pop(self, None)
        is_main = threading.current_thread() is threading.main_thread()
        if SIGNAL is None or not is_main or self._of_main:
            return
        if signal.getsignal(SIGNAL) is _print_all and _action() == Listener._action:
            signal.signal(SIGNAL, Listener._before)
            Listener._before = None

    def report(self) -> str:
        lines = [f"  {line}" for line in self._waits()]
        if self._thread is not None and (frame := sys._current_frames().get(self._thread.ident or 0)) is not None:
            lines.append("The thread of the event loop is at:\n" + "".join(traceback.format_stack(frame)).rstrip())
        if self._loop is not None:
            lines += [coroutine_stacks(self._loop), thread_stacks(self._loop)]
        return "\n".join(filter(None, lines))


def _action() -> int | None:
    """The address of what the system calls at the signal; None: nothing.

    Of a handler that code in C has set, such as faulthandler, Python does not know, and it cannot call it.
    """
    action = (ctypes.c_void_p * 64)()  # more than any system's `struct sigaction`, of which the handler is the first
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such library
        ctypes.CDLL(None).sigaction(SIGNAL, None, action)
    return action[0] if action[0] != signal.SIG_IGN else None


def _print_all(number: int, frame: FrameType | None) -> None:
    """The handler of the signal; then the handler that was set before."""
    with contextlib.suppress(Exception):
        reports = [*filter(None, (listener.report() for listener in [*Listener._open]))]
        text = "\n".join([f"asyncudf, process {os.getpid()}: what its tasks wait for", *reports, ""])
        # Not through sys.stderr: the signal may have come in the middle of a write to it.
        os.write(2, presentable(text).encode("utf-8", "replace"))
    if callable(Listener._before):
        Listener._before(number, frame)


def coroutine_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all coroutines of a loop, from the outermost call; equal ones once, with their number."""
    stacks = [_stack_of(task) for task in _tasks(loop)]
    return "\n".join([f"Its coroutines: {len(stacks):,}", *_counted(stacks)])


def thread_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of the threads that run a plain `def`; "" if there are none."""
    frames = sys._current_frames()
    innermost = [frame for thread in call_threads(loop) if (frame := frames.get(thread.ident or 0)) is not None]
    stacks = [_shown([one for one, _ in traceback.walk_stack(frame)][::-1]) for frame in innermost]
    busy = [*filter(None, stacks)]  # a thread that is free is in this library alone
    return "\n".join([f"Its threads that run calls: {len(busy):,}", *_counted(busy)]) if busy else ""


def _counted(stacks: Iterable[str]) -> Sequence[str]:
    return [f"{number:,} x\n{stack}" for stack, number in Counter(stacks).most_common() if stack]


def _tasks(loop: asyncio.AbstractEventLoop) -> Sequence[asyncio.Task[Any]]:
    for _ in range(TRIES):
        with contextlib.suppress(RuntimeError):  # the set has changed while it was read
            return [*asyncio.all_tasks(loop)]
    return []


def _stack_of(task: asyncio.Task[Any]) -> str:
    """The frames of a task's coroutine and of those that it awaits."""
    # Not `Task.get_stack`: of a coroutine that waits it gives the outermost frame alone.
    return _shown(frame for one in awaited(task.get_coro()) if (frame := _frame_of(one)) is not None)


def _shown(frames: Iterable[FrameType]) -> str:
    """Frames from the outermost call, without this library's; "" if there are no others."""
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(LEFT_OUT)]
    return "".join(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in own).format()).rstrip()


def _frame_of(coroutine: Any) -> FrameType | None:
    names = ("cr_frame", "gi_frame", "ag_frame")
    return next((frame for name in names if (frame := getattr(coroutine, name, None)) is not None), None)
