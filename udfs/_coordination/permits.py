"""The permits of a function in one task, leased from those of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .._policies.leased_permits import BlockSize, LeasedPermits, nap_of
from .._policies.rate_limit import RateLimit, take
from .client import LEASE, Coordinator
from .grants import GIVE_BACK, GRANT, OPEN
from .periodic import PeriodicTask

__all__ = ("SharedPermits", "open_limits")


IDLE = 3600.0  # seconds: nothing is asked that no call needs
TRIPS = 2.0  # round trips that permits should last for
RENEWED = LEASE / 2  # seconds before a call begins with permits whose lease would be over by then
NEVER_USED = -1e8  # seconds: so long ago that any burst is saved up


async def open_limits(coordinator: Coordinator, limits: Sequence[tuple[str, RateLimit]]) -> None:
    """Before a job: nobody has permits of its limits yet, but perhaps other jobs of those that have names."""
    begin = [NEVER_USED if limit.name is None else LEASE - limit.saved * limit.interval for _, limit in limits]
    await coordinator.run(OPEN, _keys(coordinator, limits), *begin)


def _keys(coordinator: Coordinator, limits: Sequence[tuple[str, RateLimit]]) -> list[str]:
    return [coordinator.key("permits", name, for_all=limit.name is not None) for name, limit in limits]


class SharedPermits(PeriodicTask):
    """Permits of one or more limits that all tasks share; of one event loop.

    Args:
        limits: each with the name under which it is shared: by the tasks of this namespace, or by all jobs if it is the
            limit's own.
        wake: called when `take` should be tried again.
        fail: called with the error when the coordinator does not answer.
    """

    # At most one question is under way, and one timer set. The next permits are asked for before those at hand are
    # used, by as much as a round trip takes, so that no call waits for the coordinator.
    #
    # A call that waits for permits that do not suffice asks for all that it needs, beside what there is: what is left
    # of an older lease may be stale by the time that the newer one comes due.
    #
    # Permits count for a lease after the last answer: by then a coordinator without a memory grants new ones.
    #
    # _epochs: of each limit, under which its permits were granted; _newest: its newest stretch, by the server's clock
    # _ends: of the lease
    # _costs: of the call for which permits are asked, or will be; None: nothing is asked

    def __init__(
        self,
        coordinator: Coordinator,
        limits: Sequence[tuple[str, RateLimit]],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(coordinator, (), fail, gap=0.0)
        self._names = _keys(coordinator, limits)
        self._limits = [limit for _, limit in limits]
        self._leased = [LeasedPermits(limit) for limit in self._limits]
        self._newest = [(0.0, 0.0)] * len(limits)
        self._epochs = [""] * len(limits)
        self._ends = 0.0
        self._size = BlockSize(self._limits)
        self._nap = nap_of(self._limits)
        self._wake = wake
        self._costs: Sequence[float] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, costs: Sequence[float]) -> bool:
        """Take a call's permits, of all limits or of none; if there are none, `wake` is called when there may be."""
        if self._timer is not None:
            return False
        now = self._clock()
        wait = take(self._leased, costs, now) if now < self._ends else None
        is_asked = wait is None or any(self._few(costs, now))
        if wait == 0.0:
            self._size.began()
        elif wait is not None:
            self._size.waited()
            if now + wait >= self._ends:  # they count no more by then, unless it is asked again
                is_asked = is_asked or wait <= RENEWED
                wait = max(wait - RENEWED, self._nap)
            self._timer = asyncio.get_running_loop().call_later(max(wait, self._nap), self._look_again)
        if is_asked and self._costs is None:
            self._costs = costs
            self._poke()
        return wait == 0.0

    async def close(self) -> None:
        """Give back what is not used, as far as it is the newest of all."""
        await super().close()
        if self._timer is not None:
            self._timer.cancel()

    def _last_message(self) -> Awaitable[object] | None:
        rests: list[object] = []
        for leased, epoch, (start, end) in zip(self._leased, self._epochs, self._newest, strict=True):
            rest = leased.rest()
            rests += [epoch, end if rest is None else max(start, self._coordinator.time.theirs(rest[0])), end]
        is_used_up = not any(leased.rest() for leased in self._leased)
        return None if is_used_up else self._coordinator.run(GIVE_BACK, self._names, *rests)

    @property
    def _lead(self) -> float:
        """Seconds before the next permits are here, and a little more."""
        return TRIPS * self._coordinator.trip + self._nap

    def _look_again(self) -> None:
        self._timer = None
        self._wake()

    def _few(self, costs: Sequence[float], now: float) -> list[bool]:
        """Of each limit whether there are too few permits for the calls of the next round trips."""
        soon = self._size.soon(now, self._lead)
        return [leased.held(now) < soon * cost for leased, cost in zip(self._leased, costs, strict=True)]

    async def _exchange(self) -> float:
        if self._costs is not None:
            await self._lease(self._costs)
            self._costs = None
            self._wake()
        return IDLE

    async def _lease(self, costs: Sequence[float]) -> None:
        sent, time = self._clock(), self._coordinator.time
        few = self._few(costs, sent)
        calls = self._size.next(sent, self._lead)
        asked: list[float] = []
        begin = 0.0
        for limit, leased, cost, are_few in zip(self._limits, self._leased, costs, few, strict=True):
            due = leased.due(cost, sent)
            need = most = 0.0
            if (
                due is None or are_few
            ):  # for the calls after it as much as it costs itself: how dear they are is not known
                need, most = cost, max(cost, calls * cost - (leased.held(sent) if due is None else 0.0))
            elif due > sent:
                begin = max(begin, time.theirs(due))
            asked += [one * limit.interval for one in (limit.saved, need, most)]
        said, *granted = await self._coordinator.run(GRANT, self._names, *asked, LEASE, begin)
        time.heard(sent, float(said), self._clock())
        for number, (epoch, start, end) in enumerate(zip(*[iter(granted)] * 3, strict=True)):
            self._add(number, epoch, float(start), float(end))
        self._ends = sent + LEASE

    def _add(self, number: int, epoch: str, start: float, end: float) -> None:
        if epoch != self._epochs[number]:
            if self._epochs[number]:
                self._coordinator.has_forgotten()
                self._leased[number] = LeasedPermits(self._limits[number])
            self._epochs[number] = epoch
        if end > start:
            self._newest[number] = start, end
            self._leased[number].add(self._coordinator.time.ours(start), self._coordinator.time.ours(end))
