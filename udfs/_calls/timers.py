"""The timers of calls: many deadlines with one timer, and second calls for rows whose first call takes long."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

from asyncudf.queues import Entry

from .._policies.hedging import Hedge, Hedging
from .call import Call

__all__ = (
    "ROUNDING",
    "Deadlines",
    "Hedges",
)


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


class Hedges:
    """Decides which rows are called a second time, and when.

    Args:
        wake: called when there is one to make.
    """

    # _timers: of calls that run and are not made twice yet; _line: calls whose second call waits for a slot
    # _begun: when the first call of the newest attempt began, of rows that are not done

    def __init__(self, options: Hedge, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._policy = Hedging(options)
        self._loop = loop
        self._wake = wake
        self._timers: dict[Call, asyncio.TimerHandle] = {}
        self._line: dict[Call, None] = {}  # a set in order
        self._begun: dict[Call, float] = {}

    def began(self, call: Call) -> None:
        """The first call of an attempt is made."""
        self._policy.began()
        self._begun[call] = self._loop.time()
        if self._policy.delay is not None:
            self._timers[call] = self._loop.call_later(self._policy.delay, self._due, call)

    def ended(self, call: Call) -> None:
        """An attempt is over."""
        self._line.pop(call, None)
        timer = self._timers.pop(call, None)
        if timer is not None:
            timer.cancel()

    def done(self, call: Call) -> None:
        """The row is done."""
        self.ended(call)
        begun = self._begun.pop(call, None)
        if begun is not None:
            self._policy.ended(self._loop.time() - begun)

    def next(self) -> Call | None:
        """The next call that is to be made a second time."""
        while self._line:
            call = next(iter(self._line))
            del self._line[call]
            if len(call.undecided) == 1 and self._policy.may_hedge():
                return call
        return None

    @property
    def has_call(self) -> bool:
        """Whether there may be a second call to make."""
        return bool(self._line)

    def close(self) -> None:
        """Stop all timers, and make no more second calls."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._line.clear()
        self._begun.clear()

    def _due(self, call: Call) -> None:
        self._timers.pop(call, None)
        if call.undecided:
            self._line[call] = None
            self._wake()
