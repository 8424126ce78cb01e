"""Virtual time for tests, over asyncio's public interface."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from .._errors.exceptions import AsyncUDFError, OptionError

__all__ = ("VirtualClockLoop",)


ROUNDING = 1e-9  # seconds


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer instead of passing.

    When every task is blocked and no timer is pending it raises an `AsyncUDFError` instead of hanging, and where
    something waits for a socket, a process or a thread an `OptionError`: that takes real time, in which the clock would
    jump past every timeout.
    """

    # A loop asks its selector to wait until the next timer. Ours does not wait, it sets the clock there: so no method
    # of asyncio's is replaced but `time`, and timers fire in their order, as they would if time had passed.

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)
        self._clock.call_soon = self.call_soon

    def time(self) -> float:
        return self._clock.now

    def call_beside(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """`call_at` for one who only looks on: where nothing but this can happen it is a deadlock all the same."""
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


class _VirtualSelector(selectors.SelectSelector):
    """The clock: where a selector would wait, it sets itself to the end of the wait."""

    # beside: timers that do not count as something that can still happen, such as those of latency markers
    # is_real: something has begun that takes real time
    # _end: of the wait that such a timer has cut in two; what is left of it ends there, whatever rounding says

    now = 0.0
    is_real = False
    _end = 0.0
    call_soon: Callable[..., object]

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[asyncio.TimerHandle] = []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.is_real = bool(self.get_map())  # the first is the loop's own, by which threads wake it
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> Any:
        if self.is_real:
            self.is_real = False  # calls that are ended by this may clean up
            raise OptionError(
                "a call waits for a socket, a process or a thread, which takes real time, and on the virtual clock "
                "time would jump past its timeout meanwhile; use clock='real'"
            )
        ready = super().select(0)
        if not ready and timeout is None:
            raise AsyncUDFError(
                "deadlock: every call is waiting, no timer is pending, so nothing can ever happen. Is a future never "
                "completed? (A call that uses threads or sockets needs clock='real'.)"
            )
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
            # Those that are due there all go before the timer that is: a hair earlier they would let it fire too soon.
            self.now, limit = end, end + ROUNDING
        while self.beside and self.beside[0].when() <= limit:
            self.call_soon(self.beside.pop(0)._run)
