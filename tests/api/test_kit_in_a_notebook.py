"""The test kit under a running loop, as in a cell of a notebook: it runs in a thread of its own, or says why not."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows, run_stream
from tests.kit.threads import left_threads


async def slow(x: int) -> int:
    await asyncio.sleep(60)
    return 2 * x


def in_a_notebook(cell: Callable[[], Any]) -> Any:
    async def notebook() -> Any:
        return cell()

    loop = asyncio.new_event_loop()  # asyncio.run() would take the interrupt for itself
    try:
        return loop.run_until_complete(notebook())
    finally:
        loop.close()


def test_the_kit_just_runs() -> None:
    """No `await`, though a loop runs in this thread; errors arrive, and the caller's context variables are seen."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def call(x: int) -> str:
        if x == 3:
            raise LookupError("no such row")
        return name.get()

    def cell() -> Any:
        name.set("Ada")
        return run_rows(call, [1])

    assert in_a_notebook(cell) == ["Ada"]
    assert in_a_notebook(lambda: run_rows(slow, [1, 2])) == [2, 4]
    found = in_a_notebook(lambda: run_stream(lambda s: s.ordered_wait(slow), [{"x": 1}], "x bigint"))
    assert found == [{"x": 1, "slow": 2}]
    with pytest.raises(AsyncUDFError, match=r"call failed in attempt 1.*LookupError: no such row"):
        in_a_notebook(lambda: run_rows(call, [3]))


def wakes() -> None:
    """Ctrl-C while the main thread waits: the signal interrupts the wait."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]


def wakes_nobody() -> None:
    """Ctrl-C just before the main thread waits: it is noted, and interrupts no wait that begins after it."""
    _thread.interrupt_main()


def main_thread_waits() -> bool:
    """For the calls to end, not for their thread to start."""
    frame, names = sys._current_frames().get(threading.main_thread().ident or 0), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[0] == "wait" and "run_apart" in names and "start" not in names


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """A process that was started in the background does not heed it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
@pytest.mark.parametrize("interrupt", [wakes, wakes_nobody])
def test_an_interrupt_ends_the_calls_and_leaves_no_thread(interrupt: Callable[[], None]) -> None:
    cancelled: list[int] = []
    timed_out: list[int] = []

    async def interrupted(x: int) -> int:
        while not main_thread_waits():
            await asyncio.sleep(0)
        interrupt()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(x)
            raise
        return x

    def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            run_rows(interrupted, [1], clock="real", timeout=10, on_timeout=timed_out.append)

    in_a_notebook(cell)
    assert (cancelled, timed_out) == ([1], [])
    assert left_threads() == []


def test_the_harness_says_what_to_do() -> None:
    """It keeps its loop between calls, so it cannot move to another thread by itself."""
    with pytest.raises(AsyncUDFError, match=r"OperatorHarness runs its own event loop.*asyncio\.to_thread"):
        in_a_notebook(lambda: OperatorHarness(ManualFunction()))
