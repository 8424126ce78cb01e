"""Ends tasks in bounded time, whatever their code makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ("GRACE", "discard", "end_tasks", "forget", "pauses")


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
            or _driven(coroutine)
            or _stepped(coroutine)
        )


def _driven(coroutine: Any) -> Any:
    """What is driven by hand, under this name."""
    # A generator that drives another by `send` awaits nothing that Python could tell of: see the users of @coroutine.
    frame = getattr(coroutine, "gi_frame", None)
    return frame.f_locals.get("running") if frame is not None else None


def _stepped(step: Any) -> Any:
    """The async generator of one of its steps; only the collector can tell."""
    if not type(step).__name__.startswith("async_generator_"):
        return None
    return next(filter(inspect.isasyncgen, gc.get_referents(step)), None)


def _is_closed(coroutine: Any) -> bool:
    """Whether it has run to its end: only then its frame is gone."""
    return all(getattr(coroutine, name, None) is None for name in ("cr_frame", "gi_frame", "ag_frame"))
