"""The deadlines of rows, and those of attempts."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

CLOCK_ROUNDING = 1e-9  # seconds
FEW = 100  # deadlines that have moved and stopped: fewer are not looked for
Watched = TypeVar("Watched")


class Deadlines(Generic[Watched]):
    """Many deadlines with one timer. All have the same delay, so they come in the order of their starts; few move.

    Without a delay nothing is watched. `expire` is called with each one whose time has passed; must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation. With one delay for all the timer is set
    # for the first deadline, and set anew when it fires. It may fire for one that has stopped: that is cheaper than to
    # move it whenever the first one stops.
    #
    # unmoved: the deadlines that have not moved, in their order; put into it and taken out of it directly
    # timer fires no later than the first deadline
    # _moved: the others, each with its time and a number that is new with each move; _numbered: these by their numbers
    # _heap: times and numbers in their order; those of no one any more are skipped, and keep nothing alive
    # _fires: when the timer fires

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        delay: float | None,
        expire: Callable[[Watched], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._offset = loop.time() - clock()  # of the loop's own time to the clock
        self.delay = delay
        self._expire = expire
        # A dict and not a deque: what is over leaves at once, and its results are not kept alive.
        self.unmoved: dict[Watched, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._fires = 0.0
        self._moved: dict[Watched, tuple[float, int]] = {}
        self._numbered: dict[int, Watched] = {}
        self._heap: list[tuple[float, int]] = []
        self._numbers = count()
        self._context = contextvars.copy_context()

    def start(self, one: Watched, now: float) -> float | None:
        """Start a deadline, if there is a limit; returns when it comes."""
        if self.delay is None:
            return None
        self.unmoved[one] = when = now + self.delay
        if self.timer is None:
            self.watch_for(when)
        return when

    def move(self, one: Watched, when: float) -> None:
        """Let a deadline come at another time."""
        self.stop(one)
        self._moved[one] = when, number = when, next(self._numbers)
        self._numbered[number] = one
        heapq.heappush(self._heap, (when, number))
        if len(self._heap) > FEW + 2 * len(self._moved):
            self._heap = [moved for moved in self._heap if moved[1] in self._numbered]
            heapq.heapify(self._heap)
        if self.timer is None or when < self._fires:
            self.watch_for(when)

    def stop(self, one: Watched) -> float | None:
        """Stop a deadline; returns when it would have come, if it ran."""
        when = self.unmoved.pop(one, None)
        if when is None and one in self._moved:
            when, number = self._moved.pop(one)
            del self._numbered[number]
        return when

    def close(self) -> None:
        self.unmoved.clear()
        self._moved.clear()
        self._numbered.clear()
        self._heap.clear()
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._fires = when
        # Not in the context of the call that happens to be the first.
        self.timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self.timer = None
        now = self._clock() + CLOCK_ROUNDING  # or the timer could fire just before its time, for ever
        due: list[Watched] = []
        for one, when in self.unmoved.items():
            if when > now:
                self.watch_for(when)
                break
            due.append(one)
        heap, numbered = self._heap, self._numbered
        while heap and (heap[0][0] <= now or heap[0][1] not in numbered):
            _, number = heapq.heappop(heap)
            if number in numbered:
                due.append(numbered[number])
        if heap and (self.timer is None or heap[0][0] < self._fires):
            self.watch_for(heap[0][0])
        for one in due:  # to expire one may stop another that is due
            if self.stop(one) is not None:
                self._expire(one)
