"""What calls ask of their operator, and of what shares them between rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .._functions.async_function import Results
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .row import Call


class CallingOperator(Protocol):
    """The operator whose rows are called.

    Attributes:
        name: of its function.
        counters: of its calls; their clock is the operator's.
    """

    name: str
    loop: asyncio.AbstractEventLoop
    counters: TaskCounters

    async def work(self, slot: Any, /) -> None:
        """The life of a `CallSlot`; it calls `SlotPool.release` before it waits for a call."""

    def pump(self) -> None:
        """Something has changed: emit what may leave, take in what needs no call, start a slot if there is work."""

    def pump_soon(self) -> None:
        """The same in the next turn of the event loop."""

    def fail(self, error: BaseException) -> None:
        """The task must end with this error."""

    def has_work(self) -> bool:  # whether a slot would find something to do
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


class RowSharing(Protocol):
    """Which rows share a call, and where results are kept, if there is a store."""

    def begins(self, call: Call, now: float, /) -> None:
        """The first attempt of a call begins, or the first after its time was renewed."""

    def renewed(self, call: Call, /) -> Iterable[Call]:
        """The time of a call begins anew with its next attempt: the calls that share this time."""
        ...

    def leaves(self, call: Call, /) -> None:
        """What the call ends with is not for other rows."""

    def complete(
        self, call: Call, completed: Sequence[Results], outcomes: Sequence[Results | BaseException], /
    ) -> None:
        """The rows of a call have these results.

        Args:
            outcomes: the same, with the error of each row that has failed.
        """
