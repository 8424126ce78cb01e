"""Awaits the user's code in the task that runs it, with a limit that the code cannot ignore."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from . import _workers
from ._workers import forget, pauses

__all__ = ("within",)

Value = TypeVar("Value")


async def within(limit: float, step: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine that runs in the current task, as task groups and `asyncio.timeout` need it.

    When the limit is over the task is cancelled, again and again for the grace period; a coroutine that goes on all
    the same is left where it waits. So is one that does not heed that others have cancelled the task. (One that
    blocks the thread instead of waiting cannot be helped.)

    Raises:
        TimeoutError: the coroutine was not done in time.
        asyncio.CancelledError: others have cancelled the task, whatever the coroutine made of it; or it raised this.
    """
    reminder = _Reminder(limit)
    try:
        value = await _driven(step, reminder)
    except asyncio.CancelledError:
        if reminder.cancelled and not reminder.is_cancelled_by_others:
            raise reminder.overdue() from None
        raise
    else:
        if reminder.is_cancelled_by_others:
            raise asyncio.CancelledError
        return value
    finally:
        reminder.close()


class _Reminder:
    """Cancels the current task when its time is up, and takes all of it back in the end."""

    def __init__(self, limit: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limit
        self._timer = self._loop.call_at(self._deadline, self._remind)
        self._hurries = False
        self._pauses = iter(pauses())
        self._limit = limit
        self.cancelled = 0  # how often this has cancelled the task
        self.has_given_up = False

    @property
    def is_cancelled_by_others(self) -> bool:
        return self._task.cancelling() > self._before + self.cancelled

    def hurry(self) -> None:
        """Others may have cancelled the task: unless they take it back, only the grace period is left."""
        if self.is_cancelled_by_others and not self.cancelled and not self._hurries:
            self._hurries = True
            self._timer.cancel()
            self._timer = self._loop.call_later(_workers.GRACE / 2, self._remind)

    def _remind(self) -> None:
        if self._hurries and not self.cancelled and not self.is_cancelled_by_others:
            self._hurries = False
            self._timer = self._loop.call_at(self._deadline, self._remind)
            return
        pause = next(self._pauses, None)
        if pause is None:
            self.has_given_up = True
        else:
            self._timer = self._loop.call_later(pause, self._remind)
        self.cancelled += 1
        self._task.cancel()

    def overdue(self, besides: str = "") -> TimeoutError:
        """What is said of the coroutine."""
        return TimeoutError(f"not done within {self._limit:g} s{besides}")

    def close(self) -> None:
        self._timer.cancel()
        for _ in range(self.cancelled):
            self._task.uncancel()


@coroutine
def _driven(running: Coroutine[Any, Any, Value], reminder: _Reminder) -> Generator[Any, Any, Value]:
    """Run a coroutine as its task would, but drop it when the reminder gives up."""
    error: BaseException | None = None
    while True:
        try:
            future = running.send(None) if error is None else running.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        error = None
        is_waiting = True
        while is_waiting:
            is_waiting = False
            try:
                yield _gate(future)
            except asyncio.CancelledError as cancelled:
                if reminder.has_given_up:
                    forget(running)
                    raise reminder.overdue(", and not ended when it was cancelled") from None
                reminder.hurry()
                is_waiting = future is not None and future.cancel(*cancelled.args)
                error = None if is_waiting else cancelled
            except BaseException as thrown:
                error = thrown


def _gate(future: Any) -> Any:
    """A future of our own in place of one that a coroutine has yielded, which may not heed its cancellation."""
    if future is None:  # asyncio.sleep(0)
        return None
    gate: Any = future.get_loop().create_future()
    future._asyncio_future_blocking, gate._asyncio_future_blocking = False, True  # as from hand to hand to the task
    future.add_done_callback(lambda _: gate.done() or gate.set_result(None))
    return gate
