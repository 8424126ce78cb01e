"""The call slots: coroutines that take rows and run their calls, one call at a time each, for an operator.

Pull, not push: a slot whose call is over takes the next row itself, so in a steady flow no task, future or callback
is made per row.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Protocol, TypeVar

from ..._errors.exceptions import FatalError
from ..._functions.async_function import CURRENT_CALL, AttemptState
from ..._observe.counters import TaskCounters
from ..._observe.time_account import State
from ..loop import event_loops
from ..loop.event_loops import MOST_HUNG, driving, end_tasks
from .attempt import Attempt

Ended = TypeVar("Ended")


def notify_on_suspend(
    running: Coroutine[Any, Any, Ended], slot: Slot, suspended: Callable[[Slot], None]
) -> Awaitable[Ended]:
    """Run a loop of calls; `suspended` is called with the slot when a call suspends for the first time."""
    return driving(_notify_on_suspend(running, slot, suspended), running)


@coroutine
def _notify_on_suspend(
    running: Coroutine[Any, Any, Ended], slot: Slot, suspended: Callable[[Slot], None]
) -> Generator[Any, Any, Ended]:
    # Only from outside can be seen whether an `await` suspends. So the loop of calls is driven here, between itself
    # and its task: a call that returns at once costs no future, no callback and no turn of the event loop.
    send = running.send
    go_on: Callable[[Any], Any] = send
    given: Any = None  # what the last yield gave: it belongs to the call that waits
    waiting_for: Any = None
    try:
        while True:
            try:
                waiting_for = go_on(given)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            if not slot.is_suspended:
                slot.is_suspended = True
                suspended(slot)
            go_on, given = send, None  # the last error must not live on while this waits
            try:
                yield waiting_for
            except BaseException as thrown:
                go_on, given = running.throw, thrown
    finally:
        # Nor after the end: its traceback has this frame, and both have an error, whose client's sockets stayed open.
        given = waiting_for = None


class Slot:
    """One coroutine that runs calls. It takes no other call once a call has left traces in it."""

    # A call has no task and no context of its own: that would cost more than many a call. So the next call of the slot
    # would find what a call leaves behind: a context variable, or a cancellation that it has swallowed. `clean` is the
    # context that each call has to find; a slot whose context differs ends, and a new slot takes its turn. The check
    # is cheap: a copy shares its variables with the original until one of the two is changed.

    __slots__ = ("attempt", "clean", "context", "has_retired", "is_cancelled", "is_suspended", "own", "task")

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context  # in which its calls run
        self.attempt: Attempt | None = None  # the attempt that runs here and is not decided
        # The attempt of each row that is called as soon as it has its place, used again and again: to make one for each
        # row would cost more than many a call.
        self.own = Attempt([None])  # type: ignore[list-item]
        self.own.slot = self
        self.is_suspended = False  # whether the coroutine of the attempt has suspended
        self.is_cancelled = False  # whether the task was cancelled, which may have been taken back
        self.has_retired = False  # another slot has its turn; its results no longer count
        self.task: asyncio.Task[None]
        self.clean: contextvars.Context  # the context that each call has to find

    def capture_baseline(self) -> None:
        """Remember the context that each call has to find; to be called in the slot's own task."""
        decimal.getcontext()  # sets a variable when first used, which is no trace of a call
        self.clean = self.context.copy()

    def begin_attempt(self, element: Any, attempt: int = 1) -> AttemptState:
        """Begin an attempt of a function that can ask for its row; to be called in the slot's own task."""
        # A new state each time: tasks that the last attempt has left behind still ask for their own.
        state = AttemptState(element, attempt)
        CURRENT_CALL.set(state)
        self.clean = self.context.copy()
        return state

    def is_dirty(self) -> bool:
        """Whether it must take no other call: the last call left a context variable or an unheeded cancellation."""
        if self.is_cancelled:  # a CancelledError may still be pending, also after `uncancel`
            self.is_cancelled = self.task.cancelling() > 0 or self.task._must_cancel  # type: ignore[attr-defined]
        try:
            return self.is_cancelled or self.has_retired or self.context != self.clean
        except BaseException:  # a variable was set to a value that cannot be compared, such as an array
            return True


class _SlotTask(asyncio.Task[None]):
    """A task that notes in its slot that it was cancelled, so that the slot need not ask after each call."""

    def __init__(self, slot: Slot, life: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._slot = slot
        super().__init__(life, loop=loop, context=slot.context)

    def cancel(self, msg: Any | None = None) -> bool:
        self._slot.is_cancelled = True
        return super().cancel(msg)


class HostOperator(Protocol):
    """The operator whose rows are called."""

    name: str  # of its function
    loop: asyncio.AbstractEventLoop
    counters: TaskCounters  # their clock is the operator's

    @property
    def has_finished(self) -> bool:  # whether it has ended, so that results are for no row any more
        ...

    async def work(self, slot: Slot, /) -> None:
        """The life of a slot; it calls `SlotPool.release` before it waits for a call."""

    def pump(self) -> None:
        """Something has changed: emit what may leave, take in what needs no call, start a slot if there is work."""

    def pump_soon(self) -> None:
        """The same in the next turn of the event loop."""

    def fail(self, error: BaseException) -> None:
        """The task must end with this error."""

    def has_work(self) -> bool:  # whether a slot would find something to do
        ...

    def rows_under_way(self) -> list[Any]:  # those that have their places and are not done
        ...

    def has_rows(self) -> bool:  # whether a free slot would find a row that was never called, now or after a lookup
        ...

    def why_idle(self) -> State:  # what free slots wait for, where there is nothing to do
        ...

    def wanted_calls(self) -> int:  # how many calls would be in flight if limits allowed them
        ...

    def calls_wait(self) -> None:
        """A limit holds all calls back."""

    def waiting_has_changed(self) -> None:
        """More or fewer calls are in back-off, or follow the call of an equal row."""

    def health_changed(self) -> None:
        """More is known of the service, or of the calls that are to come."""


class SlotPool:
    """At most `capacity` slots that count; abandoned slots live on beside them until they end.

    When they are ten times as many, the task fails.

    Args:
        has_uncalled: whether the operator has rows that need no slot: then the pool reports when all slots are taken.
    """

    # One slot takes rows at a time, so rows enter the queue in their order. It lets the next one take rows just before
    # its own call waits, so there are as many slots as calls that wait, and one is enough for a function that never
    # does. Not `capacity` slots from the start: each slot without a row would need a future that wakes it.
    #
    # _active <= capacity, unless capacity has shrunk
    # After each wake() there is a leader if has_work() and _active < capacity.

    def __init__(self, operator: HostOperator, capacity: int, *, has_uncalled: bool) -> None:
        self._operator = operator
        self._has_work = operator.has_work
        self._account = operator.counters.account
        self._has_uncalled = has_uncalled
        self.capacity = capacity
        self._most_abandoned = MOST_HUNG * capacity
        self.most = 0  # calls that were in flight together
        # All that have not ended, also abandoned ones: close() ends them. In order: late ones end in it.
        self._slots: dict[Slot, None] = {}
        self._active = 0  # how many of these are not abandoned
        self._leader: Slot | None = None  # the slot that takes rows, or is about to
        self._context: contextvars.Context | None = None  # None before open() and after close(), when no slot may start

    def open(self) -> None:
        """Let `wake` start slots; they find the context variables of the caller."""
        self._context = contextvars.copy_context()

    @property
    def is_full(self) -> bool:
        return self._active >= self.capacity

    @property
    def is_idle(self) -> bool:
        """Whether no slot works or is about to."""
        return not self._active

    @property
    def in_flight(self) -> int:
        """How many calls the slots wait for."""
        leader = self._leader  # it has no call; once it has retired it is not active either
        return self._active - (leader is not None and not leader.has_retired)

    @property
    def oldest(self) -> float:
        """When the oldest undecided attempt began; inf without any."""
        return min((slot.attempt.began for slot in self.at_work if slot.attempt is not None), default=math.inf)

    @property
    def at_work(self) -> list[Slot]:
        """The slots that may have an undecided attempt."""
        return [slot for slot in self._slots if not slot.has_retired]

    def wake(self) -> None:
        """Start a slot if there is work and capacity for it, and no other slot takes rows."""
        # Called after each row: the check that costs most comes last.
        if self._leader is not None or self._active >= self.capacity or self._context is None:
            return
        if not self._has_work():
            self._account.enter(self._operator.why_idle())
            return
        if len(self._slots) - self._active >= self._most_abandoned:
            self._operator.fail(self._too_many_abandoned())
            return
        self._account.enter(State.CALLS_BUSY)  # until it turns out that slots are left
        slot = self._leader = Slot(self._context.copy())
        self._active += 1
        self._slots[slot] = None
        slot.task = _SlotTask(slot, self._operator.work(slot), self._operator.loop)
        slot.task.add_done_callback(lambda _: self._leave(slot))  # also if it was cancelled before it began

    def _too_many_abandoned(self) -> FatalError:
        return FatalError(
            f"{len(self._slots) - self._active:,} coroutines of {self._operator.name}, {MOST_HUNG} for each call at a "
            "time, still run though their calls are over: they have caught the CancelledError and gone on, or take "
            "long to clean up. Write `except Exception:`, which does not catch a cancellation, instead of a bare "
            "`except:`, or raise it again"
        )

    def resize(self, capacity: int) -> None:
        """Have this many slots from now on; slots beyond that do not end, they wait where they ask for a call."""
        if capacity != self.capacity:
            self.capacity = capacity
            self.wake()

    def lead(self, slot: Slot) -> None:
        """The slot asks whether a call may begin: it takes rows, and no other slot starts for that."""
        self._leader = slot

    def is_led_by_another(self, slot: Slot) -> bool:
        return self._leader is not None and self._leader is not slot

    def release(self, slot: Slot) -> None:
        """The slot is going to wait for its call: another slot may take rows."""
        if self._leader is slot:
            self._leader = None
            if self._active > self.most:
                self.most = self._active
        elif self._leader is not None:
            return
        if self._active < self.capacity:
            self.wake()
        elif self._has_uncalled:
            self._operator.pump_soon()

    def _leave(self, slot: Slot) -> None:
        del slot.task  # which has the slot, as its own attempt has: or these would be garbage in a cycle
        slot.own.slot = None
        self._slots.pop(slot, None)
        if not slot.has_retired:
            self._active -= 1
        self.release(slot)

    def retire(self, slot: Slot) -> None:
        """The slot ends: from now on another may take its place."""
        if not slot.has_retired:
            slot.has_retired = True
            self._active -= 1

    def abandon(self, slot: Slot) -> None:
        """Cancel the slot's call and let another slot start at once, whether or not the call obeys."""
        # The call may clean up for long, or catch the cancellation and go on.
        if not slot.has_retired:
            self.retire(slot)
            slot.task.cancel()

    async def close(self, *, patient: bool) -> None:
        """End all slots; if `patient`, coroutines whose rows are done may first finish."""
        self._context = None
        self._account.enter(State.START_AND_END)
        running = {slot.task for slot in self._slots if not slot.has_retired}
        if patient and running:
            await asyncio.wait(running, timeout=event_loops.GRACE)
        for slot in self._slots:
            slot.has_retired = True
        await end_tasks(slot.task for slot in list(self._slots))
