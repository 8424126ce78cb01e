"""The deadlines of rows, and those of attempts."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

CLOCK_ROUNDING = 1e-9  # seconds
Watched = TypeVar("Watched")


class Deadlines(Generic[Watched]):
    """Many deadlines with one timer, as they come in the order of their starts; the few that move have one each.

    All have the same delay; without one nothing is watched. `expire` is called with each one whose time has passed;
    must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation. With one delay for all the timer is set
    # for the first deadline, and set anew when it fires. It may fire for one that has stopped: that is cheaper than to
    # move it whenever the first one stops.
    #
    # unmoved: the deadlines that have not moved, in their order; put into it and taken out of it directly
    # timer fires no later than the first of these
    # _moved: the others, each with its time and its timer

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
        self._moved: dict[Watched, tuple[float, asyncio.TimerHandle]] = {}
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
        self.stop(one)
        self._moved[one] = when, self._loop.call_at(when + self._offset, self._end, one, context=self._context)

    def stop(self, one: Watched) -> float | None:
        """Stop a deadline; returns when it would have come, if it ran."""
        when = self.unmoved.pop(one, None)
        if when is None and one in self._moved:
            when, timer = self._moved.pop(one)
            timer.cancel()
        return when

    def close(self) -> None:
        self.unmoved.clear()
        for one in [*self._moved]:
            self.stop(one)
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
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
        for one in due:
            self._end(one)

    def _end(self, one: Watched) -> None:
        if self.stop(one) is not None:  # to expire one may stop another that is due
            self._expire(one)
