"""The permits of a function in one task, leased from those of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .._policies.leased_permits import BlockSize, LeasedPermits, nap_of
from .._policies.rate_limit import RateLimit, take
from .client import Coordinator
from .grants import GIVE_BACK, GRANT

__all__ = ("SharedPermits",)


class SharedPermits:
    """Permits of one or more limits that all tasks share; of one event loop.

    Args:
        limits: each with the name under which it is shared: by the tasks of this space, or by all jobs if it is the
            limit's own.
        wake: called when `take` should be tried again.
        fail: called with the error when the coordinator does not answer.
    """

    # At most one question is under way, and one timer set; while either is, nobody else asks.
    #
    # Who waits for permits that do not suffice for his call asks for all that he needs, beside what he has: what is
    # left of an older lease may be stale by the time that the newer one comes due.

    def __init__(
        self,
        coordinator: Coordinator,
        limits: Sequence[tuple[str, RateLimit]],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._coordinator = coordinator
        self._clock = coordinator.clock
        self._keys = [coordinator.key("permits", name, for_all=limit.name is not None) for name, limit in limits]
        self._limits = [limit for _, limit in limits]
        self._leased = [LeasedPermits(limit) for limit in self._limits]
        self._lasts = [(0.0, 0.0)] * len(limits)  # the newest stretch of each, by the server's clock
        self._size = BlockSize(self._limits)
        self._nap = nap_of(self._limits)
        self._wake, self._fail = wake, fail
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, costs: Sequence[float]) -> bool:
        """Take a call's permits, of all limits or of none; if there are none, `wake` is called when there may be."""
        if self._asking is not None or self._timer is not None:
            return False
        wait = take(self._leased, costs, self._clock())
        if wait == 0.0:
            self._size.began()
            return True
        if wait is None:
            self._asking = self._loop.create_task(self._ask(costs))
        else:
            self._size.waited()
            self._timer = self._loop.call_later(max(wait, self._nap), self._look_again)
        return False

    async def close(self) -> None:
        """Give back what is not used, as far as it is the newest of all."""
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        rests: list[float] = []
        for leased, (start, end) in zip(self._leased, self._lasts, strict=True):
            rest = leased.rest()
            begin = end if rest is None else max(start, self._coordinator.time.theirs(rest[0]))
            rests += [begin, end]
        if any(begin < end for begin, end in zip(rests[::2], rests[1::2], strict=True)):
            await self._coordinator.farewell(self._coordinator.run(GIVE_BACK, self._keys, *rests))

    def _look_again(self) -> None:
        self._timer = None
        self._wake()

    async def _ask(self, costs: Sequence[float]) -> None:
        try:
            await self._lease(costs)
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._asking = None
        self._wake()

    async def _lease(self, costs: Sequence[float]) -> None:
        sent = self._clock()
        calls = self._size.next(sent)
        asked: list[float] = []
        begin, time = 0.0, self._coordinator.time
        for limit, leased, cost in zip(self._limits, self._leased, costs, strict=True):
            due = leased.due(cost, sent)
            if due is not None:
                begin = max(begin, time.theirs(due))
                asked += [limit.interval, limit.saved, 0.0, 0.0]
            else:
                # For those after it as many as it needs itself: how dear they are is not known.
                asked += [limit.interval, limit.saved, cost, max(cost, calls * cost - leased.held(sent))]
        said, *stretches = await self._coordinator.run(GRANT, self._keys, *asked, begin)
        time.heard(sent, float(said), self._clock())
        for number, leased in enumerate(self._leased):
            start, end = float(stretches[2 * number]), float(stretches[2 * number + 1])
            if end > start:
                self._lasts[number] = start, end
                leased.add(time.ours(start), time.ours(end))
