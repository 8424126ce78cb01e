"""A limited step of a task: it has its time and a grace period, and every cancellation ends where it belongs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asyncudf._engine.calls.resources import bounded
from asyncudf._engine.loop.event_loops import GRACE, run_to_end
from asyncudf._engine.loop.limited import within
from asyncudf.testing import VirtualClockLoop
from tests.kit.functions import hang, swallow


def run(main: Any) -> float:
    """How long it took."""
    loop = VirtualClockLoop()
    run_to_end(loop, main, 1)
    return loop.time()


def test_the_limit_takes_its_cancellations_back() -> None:
    async def main() -> None:
        for step in (hang, swallow):
            with pytest.raises(TimeoutError, match="not done within 7 s"):
                await within(7, step())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    assert run(main()) == 7 + 7 + GRACE


def test_cancellations_that_a_step_takes_back_leave_it_its_time() -> None:
    attempts = []

    async def step() -> None:
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    try:
                        await asyncio.sleep(1000)
                    finally:
                        await asyncio.sleep(2)
            attempts.append(asyncio.get_running_loop().time())
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(50))

    async def main() -> None:
        await within(1000, step())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main())
    assert attempts == [4.0 * n for n in range(1, 21)]


def test_a_step_whose_coroutine_is_closed_from_outside_tells_nothing() -> None:
    async def main() -> None:
        step = bounded(hang, "could not be opened", 600.0)
        task = asyncio.ensure_future(step)
        await asyncio.sleep(1)
        step.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert run(main()) == 1
