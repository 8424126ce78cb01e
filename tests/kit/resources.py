"""Resources that end, break or close as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

Manager = Callable[[], contextlib.AbstractAsyncContextManager[Any]]


def ends_after(seconds: float) -> Manager:
    """Cancels the task so many seconds after it was opened."""

    @contextlib.asynccontextmanager
    async def limit() -> AsyncIterator[None]:
        async with asyncio.timeout(seconds):
            yield

    return limit


def breaks_after(seconds: float) -> Manager:
    """The same, by a task of its own."""

    async def lost() -> None:
        await asyncio.sleep(seconds)
        raise OSError("lost the feed")

    @contextlib.asynccontextmanager
    async def pump() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(lost())
            yield

    return pump


def closing_with(close: Callable[[], Any]) -> Manager:
    class Client:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: object) -> None:
            await close()

    return Client
