"""The end of a task's loop: nothing is left behind whatever the user's code does, and the first error is told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError, FatalError, RetryStrategy, http
from asyncudf._engine.loop import event_loops
from asyncudf.testing import run_rows
from tests.kit.bridges import batch, start

LOOPS = ["asyncio", "uvloop"]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


def results(bridge: Any, *rows: Any) -> list[Any]:
    return [value for written in bridge.pipe(iter([batch(*rows)])) for value in written]


class Loops(list[asyncio.AbstractEventLoop]):
    """A resource that notes on which loop it was opened."""

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        self.append(asyncio.get_running_loop())
        yield


async def share(x: int, it: Any) -> float:
    return 1 // x


# --- errors -----------------------------------------------------------------------------------------------------------


def exits(error: BaseException) -> Any:
    @contextlib.asynccontextmanager
    async def background() -> AsyncIterator[None]:
        async def run() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                raise error

        task = asyncio.ensure_future(run())
        task.add_done_callback(asyncio.Task.exception)  # not to be logged
        await asyncio.sleep(0)
        yield

    return background


@contextlib.asynccontextmanager
async def stops() -> AsyncIterator[None]:
    yield
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


STOPPED = r"code that runs in the task has stopped its event loop: it must not call loop\.stop\(\)$"
ENDS = [
    (exits(SystemExit(3)), "SystemExit: 3$"),
    (exits(KeyboardInterrupt()), "KeyboardInterrupt: $"),
    (stops, STOPPED),
]


@pytest.mark.parametrize(("manager", "told"), ENDS)
def test_what_breaks_the_end_is_told_as_our_error_unless_a_row_has_failed(manager: Any, told: str, loop: str) -> None:
    """A bare SystemExit would end Spark's worker, as if it had crashed."""
    for x, expected in ((1, told), (0, "ZeroDivisionError")):
        used = Loops()

        async def call(x: int, it: Any, loop_of: Any) -> float:
            return await share(x, it)

        bridge = start(call, resources={"loop_of": used, "it": manager}, loop=loop)
        with pytest.raises(AsyncUDFError, match=expected):
            results(bridge, x)
        assert used[0].is_closed()
        assert not [task for task in asyncio.all_tasks(used[0]) if not task.done()]


def test_a_call_that_stops_the_loop_is_told(loop: str) -> None:
    closed = []

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[None]:
        try:
            yield
        finally:
            closed.append(1)

    async def call(x: int, it: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1000)

    with pytest.raises(AsyncUDFError, match=STOPPED):
        results(start(call, resources={"it": client}, loop=loop), 1)
    assert closed == [1]


def test_the_kit_is_left_by_an_interrupt_as_it_is() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def call(x: int) -> None:
        asyncio.ensure_future(interrupt()).add_done_callback(asyncio.Task.exception)  # not to be logged
        await asyncio.sleep(1000)

    with pytest.raises(KeyboardInterrupt):
        run_rows(call, [1])


# --- tasks ------------------------------------------------------------------------------------------------------------


class Supervisor:
    """Starts its task again whenever it has ended."""

    async def __aenter__(self) -> None:
        self.run()

    def run(self, _: object = None) -> None:
        self.task = asyncio.get_running_loop().create_task(asyncio.sleep(1000))
        self.task.add_done_callback(self.run)

    async def __aexit__(self, *error: object) -> None: ...


class Phoenix:
    """A task that starts another in its own end."""

    async def __aenter__(self) -> None:
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            self.task = asyncio.ensure_future(self.run())

    async def __aexit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("manager", [Supervisor, Phoenix])
@pytest.mark.filterwarnings("error")
def test_tasks_that_are_started_again_and_again_end_with_the_loop(
    manager: Any, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    with caplog.at_level(logging.ERROR):
        assert results(start(share, resources={"it": manager}, loop=loop), 1) == [1]
        gc.collect()
    assert caplog.records == []


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def none_of(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Threads that cannot be started, by the beginning of their name."""
    names: set[str] = set()
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return names


def square(x: int) -> int:
    return x * x


async def in_a_thread(x: int) -> int:
    return await asyncio.to_thread(square, x)


@pytest.mark.parametrize("function", [square, in_a_thread], ids=["def", "to_thread"])
@pytest.mark.parametrize("policy", ["raise", "null", "capture"])
def test_a_thread_that_cannot_be_started_is_no_rows_fault(none_of: set[str], policy: str, function: Any) -> None:
    """With on_error="null" healthy rows were NULL."""
    none_of.add("asyncudf-call")
    way_out = r"^\w+ failed in attempt 1, .*: lower capacity=30, or raise the limit \(of the container: pids;"
    with pytest.raises(FatalError, match=way_out):
        results(start(function, on_error=policy, returnType="bigint", capacity=30), 1, 2)


def test_such_a_call_is_tried_again_as_long_as_attempts_are_left(none_of: set[str]) -> None:
    none_of.add("asyncudf-call")

    def again(error: BaseException) -> bool:
        none_of.clear()
        return http.is_retryable(error)

    retry = RetryStrategy.fixed_delay(attempts=2, delay=0, retry_on=again)
    assert results(start(square, retry=retry, capacity=1), 3) == [9]


def test_a_call_waits_for_another_thread_where_its_own_cannot_be_started(none_of: set[str]) -> None:
    ran = []

    def call(x: int) -> int:
        none_of.add("asyncudf-call")
        ran.append(x)
        return x

    assert results(start(call, capacity=5), *range(20)) == list(range(20))
    assert sorted(ran) == list(range(20))


@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
@pytest.mark.parametrize("policy", ["raise", "null", "capture"])
def test_a_call_that_waits_for_one_until_its_row_is_late_fails_the_task(
    none_of: set[str], monkeypatch: pytest.MonkeyPatch, policy: str, limit: str
) -> None:
    """With on_error="null" 264 of 300 healthy rows were NULL, and had not run."""
    monkeypatch.setattr(event_loops, "GRACE", 0.1)
    none_of.add("asyncudf-call-1")  # the second one
    release = threading.Event()

    def call(x: int) -> int:
        release.wait()
        return x

    way_out = r"^call failed in attempt 1, .* no result within .*: lower capacity=2, or raise .*pyspark.memory"
    try:
        with pytest.raises(FatalError, match=way_out):
            results(start(call, on_error=policy, capacity=2, on_timeout=lambda x: -x, **{limit: 0.05}), 1, 2)
    finally:
        release.set()


def test_a_task_whose_loop_gets_no_thread_says_what_to_raise(none_of: set[str]) -> None:
    none_of.add("asyncudf-loop")
    with pytest.raises(AsyncUDFError, match=r"no thread for its event loop; raise the limit .*pids.*pyspark.memory"):
        start(square)


def test_where_calls_run_on_uvloop_the_class_of_their_loop_is_uvloops() -> None:
    """A library that looks for uvloop in order to leave it alone saw a class of asyncudf, and changed the loop."""
    uvloop = pytest.importorskip("uvloop")

    async def looks(x: int) -> str:
        return repr(type(asyncio.get_running_loop()))

    assert results(start(looks, loop="uvloop"), 1) == [repr(uvloop.Loop)]
