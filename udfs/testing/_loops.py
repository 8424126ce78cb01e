"""The event loops of the test kit, also where a loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any

from .._engine.loop import event_loops
from .._engine.loop.event_loops import run_to_end
from .._engine.loop.virtual_clock import VirtualClockLoop
from .._errors.exceptions import OptionError
from .._errors.safe import safe_repr

INTERRUPTIBLE = 0.5  # seconds after which KeyboardInterrupt is raised at the latest


def new_loop(clock: str) -> asyncio.AbstractEventLoop:
    if clock not in ("virtual", "real"):
        raise OptionError(f"clock must be 'virtual' or 'real', not {safe_repr(clock)}")
    return VirtualClockLoop() if clock == "virtual" else asyncio.new_event_loop()


def is_loop_running() -> bool:
    """Whether a loop runs in this thread, as in a coroutine or a cell of a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_apart(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], threads: int) -> None:
    """`run_to_end`; if a loop runs here already, in a thread of its own with the caller's context variables."""
    # A thread runs one loop at a time, and a notebook's is always running. Not nest_asyncio: it changes asyncio in the
    # whole process.
    if not is_loop_running():
        run_to_end(loop, main, threads)
        return
    ended: Future[None] = Future()

    def serve() -> None:
        try:
            run_to_end(loop, main, threads)
        except BaseException as error:  # raised in the caller's thread, of whatever class
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(serve,), name="asyncudf-kit", daemon=True)
    try:
        thread.start()
        while not ended.done():  # a signal just before a wait does not interrupt the wait
            wait([ended], timeout=INTERRUPTIBLE)
        ended.result()
    except BaseException:
        if not ended.done():  # KeyboardInterrupt in the caller's thread
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            if thread.is_alive():
                thread.join(timeout=event_loops.GRACE)
        raise
