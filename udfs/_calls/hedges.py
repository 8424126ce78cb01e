"""Second calls for rows whose first takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._policies.hedging import Hedge, Hedging
from .call import Call

__all__ = ("Hedges",)


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
