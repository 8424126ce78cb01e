"""What a task gives the operators of its chain."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable

from .._functions.side_outputs import SideTypes
from .._metrics.counters import TaskCounters
from .._metrics.spark_thread import SparkThread

__all__ = ("TaskEnvironment",)


def _raise(error: BaseException) -> None:
    raise error


@dataclasses.dataclass(frozen=True)
class TaskEnvironment:
    """Where a chain runs; given to its operators once, when they are made.

    Time, randomness and the loop come from here alone, so that the test kit can give its own.

    Args:
        rng: for the jitter of delays.
        attempt: how often Spark has started the task before.
        side_types: the checks of what is written to side outputs; those that nobody reads have none.
        request_batch: asks for the next batch of elements.
        fail: ends the chain with an error.
        own_clock: seconds; the loop's time unless given.
        spark_thread: tells when Spark's thread was away.
    """

    loop: asyncio.AbstractEventLoop
    rng: random.Random
    partition: int = 0
    attempt: int = 0
    side_types: SideTypes = lambda tag: None
    request_batch: Callable[[], None] = lambda: None
    fail: Callable[[BaseException], None] = _raise
    own_clock: Callable[[], float] | None = None
    spark_thread: SparkThread | None = None

    @property
    def clock(self) -> Callable[[], float]:
        """The time that everything in the chain goes by, in seconds."""
        return self.own_clock or self.loop.time

    def counters(self) -> TaskCounters:
        """The counters of one operator, from now on."""
        return TaskCounters(self.clock, self.spark_thread)
