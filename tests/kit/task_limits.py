"""What holds for each error that says that a task has too much in flight: of open files, threads or connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import AdaptiveCapacity, CircuitBreaker, FatalError, RetryStrategy
from asyncudf.testing import MemoryStore, run_rows

MOST = 20  # calls at once that the machine, or the client's pool, bears


def fails_the_task(error: Callable[[], BaseException], policy: Any, said: str) -> None:
    """The task fails under this policy; the message names the row, and what to change with `capacity=30`."""

    async def call(x: int) -> int:
        if x == 7:
            raise error()
        return x

    with pytest.raises(FatalError, match=rf"^call failed in attempt 1, .*\(7,\): .*{said}"):
        run_rows(call, range(10), on_error=policy, capacity=30)


def is_kept_nowhere(error: Callable[[], BaseException]) -> None:
    """It is in no store, and opens no circuit breaker."""
    calls, store = [], MemoryStore(error_ttl=60)

    async def call(x: int) -> int:
        calls.append(x)
        raise error()

    for _ in range(2):
        with pytest.raises(FatalError, match="lower capacity=1"):
            run_rows(call, range(9), on_error="null", store=store, breaker=CircuitBreaker(window=1), capacity=1)
    assert calls == [0, 0]


def adaptive_capacity_goes_down(error: Callable[[], BaseException]) -> None:
    running = failed = 0

    async def call(x: int) -> int:
        nonlocal running, failed
        if running >= MOST:
            failed += 1
            raise error()
        running += 1
        await asyncio.sleep(1)
        running -= 1
        return x

    retry = RetryStrategy.exponential_backoff(attempts=12, initial=0.5, maximum=60)
    rows, capacity = range(3000), AdaptiveCapacity(1, 300)
    assert run_rows(call, rows, retry=retry, capacity=capacity, timeout=100_000) == [*rows]
    assert failed < 300
