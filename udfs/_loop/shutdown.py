"""Ends tasks in bounded time, whatever their code makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import inspect
import weakref
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

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
