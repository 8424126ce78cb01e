"""The event loop of a task: which kind it is, how it runs to its end, and how tasks end in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import inspect
import time
import weakref
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .._errors.exceptions import AsyncUDFError
from .._policies.options import EventLoop
from .threads import CallThreads

Driver = TypeVar("Driver", bound=Awaitable[Any])


GRACE = 5.0  # seconds that a cancelled coroutine has to clean up


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel tasks and wait for them, at most `GRACE` seconds; returned are those that were discarded in the end."""
    # More than once: a task may swallow a cancellation, or be in a `finally` that awaits. `asyncio.wait` and not
    # `gather`, which would cancel nothing more and wait without end.
    left = set(tasks)
    for pause in pauses():
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=pause)
    for task in left:
        discard(task)
    return left


def pauses() -> Sequence[float]:
    """Seconds after each cancellation of what shall end, `GRACE` in all.

    A long one first, so that a clean-up that waits is not disturbed; then more for a coroutine that swallows it.
    """
    return (GRACE / 2, *[GRACE / 20] * 10)


def discard(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task that nobody will wait for, and forget both."""
    # What asyncio.gather does for tasks that nobody will wait for: no warning when it is collected, and none for
    # the error of a coroutine that was closed behind its task's back.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    forget(task.get_coro())


def forget(coroutine: Any) -> None:
    """Close a coroutine that nobody will wait for, whatever it makes of it."""
    # close() alone raises GeneratorExit where the coroutine waits. One that catches it and awaits again is still alive,
    # and so are those around it that it was awaited in: each has to be looked at.
    chain = list(_awaited(coroutine))
    with contextlib.suppress(BaseException):  # "coroutine ignored GeneratorExit"
        chain[0].close()
    for left in chain:
        if not _is_closed(left):
            # It catches everything. The collector would ask it to end once more, outside any loop, where
            # `while True: try: await ... except BaseException: ...` never returns: it must never be collected.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def _awaited(coroutine: Any) -> Iterator[Any]:
    """A coroutine, and those that it waits in, from the outside in."""
    while coroutine is not None and (hasattr(coroutine, "close") or inspect.isasyncgen(coroutine)):
        yield coroutine
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
            or getattr(coroutine, "ag_await", None)
            or _driven_by(coroutine)
            or _stepped(coroutine)
        )


# The coroutine of each generator that drives one by `send`: Python does not show that the generator waits in it. Both
# sides are weak, as a coroutine leads back to its driver through its task.
_driven: weakref.WeakKeyDictionary[Any, weakref.ref[Coroutine[Any, Any, Any]]] = weakref.WeakKeyDictionary()


def driving(driver: Driver, coroutine: Coroutine[Any, Any, Any]) -> Driver:
    """Note that a generator drives a coroutine by `send`: `forget` of the one then also closes the other."""
    _driven[driver] = weakref.ref(coroutine)
    return driver


def _driven_by(coroutine: Any) -> Any:
    noted = _driven.get(coroutine) if inspect.isgenerator(coroutine) else None
    return None if noted is None else noted()


def _stepped(step: Any) -> Any:
    """The async generator of one of its steps; only the collector can tell."""
    if not type(step).__name__.startswith("async_generator_"):
        return None
    return next(filter(inspect.isasyncgen, gc.get_referents(step)), None)


def _is_closed(coroutine: Any) -> bool:
    """Whether it has run to its end: only then its frame is gone."""
    return all(getattr(coroutine, name, None) is None for name in ("cr_frame", "gi_frame", "ag_frame"))


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
            pool.join(GRACE)
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
        await asyncio.wait({closing}, timeout=GRACE)
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
