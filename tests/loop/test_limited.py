"""A limited step of a task: it has its time and a grace period, and every cancellation ends where it belongs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf._calls.resources import bounded
from asyncudf._loop.event_loops import GRACE, run_to_end
from asyncudf._loop.limited import within
from asyncudf.testing import VirtualClockLoop
from tests.kit.functions import hang, nothing, swallow


def run(main: Any) -> float:
    """How long it took."""
    loop = VirtualClockLoop()
    run_to_end(loop, main, 1)
    return loop.time()


def cancelled_by_another(step: Any, after: float, took: list[float]) -> Any:
    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.call_later(after, task.cancel)
        try:
            await within(1000, step())
        finally:
            took.append(loop.time())
            assert task.cancelling() == 1

    return main()


def test_one_that_does_not_heed_anothers_cancellation_has_the_grace_period() -> None:
    took: list[float] = []
    with pytest.raises(TimeoutError, match=f"^cancelled, and not ended within {GRACE:g} s$"):
        run(cancelled_by_another(swallow, 10, took))
    assert 10 + GRACE <= took[0] <= 10 + 2.01 * GRACE


def test_a_cancellation_that_was_swallowed_counts_when_the_step_is_done() -> None:
    async def step() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)

    took: list[float] = []
    with pytest.raises(AsyncUDFError, match="has cancelled it"):
        run(cancelled_by_another(step, 10, took))
    assert took == [10]


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


def test_a_step_whose_coroutine_is_closed_from_outside_tells_nothing() -> None:
    async def main() -> None:
        step = bounded(hang, "could not be opened")
        task = asyncio.ensure_future(step)
        await asyncio.sleep(1)
        step.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert run(main()) == 1


def test_a_step_sees_what_it_waits_for() -> None:
    async def step() -> list[Any]:
        loop = asyncio.get_running_loop()
        failed, given_up = loop.create_future(), asyncio.ensure_future(hang())
        loop.call_soon(failed.set_exception, OSError("no"))
        loop.call_soon(given_up.cancel)
        told: list[Any] = [await asyncio.sleep(0, "slept"), await asyncio.gather(asyncio.sleep(1, 1), nothing())]
        for waited_for in (failed, given_up):
            try:
                await waited_for
            except BaseException as error:
                told.append(type(error))
        return told

    async def main() -> None:
        assert await within(10, step()) == ["slept", [1, None], OSError, asyncio.CancelledError]

    run(main())


def test_a_generator_that_does_not_end_is_left_after_the_grace_period() -> None:
    async def stubborn() -> AsyncIterator[int]:
        while True:
            try:
                yield 1
            except BaseException:
                with contextlib.suppress(BaseException):
                    await swallow()

    kept = []

    async def main() -> None:
        generator = stubborn()
        kept.append(generator)
        await anext(generator)

    assert run(main()) <= 3 * GRACE
