"""Looks at the figures of a chain's operators now and then, and at whether the loop comes round."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from .._metrics.spark_thread import SparkThread
from .._operators.async_wait import AsyncWaitOperator

__all__ = ("Sampler",)


INTERVAL = 0.1  # seconds between two looks, at first
LONGEST = 1.0  # seconds between two looks of a task that runs for long
LATE = 0.025  # seconds; a look that comes later was kept from it by code that does not give way


class Sampler:
    """Makes curves and means of what the operators are doing, and finds the time in which the loop was blocked."""

    # A look that comes late tells that at a moment that nobody has chosen the loop was blocked. So the time since the
    # look before is taken as blocked: too much of it where it was only the end, too little where it was between two
    # looks, and in the mean over many looks what it was. Not where Spark's thread was at work: to make rows of a batch
    # it may hold the interpreter for as long. Nor where the machine had no processor for the loop's thread.

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], spark_thread: SparkThread | None
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._spark_thread = spark_thread
        # On the virtual clock it is no event: where nothing else can happen it is a deadlock all the same.
        self._call_at: Callable[..., asyncio.TimerHandle] = getattr(loop, "call_beside", loop.call_at)
        is_virtual = hasattr(loop, "call_beside")  # then time that does not pass may be long, and nobody waits in it
        self._longest = math.inf if is_virtual else LONGEST
        self._without_processor: Callable[[], float] = (lambda: 0.0) if is_virtual else seconds_without_processor
        self._began = self._due = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._starved = 0.0  # seconds without a processor, by the last look
        self.operators: Sequence[AsyncWaitOperator] = ()
        self.looked: Callable[[], None] = lambda: None  # called after each look

    def start(self) -> None:
        """Look from now on."""
        now = self._clock()
        interval = min(max(INTERVAL, (now - self._began) / 1000), self._longest)
        self._due = now + interval
        self._timer = self._call_at(self._loop.time() + interval, self._tick)

    def stop(self) -> None:
        """Look for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    def _tick(self) -> None:
        self._look()
        self.looked()
        self.start()

    def _look(self) -> None:
        before, self._starved = self._starved, self._without_processor()
        was_blocked = self._clock() - self._due - (self._starved - before) > LATE
        if self._spark_thread is not None and not self._spark_thread.has_waited(self._due):
            was_blocked = False
        for operator in self.operators:
            operator.gauges.look(was_blocked=was_blocked)


def seconds_without_processor() -> float:
    """How long this thread could have worked and was not let, since it began; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:  # Linux
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
