"""What is opened and closed fails, hangs, or is cancelled: the error that matters is told, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ProcessFunction, ResultFuture
from asyncudf.testing import run_rows, run_stream
from tests.kit.functions import hang, nothing, swallow
from tests.kit.resources import breaks_after, ends_after

NOT_ENDED = "TimeoutError: not done within {}, and not ended when it was cancelled"
OPEN_TIME, CLOSE_TIME = r"60 s \(open_timeout\)", "30 s"
Step = Callable[[], Any]


async def wait_for_one_that_swallows() -> None:
    await asyncio.ensure_future(swallow())


def raising(error: BaseException) -> Step:
    async def step() -> None:
        raise error

    return step


# Each runs one row, which fails if it is 1, by a function that opens and closes as it is told.


def resource(x: int, opens: Step = nothing, closes: Step = nothing) -> None:
    class Manager:
        async def __aenter__(self) -> None:
            await opens()

        async def __aexit__(self, *error: object) -> None:
            await closes()

    async def call(x: int, it: Any) -> int:
        return 1 // (1 - x)

    run_rows(call, [x], resources={"it": Manager})


def async_function(x: int, opens: Step = nothing, closes: Step = nothing) -> None:
    class Rich(AsyncFunction):
        async def open(self, context: Any) -> None:
            await opens()

        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            result_future.complete([1 // (1 - value)])

        async def close(self) -> None:
            await closes()

    run_rows(Rich(), [x])


def process_function(x: int, opens: Step = nothing, closes: Step = nothing) -> None:
    class Plain(ProcessFunction):
        async def open(self, context: Any) -> None:
            await opens()

        def process_element(self, value: Any, context: Any, collector: Any) -> None:
            collector.collect({"x": 1 // (1 - value["x"])})

        async def close(self) -> None:
            await closes()

    run_stream(lambda stream: stream.process(Plain(), "x int"), [{"x": x}], "x int")


OPEN = {
    resource: "resource 'it' of call could not be opened: ",
    async_function: r"Rich\.open\(\) failed: ",
    process_function: r"Plain\.open\(\) failed: ",
}
CLOSE = {
    resource: "resource 'it' of call could not be closed: ",
    async_function: r"Rich\.close\(\) failed: ",
    process_function: r"Plain\.close\(\) failed: ",
}
EXITS = [asyncio.CancelledError("not now"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), OSError("no")]


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("run", OPEN)
def test_whatever_is_raised_while_opening_is_told(run: Any, error: BaseException) -> None:
    with pytest.raises(AsyncUDFError, match=OPEN[run] + type(error).__name__):
        run(0, opens=raising(error))


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("run", CLOSE)
def test_whatever_is_raised_while_closing_is_told_unless_a_row_has_failed(run: Any, error: BaseException) -> None:
    with pytest.raises(AsyncUDFError, match=CLOSE[run] + type(error).__name__):
        run(0, closes=raising(error))
    with pytest.raises(AsyncUDFError, match="ZeroDivisionError"):
        run(1, closes=raising(error))


@pytest.mark.parametrize("run", OPEN)
def test_what_does_not_open_or_close_in_time_is_cancelled(run: Any) -> None:
    with pytest.raises(AsyncUDFError, match=f"{OPEN[run]}TimeoutError: not done within {OPEN_TIME}$"):
        run(0, opens=hang)
    with pytest.raises(AsyncUDFError, match=f"{CLOSE[run]}TimeoutError: not done within {CLOSE_TIME}$"):
        run(0, closes=hang)
    with pytest.raises(AsyncUDFError, match="ZeroDivisionError"):
        run(1, closes=hang)


@pytest.mark.parametrize("step", [swallow, wait_for_one_that_swallows])
@pytest.mark.parametrize("run", OPEN)
def test_what_swallows_its_cancellation_while_opening_or_closing_is_given_up(run: Any, step: Step) -> None:
    with pytest.raises(AsyncUDFError, match=OPEN[run] + NOT_ENDED.format(OPEN_TIME)):
        run(0, opens=step)
    with pytest.raises(AsyncUDFError, match=CLOSE[run] + NOT_ENDED.format(CLOSE_TIME)):
        run(0, closes=step)
    with pytest.raises(AsyncUDFError, match="ZeroDivisionError"):
        run(1, closes=step)


async def await_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    await task


@pytest.mark.parametrize("run", OPEN)
def test_one_that_waits_for_its_own_task_is_told_at_once(run: Any) -> None:
    with pytest.raises(AsyncUDFError, match=OPEN[run] + "RuntimeError: Task cannot await on itself"):
        run(0, opens=await_itself)
    with pytest.raises(AsyncUDFError, match=CLOSE[run] + "RuntimeError: Task cannot await on itself"):
        run(0, closes=await_itself)


pump, patient = breaks_after(1), ends_after(1)


@contextlib.asynccontextmanager
async def meddler() -> AsyncIterator[None]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(1, task.cancel)
    yield


@contextlib.asynccontextmanager
async def slow() -> AsyncIterator[None]:
    await asyncio.sleep(3)
    yield
    await asyncio.sleep(3)


BROKEN = {
    pump: "resource 'it' of {} failed: ExceptionGroup: .*: OSError: lost the feed",
    patient: "resource 'it' of {} failed: .*TimeoutError",
    meddler: r"code that runs in the task has cancelled it.*called cancel\(\)",
}


@pytest.mark.parametrize("manager", BROKEN)
@pytest.mark.parametrize("when", ["between rows", "another one opens", "another one closes"])
def test_a_resource_that_fails_and_cancels_the_task_is_told(manager: Any, when: str) -> None:
    async def waits(x: int, it: Any, other: Any) -> None:
        await asyncio.sleep(10 * x)

    async def beside(x: int, it: Any, other: Any) -> None: ...

    ends = {"another one opens": (waits, slow), "another one closes": (beside, slow)}
    function, other = ends.get(when, (waits, contextlib.nullcontext))
    with pytest.raises(AsyncUDFError, match=BROKEN[manager].format(function.__name__)):
        run_rows(function, [1], resources={"it": manager, "other": other})


def test_a_row_that_fails_together_with_a_task_group_wins() -> None:
    @contextlib.asynccontextmanager
    async def group() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as opened:
            yield opened

    async def call(x: int, group: asyncio.TaskGroup) -> None:
        told = asyncio.Event()

        async def tell() -> None:
            told.set()
            raise OSError("lost the feed")

        group.create_task(tell())
        await told.wait()
        raise ValueError("no feed")

    with pytest.raises(AsyncUDFError, match=r"call failed in attempt 1.*ValueError: no feed"):
        run_rows(call, [1], resources=group)


def test_opening_and_closing_run_in_one_task_also_in_a_chain() -> None:
    tasks = []

    class Plain(ProcessFunction):
        async def open(self, context: Any) -> None:
            await asyncio.sleep(1)
            tasks.append(asyncio.current_task())

        def process_element(self, value: Any, context: Any, collector: Any) -> None:
            collector.collect(value)

        async def close(self) -> None:
            await asyncio.sleep(1)
            tasks.append(asyncio.current_task())

    run_stream(lambda s: s.process(Plain(), "x int").process(Plain(), "x int"), [{"x": 0}], "x int")
    assert len(tasks) == 4
    assert len(set(tasks)) == 1


@pytest.mark.parametrize(("seconds", "told"), [(4, None), (6, "cancelled, and not ended within 5 s")])
def test_an_opening_that_has_timed_out_itself_has_the_grace_period_to_clean_up(seconds: int, told: str | None) -> None:
    async def connect() -> None:
        with contextlib.suppress(TimeoutError):  # it goes on without
            async with asyncio.timeout(2):
                try:
                    await hang()
                finally:
                    await asyncio.sleep(seconds)

    if told is None:
        resource(0, opens=connect)
    else:
        with pytest.raises(AsyncUDFError, match=f"{OPEN[resource]}TimeoutError: {told}$"):
            resource(0, opens=connect)


def test_a_generator_that_was_given_up_is_never_asked_again() -> None:
    """The collector would ask it outside any loop, where it never returns."""

    @contextlib.asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await swallow()

    async def call(x: int, it: Any) -> None: ...

    with pytest.raises(AsyncUDFError, match=CLOSE[resource] + NOT_ENDED.format(CLOSE_TIME)):
        run_rows(call, [1], resources={"it": stubborn})
    gc.collect()
