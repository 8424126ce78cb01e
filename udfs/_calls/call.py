"""A call on its way to its results; the interfaces of its operator and of what shares calls between rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol

from asyncudf.queues import Entry, StreamRecord

from .._functions.async_function import Results
from .._metrics.counters import TaskCounters
from .slots import CallSlot

__all__ = ("Call", "CallingOperator", "RowSharing")


class Call:
    """A row, or the rows of one micro-batch, on the way to their results."""

    # done: the entries are complete
    # slots: the slots whose coroutine runs for this call; several if a ResultFuture has ended an attempt whose
    # coroutine runs on during the next attempt
    # attempt: how many attempts have begun; uncounted: the attempts among them that retries do not count, as the
    # service was too busy, or dead
    # waited: seconds of back-off so far
    # parked: when the last attempt ended; None while an attempt runs
    # idle: seconds since `started` in which no attempt ran
    # pauses: for how long all calls had been paused by `parked`
    # refused: when its first refusal came
    # is_fresh: its time and its deadline start with its next attempt
    # costs: of one attempt, in permits of each rate limit
    # is_held: it has failed, and waits among the `HeldFailures`
    # is_excused: an outage has excused its failures; later ones do not show another
    __slots__ = (
        "attempt", "costs", "deadline", "done", "entries", "idle", "is_excused", "is_fresh", "is_held", "parked",
        "pauses", "records", "refused", "slots", "started", "uncounted", "waited",
    )  # fmt: skip

    def __init__(self, records: Sequence[StreamRecord], entries: Sequence[Entry], started: float) -> None:
        self.records = records
        self.entries = entries
        self.started = started
        self.deadline: float | None = None
        self.attempt = self.uncounted = 0
        self.is_fresh = True
        self.is_held = self.is_excused = False
        self.costs: Sequence[float] | None = None
        self.waited = 0.0
        self.parked: float | None = None
        self.idle = 0.0
        self.pauses = 0.0
        self.refused: float | None = None
        self.done = False
        self.slots: list[CallSlot] = []

    @property
    def is_first(self) -> bool:
        """Whether it is the call of one row that had no attempt, and whose time has not started."""
        return self.is_fresh and not self.attempt and self.parked is None and len(self.records) == 1

    @property
    def watched(self) -> Entry:
        """The entry under which the deadline runs."""
        return self.entries[0]

    @property
    def is_at_work(self) -> bool:
        """Whether an attempt of it has not ended."""
        return any(slot.call is self for slot in self.slots)


class CallingOperator(Protocol):
    """The operator whose rows are called.

    Attributes:
        name: of its function.
        counters: of its calls; their clock is the operator's.
    """

    name: str
    loop: asyncio.AbstractEventLoop
    counters: TaskCounters

    def has_rows(self) -> bool:  # whether a free slot would find a row that was never called, now or after a lookup
        ...

    def push(self) -> None:
        """Rows are done: emit what may leave, and start a slot if there is work for it."""

    def admit_without_slot(self) -> None:
        """A row is done and its coroutine still holds the slot: what needs no slot may enter the queue."""

    def waiting_has_changed(self) -> None:
        """More or fewer calls are in back-off, or follow the call of an equal row."""

    def fail(self, error: BaseException) -> None:
        """The task must end with this error."""


class RowSharing:
    """Which rows share a call and where results are kept: no row, and nowhere. With a store see `StoreSharing`.

    Attributes:
        keeps_results: whether results are kept for rows to come.
        is_waiting: whether free slots have to wait for a store.
        takes_more: whether another call should be formed.
        followers: how many rows wait for the calls of equal rows.
    """

    keeps_results = False
    is_waiting = False
    takes_more = True
    followers = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Results can be kept while the block runs; at its end all of them are."""
        yield

    def open(self) -> None:
        """The calls can begin."""

    async def end(self) -> None:
        """The operator ends: results are for no row any more."""

    def has_to_call(self, element: Any) -> bool:
        """Whether an element that is next in line is a row that would have a call of its own."""
        return isinstance(element, StreamRecord)

    def needs_call(self, row: Any, entry: Entry) -> bool:
        """Whether a row that has just entered the queue has a call of its own; if not, it is done or will be."""
        return True

    def may_begin(self, call: Call) -> bool:
        """Whether a call that was just formed begins now; if not, it will be among the calls that are ready."""
        return True

    def beginning(
        self, put_record: Callable[[Any], Entry], begin: Callable[[CallSlot, Entry], float | None]
    ) -> Callable[[CallSlot, Any], float | None]:
        """Makes a function that puts a row into the queue, begins its call if it has one, and returns when it began."""
        return lambda slot, row: begin(slot, put_record(row))

    def begins(self, call: Call, now: float) -> None:
        """The first attempt of a call begins, or the first after its time was renewed."""

    def renewed(self, call: Call) -> Iterable[Call]:
        """The time of a call begins anew with its next attempt: the calls that share this time."""
        return ()

    def leaves(self, call: Call) -> None:
        """What the call ends with is not for other rows."""

    def completing(self, complete: Callable[[Entry, Any], object]) -> Callable[[Entry, Any], object]:
        """What gives a row the result of its first attempt, and emits what may leave: `complete`, without a store."""
        return complete

    def complete(self, call: Call, completed: Sequence[Results], outcomes: Sequence[Results | BaseException]) -> None:
        """The rows of a call have these results.

        Args:
            outcomes: the same, with the error of each row that has failed.
        """
        for entry, results in zip(call.entries, completed, strict=True):
            entry.complete(results)
