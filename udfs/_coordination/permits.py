"""The permits of a function in one task, leased from those of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from .._policies.leased_permits import BlockSize, LeasedPermits, nap_of
from .._policies.rate_limit import RateLimit, take
from .client import Coordinator
from .grants import GIVE_BACK, GRANT
from .periodic import PeriodicTask

__all__ = ("SharedPermits",)


IDLE = 3600.0  # seconds: nothing is asked that no call needs
TRIPS = 2.0  # round trips that permits should last for


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
    # _costs: of the call for which permits are asked, or will be; None: nothing is asked

    def __init__(
        self,
        coordinator: Coordinator,
        limits: Sequence[tuple[str, RateLimit]],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(coordinator, (), fail, gap=0.0)
        self._names = [coordinator.key("permits", name, for_all=limit.name is not None) for name, limit in limits]
        self._limits = [limit for _, limit in limits]
        self._leased = [LeasedPermits(limit) for limit in self._limits]
        self._lasts = [(0.0, 0.0)] * len(limits)  # the newest stretch of each, by the server's clock
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
        wait = take(self._leased, costs, now)
        if wait == 0.0:
            self._size.began()
        elif wait is not None:
            self._size.waited()
            self._timer = asyncio.get_running_loop().call_later(max(wait, self._nap), self._look_again)
        if self._costs is None and (wait is None or any(self._wanted(costs, now))):
            self._costs = costs
            self._poke()
        return wait == 0.0

    async def close(self) -> None:
        """Give back what is not used, as far as it is the newest of all."""
        if self._timer is not None:
            self._timer.cancel()
        await super().close()

    def _last_message(self) -> Awaitable[object] | None:
        rests: list[float] = []
        for leased, (start, end) in zip(self._leased, self._lasts, strict=True):
            rest = leased.rest()
            begin = end if rest is None else max(start, self._coordinator.time.theirs(rest[0]))
            rests += [begin, end]
        if all(begin >= end for begin, end in zip(rests[::2], rests[1::2], strict=True)):
            return None
        return self._coordinator.run(GIVE_BACK, self._names, *rests)

    @property
    def _lead(self) -> float:
        """Seconds before the next permits are here, and a little more."""
        return TRIPS * self._coordinator.trip + self._nap

    def _look_again(self) -> None:
        self._timer = None
        self._wake()

    def _wanted(self, costs: Sequence[float], now: float) -> list[bool]:
        """Of each limit whether there are too few permits for the calls of the next round trips."""
        soon = self._size.soon(now, self._lead)
        return [
            cost > 0 and (leased.due(cost, now) is None or leased.held(now) < soon * cost)
            for leased, cost in zip(self._leased, costs, strict=True)
        ]

    async def _exchange(self) -> float:
        if self._costs is not None:
            await self._lease(self._costs)
            self._costs = None
            self._wake()
        return IDLE

    async def _lease(self, costs: Sequence[float]) -> None:
        sent = self._clock()
        wanted = self._wanted(costs, sent)
        calls = self._size.next(sent, self._lead)
        asked: list[float] = []
        begin, time = 0.0, self._coordinator.time
        for limit, leased, cost, is_wanted in zip(self._limits, self._leased, costs, wanted, strict=True):
            due = leased.due(cost, sent)
            asked += [limit.interval, limit.saved]
            if is_wanted:  # for the calls after it as much as it costs itself: how dear they are is not known
                held = leased.held(sent) if due is None else 0.0
                asked += [cost, max(cost, calls * cost - held)]
            else:
                begin = max(begin, time.theirs(sent if due is None else due))
                asked += [0.0, 0.0]
        said, *stretches = await self._coordinator.run(GRANT, self._names, *asked, begin)
        time.heard(sent, float(said), self._clock())
        for number, leased in enumerate(self._leased):
            start, end = float(stretches[2 * number]), float(stretches[2 * number + 1])
            if end > start:
                self._lasts[number] = start, end
                leased.add(time.ours(start), time.ours(end))
