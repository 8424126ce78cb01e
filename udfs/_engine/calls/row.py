"""A row on the way to its results: its place in the queue and its calls are one object."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

from asyncudf.queues._queues import RecordEntry

from ..._errors.failure import Failure
from ..._functions.async_function import Results


@enum.unique
class RowState(enum.Enum):
    """Where a row is, from its place in the queue on."""

    __hash__ = object.__hash__  # that of Enum is written in Python

    NEW = "new"  # it has its place
    CLAIMED = "claimed"  # it waits until it is clear that no other task calls for it
    READY = "ready"  # its next attempt may begin
    ASIDE = "aside"  # a limit holds back its key
    CALLING = "calling"  # an attempt runs, and is not decided
    BACKING_OFF = "backing off"
    FOLLOWING = "following"  # it waits for the call of an equal row
    HELD = "held"  # it has failed, and waits until it is known whether its service is dead
    DECIDED = "decided"  # its results are decided; with a store they may have to be written first
    DONE = "done"  # it has its results


# A row that is answered as it enters the queue (`put_completed`) has no state: no call is made for it. The plain way,
# in plain.py, sets CALLING and DONE without `move`.
_NEXT = {
    RowState.NEW: "CLAIMED READY ASIDE CALLING FOLLOWING DECIDED DONE",
    RowState.CLAIMED: "READY DECIDED DONE",
    RowState.READY: "ASIDE CALLING HELD DECIDED DONE",
    RowState.ASIDE: "READY HELD DECIDED DONE",
    RowState.CALLING: "READY BACKING_OFF HELD DECIDED DONE",
    RowState.BACKING_OFF: "READY DECIDED DONE",  # the latter two only if the loop is late: a wait ends in time
    RowState.FOLLOWING: "READY HELD DECIDED DONE",
    RowState.HELD: "READY DECIDED DONE",
    RowState.DECIDED: "DONE",
    RowState.DONE: "",
}
_MOVES = {state: frozenset(RowState[name] for name in names.split()) for state, names in _NEXT.items()}


class Trouble:
    """What has kept a row from its results: errors, refusals, waits. Most rows have none, and share `NO_TROUBLE`."""

    __slots__ = (
        "idle", "is_excused", "last_error", "parked", "pauses", "ready", "refused", "uncounted", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_excused = False  # an outage has excused its failures; later ones do not show another
        # The exception or result of the attempt before, if the function can ask for it.
        self.last_error: Any = None
        self.parked: float | None = None  # when the last attempt ended; None while one runs, and before the first
        self.refused: float | None = None  # when its first refusal came
        self.uncounted = 0  # attempts that retries do not count, as the service was too busy, or dead
        self.idle = 0.0  # seconds since the row's time has started in which no attempt ran
        self.pauses = 0.0  # `Gatekeeper.paused_seconds` when its deadline was last set or moved
        self.ready = 0.0  # when its back-off was over
        self.waited = 0.0  # seconds of back-off after attempts that have failed, so far


NO_TROUBLE = Trouble()  # is never written to


class Row(RecordEntry):
    __slots__ = ("attempt", "attempts", "counts", "deadline", "started", "state", "trouble")
    attempt: Any  # the attempt that runs and is not decided; only a CALLING row has one
    attempts: int  # how many have begun
    counts: bool  # whether the row counts as a call: of rows that are first called together only the first row does
    deadline: float | None  # None before its time has started, and without a timeout
    started: float | None  # when its time has started; None: it starts with the next attempt
    state: RowState
    trouble: Trouble

    def open(self) -> None:
        self.attempt = self.started = self.deadline = None
        self.attempts, self.counts, self.state, self.trouble = 0, True, RowState.NEW, NO_TROUBLE

    def move(self, state: RowState) -> None:
        assert state in _MOVES[self.state], f"a row that is {self.state.value} cannot be {state.value}"
        self.state = state

    @property
    def is_decided(self) -> bool:
        """Whether its results are decided; they may still have to be stored."""
        return self.state is RowState.DONE or self.state is RowState.DECIDED

    def own_trouble(self) -> Trouble:
        if self.trouble is NO_TROUBLE:
            self.trouble = Trouble()
        return self.trouble

    def elapsed(self, now: float) -> float:
        return 0.0 if self.started is None else now - self.started


class RowSharing(Protocol):
    """Which rows share a call, and where results are kept, if there is a store."""

    def begins(self, row: Row, now: float, /) -> None:
        """The first attempt of a row begins, or the first one after its time was renewed."""

    def renewed(self, row: Row, /) -> Sequence[Row]:
        """The time of a row begins anew with its next attempt: the rows that share this time."""
        ...

    def leaves(self, row: Row, /) -> None:
        """The outcome of this row is not for other rows."""

    def complete(self, row: Row, results: Results, outcome: Results | Failure, /) -> None:
        """A row has these results; `outcome`: the results, or the failure of a row that has failed."""
