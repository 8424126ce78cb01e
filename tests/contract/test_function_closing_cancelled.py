"""The task is cancelled while something opens or closes: what has begun to close ends, and nothing stays open."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import run_rows
from tests.kit.bridges import batch, begin_to_close, start
from tests.kit.resources import Manager, breaks_after, closing_with, ends_after

PATIENCE = 20.0  # seconds for what is bound to happen


async def instant(x: int, other: Any, it: Any) -> int:
    return x


# --- while a resource closes ------------------------------------------------------------------------------------------


def test_a_reader_that_has_enough_does_not_cut_a_flush_in_half() -> None:
    begun, stopped, log = threading.Event(), threading.Event(), []
    loops: list[asyncio.AbstractEventLoop] = []

    async def flush() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        await asyncio.to_thread(stopped.wait, PATIENCE)
        await asyncio.sleep(0)
        log.append("flushed")

    async def call(x: int, it: Any) -> int:
        return x

    made = start(call, resources={"it": closing_with(flush)})
    rows = made.pipe(iter([batch(1)]))
    assert next(rows) == [1]
    assert begun.wait(PATIENCE)
    for _ in range(2):
        begin_to_close(made)
    loops[0].call_soon_threadsafe(stopped.set)
    rows.close()  # type: ignore[attr-defined]
    assert log == ["flushed"]


@pytest.mark.parametrize(
    ("other", "told"), [(ends_after(1), "failed: TimeoutError"), (breaks_after(1), "failed: .*OSError: lost the feed")]
)
def test_a_resource_that_fails_does_not_cut_the_end_of_another_in_half(other: Manager, told: str) -> None:
    log = []

    async def flush() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(10)
        log.append("flushed")

    with pytest.raises(AsyncUDFError, match=f"^resource 'other' of instant {told}"):
        run_rows(instant, [1], resources={"other": other, "it": closing_with(flush)})
    assert log == ["flushed"]


def test_what_closes_still_sees_its_own_time_limits_and_task_groups() -> None:
    log: list[Any] = []

    async def flush() -> None:
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(10):
                await asyncio.sleep(1000)
        except TimeoutError:
            log.append(now())
        try:
            async with breaks_after(5)():
                await asyncio.sleep(1000)
        except ExceptionGroup:
            log.append(now())

    run_rows(instant, [1], resources={"other": contextlib.nullcontext, "it": closing_with(flush)})
    assert log == [10, 15]


def test_a_cancellation_that_is_taken_back_by_what_closes_fails_nothing() -> None:
    """As task groups do."""
    tasks: list[Any] = []

    @contextlib.asynccontextmanager
    async def forgiving() -> AsyncIterator[None]:
        tasks.append(task := asyncio.current_task())
        yield
        await asyncio.sleep(10)
        assert task is not None
        assert task.uncancel() == 0

    async def call(x: int, it: Any) -> int:
        asyncio.get_running_loop().call_later(1, tasks[0].cancel)
        return x

    assert run_rows(call, [1], resources={"it": forgiving}) == [1]


# --- while calls end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.5, "resource 'other' of call failed"), (1.5, "call failed in attempt 1.*ValueError: row")]
)
def test_no_client_is_closed_under_a_call_and_the_first_error_is_told(seconds: float, told: str) -> None:
    log = []

    async def close() -> None:
        log.append("client closed")

    async def call(x: int, other: Any, it: Any) -> int:
        if x == 0:
            await asyncio.sleep(1)
            raise ValueError("row")
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append("call ended")
        return x

    with pytest.raises(AsyncUDFError, match=told):
        run_rows(call, [0, 1], resources={"other": ends_after(seconds), "it": closing_with(close)})
    assert log == ["call ended", "client closed"]


def test_no_row_times_out_once_its_call_was_ended() -> None:
    log = []

    async def close() -> None:
        log.append("client closes")
        await asyncio.sleep(10)

    def answer(*_: Any) -> int:
        log.append("timed out")
        return 0

    async def call(x: int, other: Any, another: Any, it: Any) -> int:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            log.append("call ended")
        return x

    resources = {"other": ends_after(1), "another": ends_after(1.5), "it": closing_with(close)}
    with pytest.raises(AsyncUDFError, match="resource 'other' of call failed: TimeoutError"):
        run_rows(call, [1], resources=resources, timeout=3, on_timeout=answer)
    assert log == ["call ended", "client closes"]


# --- while a resource opens -------------------------------------------------------------------------------------------


def test_a_resource_that_is_open_when_its_opening_was_cancelled_is_closed() -> None:
    """As `asyncio.wait_for` of Python 3.11 is, when what it waits for comes together with the cancellation."""
    log = []

    class Client:
        async def __aenter__(self) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            log.append("opened")

        async def __aexit__(self, *error: object) -> None:
            log.append("closed")

    with pytest.raises(AsyncUDFError, match="resource 'other' of instant failed: TimeoutError"):
        run_rows(instant, [1], resources={"other": ends_after(1), "it": Client})
    assert log == ["opened", "closed"]
