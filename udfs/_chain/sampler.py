"""Samples the figures of a chain's operators ten times a second, and whether the event loop was blocked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from .._operators.async_wait import AsyncWaitOperator
from .environment import TaskEnvironment

INTERVAL = 0.1  # seconds between two samples, at first
LONGEST_SAMPLE = 1.0  # seconds between two samples of a task that runs for long
LATE = 0.025  # seconds; code that blocks the loop has delayed a sample that comes later


class Sampler:
    """Makes curves and means of what the operators are doing, and finds the time in which the loop was blocked."""

    # A late sample says that the loop was blocked at a moment that nobody has chosen. So the time since the sample
    # before is taken as blocked: too much of it where only its end was, too little where the block was between two
    # samples, and in the mean over many samples what it was. Less the time in which Spark's thread was at work: to make
    # rows of a batch it may hold the interpreter for as long. Less the time, too, in which the machine had no processor
    # for the loop's thread.
    #
    # _excused: seconds of both, by the last sample

    def __init__(self, environment: TaskEnvironment, operators: Sequence[AsyncWaitOperator]) -> None:
        self._loop = loop = environment.loop
        self._clock = environment.clock
        self._spark_thread = environment.spark_thread
        self._sampled = environment.sampled
        self._operators = operators
        # On the virtual clock it is no event: where nothing else can happen it is a deadlock all the same.
        self._call_at: Callable[..., asyncio.TimerHandle] = getattr(loop, "call_beside", loop.call_at)
        is_virtual = hasattr(loop, "call_beside")  # then time that does not pass may be long, and nobody waits in it
        self._longest = math.inf if is_virtual else LONGEST_SAMPLE
        self._without_processor: Callable[[], float] = (lambda: 0.0) if is_virtual else seconds_without_processor
        self._began = self._due = self._clock()
        self._timer: asyncio.TimerHandle | None = None
        self._excused = self._seconds_excused()

    def start(self) -> None:
        """Sample from now on."""
        now = self._clock()
        interval = min(max(INTERVAL, (now - self._began) / 1000), self._longest)
        self._due = now + interval
        self._timer = self._call_at(self._loop.time() + interval, self._tick)

    def stop(self) -> None:
        """Sample for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self._sample()

    def _tick(self) -> None:
        self._sample()
        self._sampled()
        self.start()

    def _sample(self) -> None:
        before, self._excused = self._excused, self._seconds_excused()
        was_blocked = self._clock() - self._due - (self._excused - before) > LATE
        for operator in self._operators:
            operator.sample(was_blocked=was_blocked)

    def _seconds_excused(self) -> float:
        at_work = 0.0 if self._spark_thread is None else self._clock() - self._spark_thread.seconds_waited()
        return at_work + self._without_processor()


def seconds_without_processor() -> float:
    """How long this thread could have worked and was not let, since it began; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:  # Linux
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
