"""The timers of calls: many deadlines with one timer, and second calls for rows whose first takes long."""

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
    """Rows watched by one timer, each for its owner. All have the same delay, so they are due in the order they came.

    Args:
        clock: seconds.
        delay: in seconds; None watches nothing.
        expire: called with the owner of each row whose time has passed; must not raise.
    """

    # A timer for each would cost a push to the loop's heap and a cancellation per row. With one delay for all, the
    # order of arrival is that of the deadlines: the timer is set for the first in line, and set anew when it fires.
    # It may fire for one that has left meanwhile: that is cheaper than to move it whenever the first one leaves.
    #
    # line: what is watched, by the row's entry: its deadline and its owner, the next one first; open to those who take
    # out what is over, which needs no more; timer fires no later than the first of them

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
        self.line: dict[Entry, tuple[float, T]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()

    def start(self, entry: Entry, owner: T, now: float) -> float | None:
        """Watch a row from now on; returns its deadline, None if there is no limit."""
        if self._delay is None:
            return None
        when = now + self._delay
        self.line[entry] = when, owner
        if self.timer is None:
            self.watch_for(when)
        return when

    def reassign(self, entry: Entry, owner: T) -> None:
        """Another is the owner of a row from now on, if it is watched."""
        if (watched := self.line.get(entry)) is not None:
            self.line[entry] = watched[0], owner

    def stop(self, entry: Entry) -> float | None:
        """Watch a row no longer; returns its deadline if it was watched."""
        watched = self.line.pop(entry, None)
        return None if watched is None else watched[0]

    def close(self) -> None:
        """Watch nothing any more."""
        self.line.clear()
        if self.timer is not None:
            self.timer.cancel()

    def watch_for(self, when: float) -> None:
        # Not in the context of the call that happens to be the first in line.
        self.timer = self._loop.call_at(when + self._offset, self._fire, context=self._context)

    def _fire(self) -> None:
        self.timer = None
        now = self._clock() + ROUNDING  # or rounding lets the timer fire just before its time, for ever
        due = []
        for entry, (when, _) in self.line.items():
            if when > now:
                self.watch_for(when)
                break
            due.append(entry)
        for entry in due:  # what expires one may stop another that is due as well
            if (watched := self.line.pop(entry, None)) is not None:
                self._expire(watched[1])


class Hedges:
    """Tells which calls get a second one, and when.

    Args:
        wake: called when there is one to make.
    """

    # _timers: of calls under way that have no second one yet; _line: those whose time has come, which ask for a slot
    # _begun: when the first call of the newest attempt began, of rows that are not done

    def __init__(self, options: Hedge, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._policy = Hedging(options)
        self._loop = loop
        self._wake = wake
        self._timers: dict[Call, asyncio.TimerHandle] = {}
        self._line: dict[Call, None] = {}  # in its order
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
        """A call that is to be made a second time."""
        while self._line:
            call = next(iter(self._line))
            del self._line[call]
            if len(call.undecided) == 1 and self._policy.may_hedge():
                return call
        return None

    @property
    def has_call(self) -> bool:
        """Whether there may be one."""
        return bool(self._line)

    def close(self) -> None:
        """Make no more."""
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
