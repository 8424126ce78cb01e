"""What a task gives the operators of its chain."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable

from .._functions.side_outputs import SideTypes

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
    """

    loop: asyncio.AbstractEventLoop
    rng: random.Random
    partition: int = 0
    attempt: int = 0
    side_types: SideTypes = lambda tag: None
    request_batch: Callable[[], None] = lambda: None
    fail: Callable[[BaseException], None] = _raise
