"""An event loop on a virtual clock, over asyncio's public API: time jumps to the next timer."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._errors.exceptions import AsyncUDFError, OptionError
from .stacks import coroutine_stacks

ROUNDING = 1e-9  # seconds


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer instead of passing.

    If every task is blocked and no timer is pending, it raises an `AsyncUDFError` instead of hanging. If something
    waits for a socket, a process or a thread, it raises an `OptionError`: that takes real time, in which the clock
    would jump past every timeout.
    """

    # A loop makes its selector wait until the next timer. Ours sets the clock there instead: so timers fire in their
    # order, as if time had passed. Timers of one moment fire in the order in which they were set: on a real clock there
    # are no two of one moment.

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        self._numbers = itertools.count()
        super().__init__(self._clock)
        self._clock.call_soon = self.call_soon
        self._clock.stacks = partial(coroutine_stacks, self)
        # Each says what it waits for, in lines, for the error of a deadlock.
        self.waiting: list[Callable[[], Sequence[str]]] = self._clock.waiting

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        moment = _Moment(when)
        moment.number = next(self._numbers)
        return super().call_at(moment, callback, *args, context=context)

    def call_beside(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """`call_at` for an observer: if nothing but this callback can happen, it is a deadlock all the same."""
        handle = asyncio.TimerHandle(when, callback, (), self)
        self._clock.beside.append(handle)
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """As asyncio's; the run ends with an `OptionError`."""
        self._clock.is_real = True
        return super().run_in_executor(executor, func, *args)

    def block(self, seconds: float) -> None:
        """Let time pass while nothing else can run, as a call does that keeps the loop busy.

        >>> async def busy(x: int) -> float:
        ...     loop = asyncio.get_running_loop()
        ...     loop.block(2.0)  # stands for time.sleep(2.0)
        ...     return loop.time()
        >>> from asyncudf.testing import run_rows
        >>> run_rows(busy, [1, 2])
        [2.0, 4.0]
        """
        self._clock.now += seconds


class _Moment(float):
    """When a timer fires; of two at one moment that with the lower number fires first."""

    number: int

    def __lt__(self, other: float) -> bool:
        return self.number < other.number if isinstance(other, _Moment) and self == other else super().__lt__(other)


class _VirtualSelector(selectors.SelectSelector):
    """The clock: instead of waiting it sets itself to the end of the wait."""

    now = 0.0
    is_real = False  # whether something has begun that takes real time
    _end = 0.0  # of a wait that a timer in `beside` has cut in two; its rest ends there, in spite of rounding
    call_soon: Callable[..., object]
    stacks: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], Sequence[str]]] = []
        # Timers of observers, such as latency markers: they do not prevent a deadlock.
        self.beside: list[asyncio.TimerHandle] = []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.is_real = bool(self.get_map())  # the first is the loop's own, with which threads wake it
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> Any:
        if self.is_real:
            self.is_real = False  # calls that this error ends may clean up
            raise OptionError(
                "a call waits for a socket, a process or a thread, which takes real time, and on the virtual clock "
                "time would jump past its timeout meanwhile; use clock='real'"
            )
        ready = super().select(0)
        if not ready and timeout is None:
            error = AsyncUDFError(
                "deadlock: every call is waiting, no timer is pending, so nothing can ever happen. Is a future never "
                "completed? (A call that uses threads or sockets needs clock='real'.)"
            )
            waits = [f"  {line}" for one in self.waiting for line in one()]
            error.add_note("\n".join([*waits, self.stacks()]))
            raise error
        if not ready:
            self._pass(self.now + (timeout or 0.0))
        return ready

    def _pass(self, end: float) -> None:
        end = self._end if self.now < self._end and abs(end - self._end) < ROUNDING else end
        self.beside = sorted(handle for handle in self.beside if not handle.cancelled())
        if self.beside and self.beside[0].when() <= end - ROUNDING:
            self._end = end
            self.now = limit = max(self.now, self.beside[0].when())
        else:
            # Timers in `beside` that are due at the end run before the other timer: else that could fire too early.
            self.now, limit = end, end + ROUNDING
        while self.beside and self.beside[0].when() <= limit:
            self.call_soon(_run_timer, self.beside.pop(0))


def _run_timer(timer: asyncio.TimerHandle) -> None:
    if not timer.cancelled():  # by what ran between its time and its turn
        timer._run()
