"""What is known of a call on its way, and whom it tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

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
    # idle: seconds since `started` in which no attempt was under way
    # pauses: how long all calls had been paused by then
    # uncounted: of `attempt` those that use up none: the service was too busy, or dead
    # is_fresh: its deadline begins with its next attempt
    # costs: of one attempt, in permits of each rate limit
    # is_held: it has failed, and waits among the `HeldFailures`
    # is_excused: an outage has excused its failures; later ones are no sign of another
    __slots__ = (
        "attempt", "costs", "deadline", "done", "entries", "idle", "is_excused", "is_fresh", "is_held", "parked",
        "pauses", "records", "slots", "started", "uncounted", "waited",
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
        self.done = False
        self.slots: list[CallSlot] = []

    @property
    def watched(self) -> Entry:
        """Under which its deadline is found."""
        return self.entries[0]

    @property
    def undecided(self) -> list[CallSlot]:
        """The slots in which an answer is waited for; two, if it is made a second time."""
        return [slot for slot in self.slots if slot.call is self]


@dataclasses.dataclass(frozen=True)
class CallHooks:
    """What the calls tell their operator."""

    finished: Callable[[], None]  # entries were completed
    complete: Callable[[Entry, Any], object]  # and emit, for a slot that looks itself at what is to be done next
    failed: Callable[[BaseException], None]  # the task must fail
    runs_on: Callable[[], None]  # a row is done, its coroutine not
    has_rows: Callable[[], bool]  # whether a free slot would find one that was never called
