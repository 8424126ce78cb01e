"""The event loop of a task: which kind it is, and how it is run to its end."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import time
from collections.abc import Coroutine
from typing import Any

from .._errors.exceptions import AsyncUDFError
from .._policies.options import EventLoop
from . import shutdown
from .shutdown import discard, end_tasks
from .threads import CallThreads

ROUNDS = 3  # tasks that end may start new ones, or cancel the clean-up


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], threads: int) -> None:
    """Run a coroutine on a fresh loop, then leave nothing behind: no task, no generator, no thread, no loop.

    Raises:
        AsyncUDFError: the coroutine was cancelled, or the loop was stopped under it.
        BaseException: what has ended the coroutine or, if it was done, the clean-up after it.
    """
    # Not asyncio.run, nor a Runner: both wait without a limit for tasks and generators that do not end, and minutes for
    # threads, while Spark waits for the task.
    pool = CallThreads(threads)
    loop.set_default_executor(pool)
    asyncio.set_event_loop(loop)
    try:
        first = _error_of(loop, main)
        for _ in range(ROUNDS):
            if (error := _error_of(loop, _clean_up(loop))) is None:
                break
            first = first or error
        # Callbacks of the last tasks may have made new ones. Those that have begun need a running loop.
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                discard(task)
    finally:
        try:
            asyncio.set_event_loop(None)
            pool.shutdown(cancel_futures=True)
            pool.join(shutdown.GRACE)
        finally:
            loop.close()
    if first is not None:
        raise first


def _error_of(loop: asyncio.AbstractEventLoop, running: Coroutine[Any, Any, None]) -> BaseException | None:
    """What has ended a coroutine; None if it was done."""
    reason = (
        "code that runs in the task has cancelled it: something that was opened, or a background task of its own, "
        "called cancel() on the task in which open and close run"
    )
    task = loop.create_task(running)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if another error comes first
    for _ in range(ROUNDS):
        try:
            loop.run_until_complete(task)
        except BaseException as error:
            if task.done():
                return AsyncUDFError(reason) if task.cancelled() else task.exception() or error
            if type(error) is not RuntimeError:
                return error
        else:
            return None
        reason = "code that runs in the task has stopped its event loop: it must not call loop.stop()"
        task.cancel()
    return AsyncUDFError(reason)


async def _clean_up(loop: asyncio.AbstractEventLoop) -> None:
    """End all tasks and generators of the loop, each in bounded time; those that do not end are discarded."""
    left = {asyncio.current_task()}
    for _ in range(ROUNDS):  # generators that do not end, and tasks that others have started late
        left |= await end_tasks(asyncio.all_tasks() - left)
        closing = asyncio.ensure_future(loop.shutdown_asyncgens())
        await asyncio.wait({closing}, timeout=shutdown.GRACE)
    while tasks := asyncio.all_tasks() - left:  # those that end only to start another
        for task in tasks:
            discard(task)
        left |= tasks
    await asyncio.sleep(0)


def new_event_loop(wanted: EventLoop) -> asyncio.AbstractEventLoop:
    """A loop of the kind that the option `loop` asks for.

    Raises:
        AsyncUDFError: uvloop is asked for and not installed here.
    """
    if wanted is not EventLoop.ASYNCIO:
        if importlib.util.find_spec("uvloop") is not None:
            # uvloop's own time stands still between two turns: a call that blocks the loop would take no time.
            uvloop = importlib.import_module("uvloop")
            loop: asyncio.AbstractEventLoop = type("Loop", (uvloop.Loop,), {"time": staticmethod(time.monotonic)})()
            return loop
        if wanted is EventLoop.UVLOOP:
            raise AsyncUDFError(
                "loop='uvloop' needs uvloop on every executor: pip install 'asyncudf[fast]' (there is none for Windows)"
            )
    return asyncio.new_event_loop()
