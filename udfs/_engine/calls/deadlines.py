"""The deadlines of rows, and those of attempts."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

CLOCK_ROUNDING = 1e-9  # seconds
Watched = TypeVar("Watched")


class Deadlines(Generic[Watched]):
    """Many deadlines with one timer, as all have the same delay; the few that it finds still running have one each.

    Without a delay nothing is watched. `running` lists those that run, with their times, and perhaps others that have a
    timer of their own. `expire` is called with each one whose time has passed; must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation, and an entry in a line of them still two
    # changes of a dict. So nothing is noted when one starts or ends: who runs knows its time. The timer is set for the
    # first that starts while there is no timer. When it fires, each that runs gets a timer of its own, and the next
    # start sets it again. It may find nothing: that is cheaper than to move it whenever the first one stops.
    #
    # timer fires no later than the first of those that run and have no timer of their own

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        delay: float | None,
        running: Callable[[], Iterable[tuple[Watched, float]]],
        expire: Callable[[Watched], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._offset = loop.time() - clock()  # of the loop's own time to the clock
        self.delay = delay
        self._running = running
        self._expire = expire
        self.timer: asyncio.TimerHandle | None = None
        # Those that ran when the timer fired, and those that have moved, each with its time and its timer.
        self.own: dict[Watched, tuple[float, asyncio.TimerHandle]] = {}
        self._context = contextvars.copy_context()

    def start(self, now: float) -> float | None:
        """One starts, if there is a limit; returns when its deadline comes."""
        if self.delay is None:
            return None
        when = now + self.delay
        if self.timer is None:
            self.watch_for(when)
        return when

    def move(self, one: Watched, when: float) -> None:
        self.stop(one)
        self.own[one] = when, self._loop.call_at(when + self._offset, self._end, one, context=self._context)

    def stop(self, one: Watched) -> None:
        """One ends: stop the timer that it has of its own, if it has one."""
        if one in self.own:
            _, timer = self.own.pop(one)
            timer.cancel()

    def close(self) -> None:
        for one in [*self.own]:
            self.stop(one)
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
        # Not in the context of the call that happens to be the first.
        self.timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self.timer = None
        due = list[Watched]()
        now = self._clock() + CLOCK_ROUNDING
        for one, when in self._running():
            if one not in self.own:
                self.move(one, when)
                if when <= now:  # its timer would fire in the next turn of the loop, which may take long
                    due.append(one)
        for one in due:
            if one in self.own:  # to expire one may stop another
                self._end(one)

    def _end(self, one: Watched) -> None:
        when, _ = self.own[one]
        if when > self._clock() + CLOCK_ROUNDING:  # the time of a loop may be coarser
            self.move(one, when)
        else:
            self.stop(one)
            self._expire(one)
