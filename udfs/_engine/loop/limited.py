"""Awaits the user's code in the task that runs it, with a time limit that the code cannot ignore.

`asyncio.wait_for` and `asyncio.timeout` both wait for ever on a coroutine that swallows its cancellation. In a task of
its own the coroutine could be abandoned, but a task group or an `asyncio.timeout` that is opened in one task and closed
in another breaks. So the coroutine is driven step by step in its own task, and can be left at any `await`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from . import event_loops
from .event_loops import driving, forget, pauses

Value = TypeVar("Value")

# What runs in the task: timers and callbacks that it makes have a copy, so that a cancellation tells where it is from.
_STEP: contextvars.ContextVar[object] = contextvars.ContextVar("asyncudf_step", default=None)


async def result_of(step: Callable[[], Any]) -> Any:
    """What a step to open or close something returns, awaited if it is awaitable."""
    result = step()
    return await result if inspect.isawaitable(result) else result


async def within(
    limit: float, step: Coroutine[Any, Any, Value], *, to_its_end: bool = False, limited_by: str = ""
) -> Value:
    """The result of a coroutine that runs in the current task, as task groups and `asyncio.timeout` need it.

    At the limit the task is cancelled, again and again for the grace period. A coroutine that goes on all the same is
    left where it waits, as is one that ignores a cancellation of the task by others. (A coroutine that blocks the
    thread instead of waiting cannot be left.)

    Args:
        to_its_end: the coroutine does not see cancellations of the task by others. It still sees cancellations by what
            it has started itself, such as an `asyncio.timeout`.
        limited_by: the option that is the limit, for the message.

    Raises:
        TimeoutError: the coroutine was not done in time.
        asyncio.CancelledError: others have cancelled the task and have not taken it back, whatever the coroutine did
            with the cancellation; or the coroutine raised this.
    """
    reminder = _Reminder(limit, to_its_end, limited_by)
    try:
        value = await driving(_driven(step, reminder), step)
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
    """Cancels the current task when its time is up, and takes all its cancellations back in the end."""

    # Only the task's count of cancellations tells ours from those of others. It is `_before` when we begin, each of
    # ours is in `cancelled`, and the rest has come from others, who expect the task to end.

    def __init__(self, limit: float, to_its_end: bool, limited_by: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        _STEP.set(self)
        self._to_its_end = to_its_end
        self.task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limit
        # One at a time, for the limit, for the grace period after others have cancelled, or for the next reminder. None
        # where there is no limit: with a timer no deadlock of the virtual clock would be found.
        self._timer: asyncio.TimerHandle | None = None
        self._wait_until(self._deadline)
        self._hurries = 0  # the count for which the timer was brought forward; 0: it stands at the limit
        self._pauses = iter(pauses())
        self._limit, self._limited_by = limit, limited_by
        self.cancelled = 0  # how often this has cancelled the task
        self.has_given_up = False  # set with the last cancellation, at which the coroutine is left where it waits

    @property
    def is_cancelled_by_others(self) -> bool:
        return self.task.cancelling() > self._before + self.cancelled

    def hurry(self) -> None:
        """Others may have cancelled the task: unless they take it back, only the grace period is left."""
        count = self.task.cancelling()
        if self._to_its_end or self.cancelled or not self.is_cancelled_by_others or 0 < self._hurries < count:
            return
        self._hurries = count
        self._wait_until(min(self._deadline, self._loop.time() + event_loops.GRACE))

    def holds(self) -> bool:
        """Whether a cancellation that is just asked for is to wait for the coroutine's end."""
        return self._to_its_end and _STEP.get() is not self

    def _remind(self) -> None:
        """The time is up: cancel the task, and come again until the coroutine has ended or is given up."""
        if self._hurries and not self.cancelled and not self.is_cancelled_by_others:  # they have taken it back
            self._hurries = 0
            self._wait_until(self._deadline)
            return
        pause = next(self._pauses, None)
        if pause is None:
            self.has_given_up = True
        else:
            self._wait_until(self._loop.time() + pause)
        self.cancelled += 1
        self.task.cancel()

    def _wait_until(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._remind) if when < math.inf else None

    def overdue(self) -> TimeoutError:
        """The error of a coroutine that was not done in time."""
        if self._hurries:
            return TimeoutError(f"cancelled, and not ended within {event_loops.GRACE:g} s")
        besides = ", and not ended when it was cancelled" if self.has_given_up else ""
        option = f" ({self._limited_by})" if self._limited_by else ""
        return TimeoutError(f"not done within {self._limit:g} s{option}{besides}")

    def close(self) -> None:
        _STEP.set(None)
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(self.cancelled):
            self.task.uncancel()


@coroutine
def _driven(running: Coroutine[Any, Any, Value], reminder: _Reminder) -> Generator[Any, Any, Value]:
    """Run a coroutine as its task would, but drop it when the reminder gives up."""
    # The task waits for a gate in place of the coroutine's own future. So a cancellation comes here even where that
    # future would swallow it, and is passed on to it, as a task would do, or ends the wait.
    error: BaseException | None = None
    while True:
        try:
            future: Any = running.send(None) if error is None else running.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        error = None
        is_future = getattr(future, "_asyncio_future_blocking", False) and future is not reminder.task
        is_gated = future is None or is_future  # of all else asyncio says what is wrong with it
        is_waiting = True
        while is_waiting:
            is_waiting = False
            try:
                yield _Gate(reminder, future) if is_gated else future
            except asyncio.CancelledError as cancelled:
                if reminder.has_given_up:
                    forget(running)
                    raise reminder.overdue() from None
                reminder.hurry()
                is_waiting = future is not None and is_future and future.cancel(*cancelled.args)
                error = None if is_waiting else cancelled
            except BaseException as thrown:
                error = thrown


class _Gate(asyncio.Future[None]):
    """A future in place of the future that a coroutine has yielded, which may ignore its cancellation."""

    def __init__(self, reminder: _Reminder, future: Any) -> None:
        super().__init__(loop=reminder.task.get_loop() if future is None else future.get_loop())
        self._reminder = reminder
        self._asyncio_future_blocking = True  # as from hand to hand to the task
        if future is None:  # asyncio.sleep(0)
            self.get_loop().call_soon(self._open)
        else:
            future._asyncio_future_blocking = False
            future.add_done_callback(self._open)

    def _open(self, _: object = None) -> None:
        if not self.done():
            self.set_result(None)

    def cancel(self, msg: Any = None) -> bool:
        return self._reminder.holds() or super().cancel(msg)
