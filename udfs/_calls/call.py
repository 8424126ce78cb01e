"""What is known of a call on its way, and whom it tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from asyncudf.queues import Entry, StreamRecord

from .slots import CallSlot

__all__ = ("Call", "CallHooks")


class Call:
    """A row, or the rows of one micro-batch, on the way to their results."""

    # done: the entries are complete
    # slots: those inside the function for this call; more than one when a ResultFuture has ended an attempt whose
    # coroutine runs on while the next attempt is made
    # waited: seconds of back-off so far, which a strategy may have a limit for
    # parked: when the last attempt ended; until the next one begins, after the back-off and in a free slot
    __slots__ = ("attempt", "deadline", "done", "entries", "parked", "records", "slots", "started", "waited")

    def __init__(self, records: Sequence[StreamRecord], entries: Sequence[Entry], started: float) -> None:
        self.records = records
        self.entries = entries
        self.started = started
        self.deadline: float | None = None
        self.attempt = 0
        self.waited = 0.0
        self.parked: float | None = None
        self.done = False
        self.slots: list[CallSlot] = []


@dataclasses.dataclass(frozen=True)
class CallHooks:
    """What the calls tell their operator."""

    finished: Callable[[], None]  # entries were completed
    failed: Callable[[BaseException], None]  # the task must fail
    runs_on: Callable[[], None]  # a row is done, its coroutine not
