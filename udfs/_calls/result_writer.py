"""Writes results to a store, many at a time; their rows are done when they are there."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .stored_results import StoredResults

__all__ = ("ResultWriter",)


ROWS = 100  # results that are written together
LINGER = 0.05  # seconds that a result waits for company


class Waiting(NamedTuple):
    """A result that is to be written."""

    key: bytes
    value: bytes
    ttl: float | None
    then: Callable[[], None]


class ResultWriter:
    """Gathers results for a store.

    Args:
        is_urgent: whether there is nothing to wait for: no other call is in progress, or none can begin.
        is_over: whether nobody waits any more: the task has failed, or was cancelled.
        written: called when some are in the store, after the `then` of each.
        fail: told of the error that ends the task.
    """

    # One batch is under way at a time. What comes meanwhile is the next one, so that a store with a long way to it gets
    # large batches, and a quick one small ones.
    #
    # _task: writes; nobody else does before `close`; _timer: runs while results wait and there is no task

    def __init__(
        self,
        stored: StoredResults,
        loop: asyncio.AbstractEventLoop,
        is_urgent: Callable[[], bool],
        is_over: Callable[[], bool],
        written: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._stored = stored
        self._loop = loop
        self._is_urgent = is_urgent
        self._is_over = is_over
        self._written = written
        self._fail = fail
        self._waiting: list[Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._context = contextvars.copy_context()  # without any row's variables

    @property
    def is_writing(self) -> bool:
        """Whether something is not in the store yet."""
        return self._task is not None or bool(self._waiting)

    def put(self, key: bytes, value: bytes, ttl: float | None, then: Callable[[], None]) -> None:
        """Write a value, soon; `then` is called when it is there, or when the store does not take it."""
        self._waiting.append(Waiting(key, value, ttl, then))
        self._go_on()

    def _go_on(self) -> None:
        if self._task is not None or self._is_closing:
            return
        if len(self._waiting) >= ROWS or self._is_urgent():
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(LINGER, self._start, context=self._context)

    def _start(self) -> None:
        self._stop_timer()
        self._task = self._loop.create_task(self._write(), context=self._context)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write(self) -> None:
        try:
            batch, self._waiting = self._waiting[:ROWS], self._waiting[ROWS:]
            await self._keep(batch)
            if self._is_closing or self._is_over():
                return
            for one in batch:
                one.then()
            self._written()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
        finally:
            self._task = None
        if self._waiting:
            self._go_on()

    async def _keep(self, batch: Sequence[Waiting]) -> None:
        last = {one.key: one for one in batch}  # of an error and a result that came after it, the result
        for ttl in {one.ttl for one in last.values()}:
            await self._stored.keep({key: one.value for key, one in last.items() if one.ttl == ttl}, ttl)

    def end(self) -> None:
        """From now on nobody is told that something was written."""
        self._is_closing = True

    async def close(self) -> None:
        """Write what is left: it was paid for, though nobody waits for its rows any more."""
        self._is_closing = True
        self._stop_timer()
        if self._task is not None:
            await asyncio.wait({self._task})  # has an end: the store has its limit
        left, self._waiting = self._waiting, []
        if left:
            await self._keep(left)
