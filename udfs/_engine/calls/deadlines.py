"""The deadlines of rows, and those of attempts."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

CLOCK_ROUNDING = 1e-9  # seconds
Watched = TypeVar("Watched")


class Deadlines(Generic[Watched]):
    """Many deadlines with one timer. All have the same delay, so they come in the order of their starts; few move.

    Args:
        clock: seconds.
        delay: in seconds; None watches nothing.
        expire: called with each one whose time has passed; must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation. With one delay for all the timer is set
    # for the first deadline, and set anew when it fires. It may fire for one that has stopped: that is cheaper than to
    # move it whenever the first one stops.
    #
    # line: the deadlines that have not moved, in their order; put into it and taken out of it directly
    # timer fires no later than the first deadline
    # _moved: the others; _heap: these in their order, and older entries of them, which are skipped
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
        self._delay = delay
        self._expire = expire
        # A dict and not a deque: what is over leaves at once, and its results are not kept alive.
        self.line: dict[Watched, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._fires = 0.0
        self._moved: dict[Watched, float] = {}
        self._heap: list[tuple[float, int, Watched]] = []
        self._numbers = count()
        self._context = contextvars.copy_context()

    def start(self, one: Watched, now: float) -> float | None:
        """Start a deadline, if there is a limit; returns when it comes."""
        if self._delay is None:
            return None
        self.line[one] = when = now + self._delay
        if self.timer is None:
            self.watch_for(when)
        return when

    def move(self, one: Watched, when: float) -> None:
        """Let a deadline come at another time."""
        self.line.pop(one, None)
        self._moved[one] = when
        heapq.heappush(self._heap, (when, next(self._numbers), one))
        if self.timer is None or when < self._fires:
            self.watch_for(when)

    def stop(self, one: Watched) -> float | None:
        """Stop a deadline; returns when it would have come, if it ran."""
        when = self.line.pop(one, None)
        return self._moved.pop(one, None) if when is None and self._moved else when

    def close(self) -> None:
        """Stop all deadlines."""
        self.line.clear()
        self._moved.clear()
        self._heap.clear()
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
        """Set the timer."""
        if self.timer is not None:
            self.timer.cancel()
        self._fires = when
        # Not in the context of the call that happens to be the first.
        self.timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self.timer = None
        now = self._clock() + CLOCK_ROUNDING  # or the timer could fire just before its time, for ever
        due: list[Watched] = []
        for one, when in self.line.items():
            if when > now:
                self.watch_for(when)
                break
            due.append(one)
        heap, moved = self._heap, self._moved
        while heap and (moved.get(heap[0][2]) != heap[0][0] or heap[0][0] <= now):
            when, _, one = heapq.heappop(heap)
            if moved.get(one) == when:
                due.append(one)
        if heap and (self.timer is None or heap[0][0] < self._fires):
            self.watch_for(heap[0][0])
        for one in due:  # to expire one may stop another that is due
            if self.line.pop(one, None) is not None or moved.pop(one, None) is not None:
                self._expire(one)
