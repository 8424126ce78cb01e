"""The call slots: coroutines that pull rows and run their calls, one call each at a time.

Pull, not push: a worker that has finished a call takes the next row itself, so in a steady flow no task, future
or callback is made per row.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import decimal
import gc
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from ._function import CURRENT_SLOT, CallSlot

__all__ = ("GRACE", "Worker", "WorkerPool", "discard", "end_tasks", "forget", "pauses")

GRACE = 5.0  # seconds that a cancelled coroutine has to clean up


class Worker:
    """One coroutine that runs calls. Never used again once a call has left traces in it."""

    __slots__ = ("abandoned", "call", "clean", "context", "is_cancelled", "is_suspended", "slot", "task")

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context  # in which its calls run
        self.slot = CallSlot()
        self.call: Any = None  # the call whose attempt is undecided here
        self.is_suspended = False  # whether a call that began as one of many is now waited for
        self.is_cancelled = False  # whether somebody has cancelled its task, who may have taken it back
        self.abandoned = False  # its slot was given to another; what it still does no longer counts
        self.task: asyncio.Task[None]
        self.clean: contextvars.Context  # what each call shall find

    def settle_in(self) -> None:
        """Remember the context that each call shall find; runs inside the worker's own task."""
        decimal.getcontext()  # sets a variable when first used, which is no trace of a call
        self.clean = self.context.copy()

    def meet(self, element: Any, attempt: int = 1) -> CallSlot:
        """Begin an attempt whose function may ask about its row; runs inside the worker's own task."""
        slot = self.slot = CallSlot(element, attempt)
        CURRENT_SLOT.set(slot)
        self.clean = self.context.copy()
        return slot

    def is_spoiled(self) -> bool:
        """Whether it must take no other call: the last one left a context variable or an unheeded cancellation."""
        self.is_cancelled = False
        try:
            return self.abandoned or self.context != self.clean or self.task.cancelling() > 0
        except BaseException:  # variables that cannot be compared, such as arrays: one of them was set
            return True


class _WorkerTask(asyncio.Task[None]):
    """Notes that it was cancelled, so that nobody has to ask after each call."""

    def __init__(self, worker: Worker, life: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        super().__init__(life, loop=loop, context=worker.context)

    def cancel(self, msg: Any | None = None) -> bool:
        self._worker.is_cancelled = True
        return super().cancel(msg)


class WorkerPool:
    """At most `capacity` workers that count; abandoned ones live on beside them until they end.

    Args:
        work: the life of a worker; it calls `done_pulling` before it waits for a call.
        has_work: whether a worker would find something to do.
    """

    # active = workers neither ended nor abandoned <= capacity
    # has_work() and active < capacity  =>  some worker is about to pull (puller is not None), after each wake()

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        capacity: int,
        work: Callable[[Worker], Coroutine[Any, Any, None]],
        has_work: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._capacity = capacity
        self._work = work
        self._has_work = has_work
        self._workers: set[Worker] = set()
        self._active = 0
        self._puller: Worker | None = None
        self._context: contextvars.Context | None = None

    def open(self) -> None:
        """From now on `wake` starts workers; they find the context variables of the caller."""
        self._context = contextvars.copy_context()

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self._active >= self._capacity

    def wake(self) -> None:
        """Start a worker if there is work, a free slot and nobody on the way."""
        if self._puller is None and self._active < self._capacity and self._context is not None and self._has_work():
            worker = self._puller = Worker(self._context.copy())
            self._active += 1
            self._workers.add(worker)
            worker.task = _WorkerTask(worker, self._work(worker), self._loop)
            worker.task.add_done_callback(lambda _: self._leave(worker))  # also if it was cancelled before it began

    def done_pulling(self, worker: Worker) -> None:
        """The worker is going to wait for its call: let another one pull."""
        if self._puller is worker:
            self._puller = None
        self.wake()

    def _leave(self, worker: Worker) -> None:
        """The worker has ended and gives its slot back."""
        self._workers.discard(worker)
        if not worker.abandoned:
            self._active -= 1
        self.done_pulling(worker)

    def abandon(self, worker: Worker) -> None:
        """Cancel the worker's call and give its slot to another, whether or not the call obeys."""
        if not worker.abandoned:
            worker.abandoned = True
            self._active -= 1
            worker.task.cancel()

    async def close(self, *, patient: bool) -> None:
        """End all workers; with `patient`, calls whose rows are done may first finish what they do after it."""
        self._context = None
        running = {worker.task for worker in self._workers if not worker.abandoned}
        if patient and running:
            await asyncio.wait(running, timeout=GRACE)
        for worker in self._workers:
            worker.abandoned = True
        await end_tasks(worker.task for worker in list(self._workers))


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel tasks and wait for them, at most `GRACE` seconds; returned are those that were discarded in the end."""
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
    frame = getattr(coroutine, "gi_frame", None)
    return frame.f_locals.get("running") if frame is not None else None


def _stepped(step: Any) -> Any:
    """The async generator of one of its steps; only the collector can tell."""
    if not type(step).__name__.startswith("async_generator_"):
        return None
    return next(filter(inspect.isasyncgen, gc.get_referents(step)), None)


def _is_closed(coroutine: Any) -> bool:
    return all(getattr(coroutine, name, None) is None for name in ("cr_frame", "gi_frame", "ag_frame"))
