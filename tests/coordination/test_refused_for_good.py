"""A service that refuses for good ends the whole job; calls that it accepts of one task keep all tasks going."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncudf._limits.health.job import SharedHealth
from tests.kit.coordinators import OnGivenTime, Server, linked
from tests.kit.engines import run_tasks
from tests.kit.errors import is_of_the_task
from tests.kit.limited import ThrottledError, now

pytestmark = pytest.mark.services


async def refused(x: int) -> int:
    await asyncio.sleep(0.1)
    raise ThrottledError(5)


def test_all_tasks_end(server: Server) -> None:
    ends = []

    async def noted(x: int) -> int:
        ends.append(now())
        return await refused(x)

    errors = run_tasks(server, [noted] * 3, range(200), capacity=10, timeout=150, on_error="null")
    assert all(isinstance(one, BaseException) and is_of_the_task(one) for one in errors)
    assert 150 <= ends[-1] <= 170


def accepted_now_and_then() -> Callable[[int], Awaitable[int]]:
    """A call in 40 s."""
    last = -40.0

    async def ask(x: int) -> int:
        nonlocal last
        await asyncio.sleep(0.1)
        if now() - last < 40:
            raise ThrottledError(5)
        last = now()
        return x

    return ask


@pytest.mark.parametrize("together", [True, False], ids=["with a coordinator", "without"])
def test_a_call_of_one_task_keeps_the_others(server: Server, together: bool) -> None:
    """The other is refused for 300 s, and accepted then."""

    async def later(x: int) -> int:
        await asyncio.sleep(0.1)
        if now() < 300:
            raise ThrottledError(5)
        return x

    options: dict[str, Any] = {"capacity": 1, "timeout": 60, "on_error": "null"}
    functions = [accepted_now_and_then(), later]
    one, other = run_tasks(server if together else None, functions, range(12), **options)
    assert not isinstance(one, BaseException)
    assert isinstance(other, BaseException) is not together


async def test_a_call_of_a_task_that_ends_at_once_keeps_the_others(connection: OnGivenTime) -> None:
    """It tells so with its last message: a job may have thousands of tasks that are done sooner than they ask again."""
    other = SharedHealth(linked(connection, "other"), "x", None)
    short = SharedHealth(linked(connection, "short"), "x", None)
    await asyncio.sleep(0.1)
    accepted = short.accepted = now()
    await short.close()
    await asyncio.sleep(0.5)
    assert other.accepted_elsewhere == pytest.approx(accepted, abs=0.01)
    await other.close()
