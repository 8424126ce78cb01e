"""Tests that are coroutines, and fixtures for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import TypeVar

import pytest

__all__ = ("entered", "run_coroutine")

Entered = TypeVar("Entered")


def run_coroutine(test: pytest.Function) -> bool | None:
    """Run it on the loop of a fixture that it uses, if one gives a runner, else on one of its own.

    Returns:
        None if it is no coroutine.
    """
    if not inspect.iscoroutinefunction(test.obj):
        return None
    given = next((one for one in test.funcargs.values() if isinstance(one, asyncio.Runner)), None)
    with asyncio.Runner() if given is None else nullcontext(given) as runner:
        runner.run(test.obj(**{name: test.funcargs[name] for name in inspect.signature(test.obj).parameters}))
    return True


@contextmanager
def entered(runner: asyncio.Runner, make: Callable[[], AbstractAsyncContextManager[Entered]]) -> Iterator[Entered]:
    """An asynchronous context manager for a fixture; it is made on the loop of the test."""

    async def enter() -> AbstractAsyncContextManager[Entered]:
        manager = make()
        await manager.__aenter__()
        return manager

    manager = runner.run(enter())
    try:
        yield manager  # type: ignore[misc]  # each that we have enters itself
    finally:
        runner.run(manager.__aexit__(None, None, None))
