"""The deadlines of calls."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from .row import Call

ROUNDING = 1e-9  # seconds


class Deadlines:
    """The deadlines of many calls with one timer. All have the same delay, so they come in the order of their starts.

    Args:
        clock: seconds.
        delay: in seconds; None watches nothing.
        expire: called with each call whose time has passed; must not raise.
    """

    # A timer for each call would cost a push to the loop's heap and a cancellation. With one delay for all calls the
    # timer is set for the first deadline, and set anew when it fires. It may fire for a call that is over: that is
    # cheaper than to move it whenever the first call is over.
    #
    # line: the deadline of each call, in the order of the deadlines; calls are put into it and taken out of it directly
    # timer fires no later than the first deadline

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        delay: float | None,
        expire: Callable[[Call], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._offset = loop.time() - clock()  # of the loop's own time to the clock
        self._delay = delay
        self._expire = expire
        # A dict and not a deque: a call that is over leaves at once, and its results are not kept alive.
        self.line: dict[Call, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()

    def start(self, call: Call, now: float) -> None:
        """Start the deadline of a call, if there is a limit."""
        if self._delay is not None:
            self.line[call] = when = now + self._delay
            if self.timer is None:
                self.watch_for(when)

    def stop(self, call: Call) -> float | None:
        """Stop the deadline of a call; returns when it would have come, if it ran."""
        return self.line.pop(call, None)

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
        for call, when in self.line.items():
            if when > now:
                self.watch_for(when)
                break
            due.append(call)
        for call in due:  # to expire one call may stop another that is due
            if self.line.pop(call, None) is not None:
                self._expire(call)
