"""A row on the way to its results: its place in the queue and its call are one object. Rows that share a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from asyncudf.queues import StreamRecord
from asyncudf.queues._queues import RecordEntry

from .._functions.async_function import Results
from .._policies.failure import Failure


class Trouble:
    """What has kept a call from its results: errors, refusals, waits. Most calls have none, and share `NO_TROUBLE`.

    It also has all that few calls need.
    """

    # uncounted: attempts that retries do not count, as the service was too busy, or dead
    # waited: seconds of back-off after attempts that have failed, so far
    # last_error: what the attempt before has ended with, if the function can ask for it: an exception, or a result
    # parked: when the last attempt ended; None while an attempt runs, and before the first
    # idle: seconds since the call has started in which no attempt ran
    # pauses: `Service.paused_seconds` when its deadline was last set or moved
    # ready: when its back-off was over
    # refused: when its first refusal came
    # costs: of one attempt, in permits of each rate limit, where each call has costs of its own
    # is_held: it has failed, and waits among the `HeldFailures`
    # is_excused: an outage has excused its failures; later ones do not show another
    # is_part: of a call of many rows, which is counted; this row goes on alone
    # running_on: slots whose coroutine runs on though a ResultFuture has ended its attempt
    # timer: of its deadline, if the one for all calls does not watch it

    __slots__ = (
        "costs", "idle", "is_excused", "is_held", "is_part", "last_error", "parked", "pauses", "ready", "refused",
        "running_on", "timer", "uncounted", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.costs: Sequence[float] | None = None
        self.is_held = self.is_excused = self.is_part = False
        self.last_error: Any = None
        self.parked: float | None = None
        self.refused: float | None = None
        self.running_on: Sequence[Any] = ()
        self.timer: asyncio.TimerHandle | None = None
        self.uncounted = 0
        self.idle = self.pauses = self.ready = self.waited = 0.0

    def copy(self) -> Trouble:
        """The same for another call, which goes on from here; what an attempt has of its own is not in it."""
        other = Trouble()
        other.is_excused, other.refused, other.uncounted = self.is_excused, self.refused, self.uncounted
        other.idle, other.pauses, other.waited = self.idle, self.pauses, self.waited
        other.last_error = self.last_error
        return other


NO_TROUBLE = Trouble()  # is never written to


_SLOTS = ("attempt", "deadline", "is_fresh", "is_over", "slot", "started", "trouble")


class Call:
    """A row, or the rows of one micro-batch, on the way to their results."""

    # attempt: how many attempts have begun
    # deadline: None before it starts, and without a timeout; of a row in a micro-batch these are those of the `Batch`
    # slot: that an attempt runs in which is not decided
    # is_over: the results are decided; they may still have to be stored
    # is_fresh: its time and its deadline start with its next attempt
    # started: when its time has started

    __slots__ = _SLOTS[:0]  # Python takes no second base class with slots of its own: the classes below have them
    attempt: int
    deadline: float | None
    is_fresh: bool
    is_over: bool
    slot: Any
    started: float
    trouble: Trouble

    @property
    def rows(self) -> Sequence[Row]:
        raise NotImplementedError

    @property
    def parts(self) -> Sequence[Call]:
        """The calls whose attempt it is: itself, but for a `JointAttempt`."""
        return (self,)

    @property
    def values(self) -> list[Any]:
        """The arguments of each of its rows."""
        return [row.record[0] for row in self.rows]

    def open(self) -> None:
        """Begin as a call that had no attempt."""
        self.attempt, self.started, self.deadline, self.slot = 0, 0.0, None, None
        self.is_fresh, self.is_over, self.trouble = True, False, NO_TROUBLE

    def own_trouble(self) -> Trouble:
        """Its trouble, to be written to."""
        if self.trouble is NO_TROUBLE:
            self.trouble = Trouble()
        return self.trouble

    @property
    def is_waiting(self) -> bool:
        """Whether no attempt of it is under way: there was none, or the last one has ended."""
        return not self.attempt or self.trouble.parked is not None

    @property
    def counted_attempts(self) -> int:
        """How many of its attempts retries count."""
        return self.attempt - self.trouble.uncounted

    def earliest_deadline(self) -> float | None:
        """Its deadline; of several calls the first one."""
        return self.deadline

    def elapsed(self, now: float) -> float:
        """Seconds since its time has started."""
        return 0.0 if self.is_fresh and not self.attempt else now - self.started


class Row(RecordEntry, Call):
    """A row in the queue of an operator."""

    __slots__ = _SLOTS

    @property
    def rows(self) -> Sequence[Row]:
        return (self,)


class Batch(Call):
    """The rows of one call of a vectorized function."""

    __slots__ = ("_rows", *_SLOTS)

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.open()

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    def release(self) -> None:
        """Let its rows go on alone, each as a call of its own that has come as far as this one."""
        for row in self._rows:
            row.attempt, row.started, row.deadline, row.is_fresh = self.attempt, self.started, self.deadline, False
            row.trouble = self.trouble.copy()
            row.trouble.is_part = True
        self.is_over = True


class JointAttempt(Batch):
    """Rows that are called together though each is a call of its own: with its attempts, its deadline, its trouble."""

    # began: when it has begun; `deadline` and `is_over` are those of its rows

    __slots__ = ("began",)

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(rows)
        self.attempt = max(row.attempt for row in rows)
        self.started = min(row.started for row in rows)
        self.began = 0.0
        self.is_fresh = False
        if all(row.trouble.is_excused for row in rows):
            self.own_trouble().is_excused = True

    @property
    def counted_attempts(self) -> int:
        return max(row.counted_attempts for row in self._rows)

    def earliest_deadline(self) -> float | None:
        return min((row.deadline for row in self._rows if row.deadline is not None), default=None)

    @property
    def parts(self) -> Sequence[Call]:
        return self._rows

    def keep(self, rows: Sequence[Row]) -> bool:
        """Go on with these of its rows; returns whether there are any."""
        if len(rows) < len(self._rows):
            self._rows, self.trouble = rows, NO_TROUBLE
        return bool(rows)


def element_of(call: Call) -> StreamRecord:
    """What the context of a call shows: its row, or one with the arguments of all its rows."""
    rows = call.rows
    return rows[0].element if len(rows) == 1 else StreamRecord(tuple(call.values))  # type: ignore[return-value]


class RowSharing(Protocol):
    """Which rows share a call, and where results are kept, if there is a store."""

    def begins(self, call: Call, now: float, /) -> None:
        """The first attempt of a call begins, or the first after its time was renewed."""

    def renewed(self, call: Call, /) -> Iterable[Call]:
        """The time of a call begins anew with its next attempt: the calls that share this time."""
        ...

    def leaves(self, call: Call, /) -> None:
        """What the call ends with is not for other rows."""

    def complete(self, call: Call, completed: Sequence[Results], outcomes: Sequence[Results | Failure], /) -> None:
        """The rows of a call have these results.

        Args:
            outcomes: the same, with the failure of each row that has failed.
        """
