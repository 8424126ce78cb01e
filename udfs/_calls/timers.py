"""The deadlines of calls: many with one timer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

from asyncudf.queues import Entry

__all__ = ("ROUNDING", "Deadlines")


T = TypeVar("T")
ROUNDING = 1e-9  # seconds


class Deadlines(Generic[T]):
    """The deadlines of many rows with one timer. All have the same delay, so they come in the order they were started.

    Args:
        clock: seconds.
        delay: in seconds; None watches nothing.
        expire: called with the owner of each row whose time has passed; must not raise.
    """

    # A timer for each row would cost a push to the loop's heap and a cancellation. With one delay for all rows the
    # timer is set for the first deadline, and set anew when it fires. It may fire for a row that is done: that is
    # cheaper than to move it whenever the first row is done.
    #
    # line: deadline and owner of each row, by its entry, in the order of the deadlines; the fast path takes rows out
    # of it directly; timer fires no later than the first deadline

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        delay: float | None,
        expire: Callable[[T], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._offset = loop.time() - clock()  # of the loop's own time to the clock
        self._delay = delay
        self._expire = expire
        # A dict and not a deque: a row that is done leaves at once, and its results are not kept alive.
        self.line: dict[Entry, tuple[float, T]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()

    def start(self, entry: Entry, owner: T, now: float) -> float | None:
        """Start the deadline of a row; returns when it comes, None if there is no limit."""
        if self._delay is None:
            return None
        when = now + self._delay
        self.line[entry] = when, owner
        if self.timer is None:
            self.watch_for(when)
        return when

    def reassign(self, entry: Entry, owner: T) -> None:
        """Give a row another owner, if its deadline runs."""
        if (watched := self.line.get(entry)) is not None:
            self.line[entry] = watched[0], owner

    def stop(self, entry: Entry) -> float | None:
        """Stop the deadline of a row; returns when it would have come, if it ran."""
        watched = self.line.pop(entry, None)
        return None if watched is None else watched[0]

    def close(self) -> None:
        """Stop all deadlines."""
        self.line.clear()
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
        # Not in the context of the call that happens to be the first.
        self.timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self.timer = None
        now = self._clock() + ROUNDING  # or the timer could fire just before its time, for ever
        due = []
        for entry, (when, _) in self.line.items():
            if when > now:
                self.watch_for(when)
                break
            due.append(entry)
        for entry in due:  # to expire one row may stop another that is due
            if (watched := self.line.pop(entry, None)) is not None:
                self._expire(watched[1])
