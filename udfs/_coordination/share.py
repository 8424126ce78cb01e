"""A task's share of the calls that the whole job may have in flight."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from .client import LEASE, Coordinator
from .periodic import PeriodicTask
from .scripts import PREPARE, SHARE

__all__ = ("CapacityShare", "prepare_shares")


BEAT, SOON = 0.5, 0.1  # seconds between two questions; where the share is to be smaller, or is too small
MARGIN = 0.9  # of the lease: before it is over there, it is over here
RENEWED = 0.6  # of the lease, when it is renewed at the latest


async def prepare_shares(coordinator: Coordinator, names: list[str]) -> None:
    """Before a job: without this its first calls wait for the length of a lease, as after a loss of memory."""
    await coordinator.run(PREPARE, [coordinator.key("capacity", name) for name in names])


class CapacityShare(PeriodicTask):
    """How many calls this task may have in flight, of `total` for all tasks; of one event loop.

    Shares follow what tasks can use: what one does not need the others have. They add up to at most `total`, also when
    tasks are killed, when the coordinator is away, and when it has lost its memory.

    Args:
        task: a name that no other task has.
        demand: calls in flight, and how many would be if the share were large enough; at least those in flight.
        wake: called when the share may have become larger.
        fail: called with the error when the coordinator does not answer.
    """

    # _share: calls that may be in flight, while the lease lasts
    # While a question is under way nothing begins beyond what it has told to be in flight: the answer is made of that.

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        task: str,
        total: int,
        demand: Callable[[], tuple[int, int]],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        keys = [coordinator.key("capacity", name), coordinator.key("leases", name)]
        super().__init__(coordinator, keys, fail, longest=RENEWED * LEASE)
        self._name, self._total = task, total
        self._demand, self._wake = demand, wake
        self._share = 0
        self._ends = -math.inf  # of the lease
        self._told = math.inf  # calls in flight, while a question is under way
        self._wanted = 0  # that were last told to be

    @property
    def limit(self) -> int:
        """How many calls may be in flight now; none begins while there are as many or more."""
        if self._clock() >= self._ends:
            return 0
        return int(min(self._share, self._told))

    def poke(self) -> None:
        """There is more to do than the share allows: ask at once, not at the next beat, unless that was told."""
        if self._demand()[1] > self._wanted:
            self._poke()

    async def close(self) -> None:
        """Give the share back."""
        await super().close()
        self._ends = -math.inf

    def _last_message(self) -> Awaitable[object]:
        self._ends = -math.inf
        return self._ask(SHARE, self._name, self._total, 0, -1, LEASE)

    async def _exchange(self) -> float:
        in_flight, wanted = self._demand()
        self._told, self._wanted, sent = in_flight, wanted, self._clock()
        try:
            (share,) = await self._ask(SHARE, self._name, self._total, in_flight, max(in_flight, wanted), LEASE)
        finally:
            self._told = math.inf
        self._share, self._ends = int(share), sent + MARGIN * LEASE
        self._wake()  # the share may be larger, and calls were held back while the question was under way
        in_flight, wanted = self._demand()
        if in_flight > self._share:  # others wait for these, so the coordinator has to know soon when they have ended
            self._behind = 0.0
            return SOON
        return SOON if self._share < min(wanted, self._total) else BEAT
