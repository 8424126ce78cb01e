"""Many deadlines, one timer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ("ROUNDING", "Deadlines")


T = TypeVar("T")
ROUNDING = 1e-9  # seconds


class Deadlines(Generic[T]):
    """Things watched by one timer. All have the same delay, so the order of arrival is that of the deadlines.

    Args:
        clock: seconds.
        delay: in seconds; None watches nothing.
        expire: called with each thing whose time has passed; must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation per row. With one delay for all, the
    # order of arrival is that of the deadlines: the timer is set for the first in line, and set anew when it fires.
    # It may fire for one that has left meanwhile: that is cheaper than to move it whenever the first one leaves.
    #
    # _line: what is watched, with its deadline, the next one first; _timer fires no later than the first of them

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        delay: float | None,
        expire: Callable[[T], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._offset = loop.time() - clock()  # of the loop's own time, where the two differ
        self._delay = delay
        self._expire = expire
        # A dict and not a deque: what ends leaves at once, and nothing keeps its results alive.
        self._line: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()

    def start(self, thing: T, now: float) -> float | None:
        """Watch it from now on; returns its deadline, None if there is no limit."""
        if self._delay is None:
            return None
        when = self._line[thing] = now + self._delay
        if self._timer is None:
            self._watch_for(when)
        return when

    def stop(self, thing: T) -> float | None:
        """Watch it no longer; returns its deadline if it was watched."""
        return self._line.pop(thing, None)

    def close(self) -> None:
        """Watch nothing any more."""
        self._line.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _watch_for(self, when: float) -> None:
        # Not in the context of the call that happens to be the first in line.
        self._timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock() + ROUNDING  # or rounding lets the timer fire just before its time, for ever
        due = []
        for thing, when in self._line.items():
            if when > now:
                self._watch_for(when)
                break
            due.append(thing)
        for thing in due:  # what expires one may stop another that is due as well
            if self._line.pop(thing, None) is not None:
                self._expire(thing)
