"""Runs the test kit's loop to its end, also where another loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any

from .._loop import shutdown
from .._loop.event_loops import run_to_end

__all__ = ("is_loop_running", "run_apart")

INTERRUPTIBLE = 0.5  # seconds after which KeyboardInterrupt is raised at the latest


def is_loop_running() -> bool:
    """Whether this is called from a coroutine, or from a cell of a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_apart(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], threads: int) -> None:
    """`run_to_end`; under a running loop in a thread of its own, with the caller's context variables."""
    # One thread runs one loop at a time, and a notebook's is always running. Not nest_asyncio: it changes asyncio for
    # everybody in the process.
    if not is_loop_running():
        run_to_end(loop, main, threads)
        return
    ended: Future[None] = Future()

    def serve() -> None:
        try:
            run_to_end(loop, main, threads)
        except BaseException as error:  # the caller's, whatever it is
            ended.set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(serve,), name="asyncudf-kit", daemon=True)
    try:
        thread.start()
        while not ended.done():  # a signal that comes just before a wait begins does not interrupt it
            wait([ended], timeout=INTERRUPTIBLE)
        ended.result()
    except BaseException:
        if not ended.done():  # KeyboardInterrupt in the caller's thread
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            if thread.is_alive():
                thread.join(timeout=shutdown.GRACE)
        raise
