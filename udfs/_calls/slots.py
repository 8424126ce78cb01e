"""The call slots: coroutines that pull rows and run their calls, one call each at a time.

Pull, not push: a slot whose call is over takes the next row itself, so in a steady flow no task, future or callback
is made per row.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Protocol

from asyncudf.queues import Entry

from .._functions.context import CURRENT_CALL, CallState
from .._loop import shutdown
from .._loop.shutdown import driving, end_tasks
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State

__all__ = ("CallSlot", "SlotPool", "notify_on_suspend")


def notify_on_suspend(
    running: Coroutine[Any, Any, bool], slot: CallSlot, suspended: Callable[[CallSlot], None]
) -> Awaitable[bool]:
    """Run a loop of calls; `suspended` is called with the slot when a call suspends for the first time."""
    return driving(_notify_on_suspend(running, slot, suspended), running)


@coroutine
def _notify_on_suspend(
    running: Coroutine[Any, Any, bool], slot: CallSlot, suspended: Callable[[CallSlot], None]
) -> Generator[Any, Any, bool]:
    # Only from outside can be seen whether an `await` suspends. So the loop of calls is driven here, between itself
    # and its task: a call that returns at once costs no future, no callback and no turn of the event loop.
    send = running.send
    go_on: Callable[[Any], Any] = send
    given: Any = None  # what came in at the last yield: it belongs to the call that waits
    while True:
        try:
            waiting_for = go_on(given)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if not slot.is_suspended:
            slot.is_suspended = True
            suspended(slot)
        go_on, given = send, None  # it lets go of the last error before it waits again
        try:
            yield waiting_for
        except BaseException as thrown:
            go_on, given = running.throw, thrown


class CallSlot:
    """One coroutine that runs calls. Never used again once a call has left traces in it."""

    # A call has no task and no context of its own: that would cost more than many a call. So what it leaves behind, a
    # context variable or a cancellation that it has swallowed, would be met by the next call of the slot. `clean` is
    # the context as each call shall find it; a slot where it differs ends, and a new one takes its turn. The check is
    # cheap: a copy shares its variables with the original until one of the two is changed.

    __slots__ = (
        "abandoned", "admitted", "attempt", "call", "clean", "context", "counts_for_breaker", "entry", "is_cancelled",
        "is_suspended", "state", "task", "ticket",
    )  # fmt: skip

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context  # in which its calls run
        self.state = CallState()
        self.call: Any = None  # the call whose attempt is undecided here
        self.entry: Entry | None = None  # of a row that is called here for the first time, whose Call nobody needed yet
        self.attempt = 0  # its number
        self.admitted: float | None = None  # when it was let in, until the gates are told that it is over
        self.ticket = 0  # under which the circuit breaker has let it in
        self.counts_for_breaker = True  # whether a failure tells of the service, and not of its row
        self.is_suspended = False  # whether a call that began as one of many is now waited for
        self.is_cancelled = False  # whether somebody has cancelled its task, who may have taken it back
        self.abandoned = False  # another has taken its turn; what it still does no longer counts
        self.task: asyncio.Task[None]
        self.clean: contextvars.Context  # what each call shall find

    def capture_baseline(self) -> None:
        """Remember the context that each call shall find; runs inside the slot's own task."""
        decimal.getcontext()  # sets a variable when first used, which is no trace of a call
        self.clean = self.context.copy()

    def begin_attempt(self, element: Any, attempt: int = 1) -> CallState:
        """Begin an attempt whose function may ask about its row; runs inside the slot's own task."""
        # A new one each time: tasks that the last attempt has left behind still ask theirs.
        state = self.state = CallState(element, attempt)
        CURRENT_CALL.set(state)
        self.clean = self.context.copy()
        return state

    def is_dirty(self) -> bool:
        """Whether it must take no other call: the last one left a context variable or an unheeded cancellation."""
        if self.is_cancelled:  # taken back or not, it may be still to come: for whoever waits next
            self.is_cancelled = self.task.cancelling() > 0 or self.task._must_cancel  # type: ignore[attr-defined]
        try:
            return self.is_cancelled or self.abandoned or self.context != self.clean
        except BaseException:  # variables that cannot be compared, such as arrays: one of them was set
            return True


class _SlotTask(asyncio.Task[None]):
    """Notes that it was cancelled, so that nobody has to ask after each call."""

    def __init__(self, slot: CallSlot, life: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._slot = slot
        super().__init__(life, loop=loop, context=slot.context)

    def cancel(self, msg: Any | None = None) -> bool:
        self._slot.is_cancelled = True
        return super().cancel(msg)


class SlotOperator(Protocol):
    """The operator whose calls the slots run.

    Attributes:
        counters: their account of time gets what free slots wait for.
    """

    loop: asyncio.AbstractEventLoop
    counters: TaskCounters

    async def work(self, slot: CallSlot, /) -> None:
        """The life of a slot; it calls `SlotPool.release` before it waits for a call."""

    def has_work(self) -> bool:
        """Whether a slot would find something to do."""

    def why_idle(self) -> State:
        """What free slots wait for, where there is nothing to do."""

    def slots_are_taken(self) -> None:
        """A call begins in the last slot."""


class SlotPool:
    """At most `capacity` slots that count; abandoned ones live on beside them until they end.

    Args:
        has_uncalled: whether the operator has rows that need no slot: then it is told when all slots are taken.
    """

    # One slot takes rows at a time, so rows enter the queue in their order. It lets the next one take rows just before
    # its own call waits, so there are as many slots as calls that wait, and one is enough for a function that never
    # does. Not `capacity` slots from the start: those without a row would each need a future to be woken by.
    #
    # _slots: all that have not ended, abandoned ones too: close() ends them
    # _active: of these, those that are not abandoned; _active <= capacity, but where that has shrunk
    # _leader: the slot that takes rows, or is about to; after each wake() there is one if has_work() and
    # _active < capacity
    # _context: None before open() and after close(), when none may start
    # most: calls that were in flight together

    def __init__(self, operator: SlotOperator, capacity: int, *, has_uncalled: bool) -> None:
        self._operator = operator
        self._has_work = operator.has_work
        self._account = operator.counters.account
        self._has_uncalled = has_uncalled
        self.capacity = capacity
        self.most = 0
        self._slots: set[CallSlot] = set()
        self._active = 0
        self._leader: CallSlot | None = None
        self._context: contextvars.Context | None = None

    def open(self) -> None:
        """From now on `wake` starts slots; they find the context variables of the caller."""
        self._context = contextvars.copy_context()

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self._active >= self.capacity

    @property
    def is_idle(self) -> bool:
        """Whether no slot is at work, or about to be."""
        return not self._active

    @property
    def in_flight(self) -> int:
        """How many calls are waited for."""
        return self._active - (self._leader is not None)

    @property
    def at_work(self) -> list[CallSlot]:
        """The slots that may have a call whose attempt is undecided."""
        return [slot for slot in self._slots if not slot.abandoned]

    def wake(self) -> None:
        """Start a slot if there is work, the capacity for it and no other on the way."""
        # Asked after each row: what costs most comes last.
        if self._leader is not None or self._active >= self.capacity or self._context is None:
            return
        if not self._has_work():
            self._account.enter(self._operator.why_idle())
            return
        self._account.enter(State.CALLS_BUSY)  # until it turns out that slots are left
        slot = self._leader = CallSlot(self._context.copy())
        self._active += 1
        self._slots.add(slot)
        slot.task = _SlotTask(slot, self._operator.work(slot), self._operator.loop)
        slot.task.add_done_callback(lambda _: self._leave(slot))  # also if it was cancelled before it began

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on; those that are too many are not ended, and wait where they ask for a call."""
        if capacity != self.capacity:
            self.capacity = capacity
            self.wake()

    def lead(self, slot: CallSlot) -> None:
        """The slot has taken a row whose call has to wait: no other slot takes rows meanwhile."""
        self._leader = slot

    def release(self, slot: CallSlot) -> None:
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
            self._operator.slots_are_taken()

    def _leave(self, slot: CallSlot) -> None:
        """The slot has ended and makes room for another."""
        self._slots.discard(slot)
        if not slot.abandoned:
            self._active -= 1
        self.release(slot)

    def retire(self, slot: CallSlot) -> None:
        """The slot ends: from now on another may take its place."""
        if not slot.abandoned:
            slot.abandoned = True
            self._active -= 1

    def abandon(self, slot: CallSlot) -> None:
        """Cancel the slot's call and make room for another, whether or not the call obeys."""
        # At once and not when the call has ended: it may clean up for long, or catch the cancellation and go on.
        if not slot.abandoned:
            self.retire(slot)
            slot.task.cancel()

    async def close(self, *, patient: bool) -> None:
        """End all slots; with `patient`, calls whose rows are done may first finish what they do after it."""
        self._context = None
        self._account.enter(State.WINDING_DOWN)
        running = {slot.task for slot in self._slots if not slot.abandoned}
        if patient and running:
            await asyncio.wait(running, timeout=shutdown.GRACE)
        for slot in self._slots:
            slot.abandoned = True
        await end_tasks(slot.task for slot in list(self._slots))
