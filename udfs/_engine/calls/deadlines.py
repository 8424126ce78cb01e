"""The deadlines of rows, and of attempts."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

CLOCK_ROUNDING = 1e-9  # seconds
Watched = TypeVar("Watched")


class Deadlines(Generic[Watched]):
    """Watches rows or attempts with one timer, as all have the same delay.

    When the timer fires, the few that still run get a timer each. Without a delay nothing is watched. `running` lists
    what runs, with its deadlines, and may list some that have a timer already. `expire` is called with each that is
    late, and must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation; a list of all deadlines would cost two
    # changes of a dict. So nothing is noted at a start or an end: `running` tells the deadlines. The timer is set at
    # the first start while there is no timer. When it fires, all that run get a timer each, and the next start sets it
    # again. It may find nothing: that is cheaper than to move it whenever the first one stops.
    #
    # timer fires no later than the first deadline of what runs and is not in `own`

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
        """A row or attempt starts; returns its deadline, None without a delay."""
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
        """A row or attempt ends: cancel its own timer, if it has one."""
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
