"""Functions that fail, hang, or do not heed their cancellation; and one body as each kind of function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pandas as pd

from asyncudf import AsyncFunction, ResultFuture, RetryStrategy

FIXED = RetryStrategy.fixed_delay(attempts=3, delay=1.0)


def busy(attempts: int, elapsed: float) -> dict[str, Any]:
    """What is captured of a row on which a `Flaky` has failed for good."""
    return {"type": "ValueError", "message": "busy", "attempts": attempts, "elapsed": elapsed, "status": None}


KINDS = ("coroutine", "generator", "vectorized", "AsyncFunction")


def of_kind(kind: str, body: Callable[[Any], Awaitable[Any]]) -> Any:
    """A function of that kind, called `call`, of one parameter: the result of each row is what `body` gives for it."""
    if kind == "generator":

        async def call(x: Any) -> AsyncIterator[Any]:
            yield await body(x)

    elif kind == "vectorized":

        async def call(x: pd.Series) -> pd.Series:  # type: ignore[no-redef]
            return pd.Series([await body(row) for row in x], dtype=object)

    elif kind == "AsyncFunction":

        class call(AsyncFunction):  # type: ignore[no-redef]  # noqa: N801 - messages show it
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([await body(value)])

        return call()
    else:

        async def call(x: Any) -> Any:  # type: ignore[no-redef,misc]
            return await body(x)

    return call


class Flaky:
    """Fails a given number of times for each row, then returns the time of success."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.failures = failures
        self.error = error or ValueError("busy")
        self.calls: list[tuple[Any, float]] = []

    async def __call__(self, x: Any) -> float:
        now = asyncio.get_running_loop().time()
        self.calls.append((x, now))
        if sum(row == x for row, _ in self.calls) <= self.failures:
            raise self.error
        return now

    def times(self, x: Any) -> list[float]:
        return [time for row, time in self.calls if row == x]


async def hangs(x: Any) -> Any:
    if x == "hang":
        await asyncio.get_running_loop().create_future()
    return x


async def sleepy(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def instant(x: Any) -> Any:
    return x


async def nothing() -> None: ...


async def swallow() -> None:
    """Never ends, and takes no cancellation for one."""
    while True:
        try:
            await asyncio.sleep(1e9)
        except BaseException:
            continue


async def hang() -> None:
    await asyncio.sleep(1e9)
