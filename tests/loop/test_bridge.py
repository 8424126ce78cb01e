"""Spark's thread and the loop's: nothing is left behind on any path, and no error is hidden. Real threads, no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture
from asyncudf._engine.loop import bridge as bridge_module
from asyncudf._engine.loop import event_loops
from asyncudf._engine.loop.bridge import Bridge, SparkSide
from asyncudf.queues import StreamRecord
from tests.kit.bridges import batch, begin_to_close, start
from tests.kit.threads import left_threads, loop_threads


def batches(*contents: Iterable[Any]) -> Iterator[Any]:
    for content in contents:
        yield batch(*content)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    assert left_threads() == []
    yield
    for thread in left_threads():  # the pool's end after their loop has
        thread.join()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loops, "GRACE", 0.2)


async def instant(x: int) -> int:
    return x


def test_batches_go_in_and_results_come_out_in_order() -> None:
    out = list(start(instant).pipe(batches(range(10), range(10, 25), [])))
    assert [x for batch in out for x in batch] == list(range(25))


def test_large_results_leave_in_batches_that_are_bounded_in_bytes() -> None:
    async def page(x: int) -> bytes:
        return b"x" * 2**20

    sizes = [sum(map(len, batch)) for batch in start(page).pipe(batches(range(99)))]
    assert sum(sizes) == 99 * 2**20
    assert len(sizes) > 1, "not all at once"
    assert max(sizes) <= 64 * 2**20


def test_at_most_one_batch_is_read_ahead_of_the_one_in_work() -> None:
    called: list[int] = []

    async def call(x: int) -> int:
        called.append(x)
        await asyncio.sleep(0)
        return x

    def source() -> Iterator[Any]:
        for number, each in enumerate(batches(*[range(3)] * 10)):
            assert len(called) >= 3 * (number - 1), "all batches but the last read have been admitted"
            yield each

    out = start(call, capacity=2, queue_size=2).pipe(source())
    assert sum(len(batch) for batch in out) == 30


def test_a_sign_of_life_is_no_batch_that_spark_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "SILENCE", 0.0)
    told: list[str] = []

    class Silent:
        """Emits a batch once it is fed, and ends when Spark has taken it."""

        def __init__(self, loop: Any, request_batch: Any, emit: Callable[[Any], None]) -> None:
            self.request_batch, self.emit = request_batch, emit
            self.is_fed, self.is_taken = asyncio.Event(), asyncio.Event()

        def feed(self, batch: Any) -> None:
            self.is_fed.set()

        def end_of_input(self) -> None: ...

        def taken(self) -> None:
            told.append("taken")
            self.is_taken.set()

        async def run(self) -> None:
            self.request_batch()
            await self.is_fed.wait()
            self.emit(["row"])
            await self.is_taken.wait()

    spark = SparkSide[list[str]](empty_batch=list)
    with contextlib.closing(Bridge(Silent, 1, asyncio.new_event_loop(), spark)) as bridge:
        assert not any(bridge.until_requested())
        results = bridge.finish()
        assert [next(results), next(results)] == [[], []]
        bridge.feed([])
        assert [batch for batch in islice(results, 1_000_000) if batch] == [["row"]]
    assert told == ["taken"]


def test_a_loop_that_has_just_ended_does_not_hide_the_error() -> None:
    """'Event loop is closed' must never be what the user reads."""

    loops: list[asyncio.AbstractEventLoop] = []

    async def call(x: int) -> int:
        loops.append(asyncio.get_running_loop())
        raise ValueError("first")

    bridge = start(call)
    (thread,) = loop_threads()
    list(bridge.until_requested())
    bridge.feed(batch(1))
    thread.join()
    assert loops[0].is_closed()
    list(bridge.until_requested())
    bridge.feed(batch(1))
    with pytest.raises(AsyncUDFError, match="first"):
        list(bridge.finish())
    bridge.close()


def test_a_reader_that_stops_cancels_the_calls() -> None:
    ended = []

    async def call(x: int) -> int:
        if x == 0:
            return x
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(x)
        return x

    out = start(call).pipe(batches([0, 1, 2]))
    assert next(out) == [0]
    out.close()  # type: ignore[attr-defined]
    assert sorted(ended) == [1, 2]


def test_an_error_of_the_source_ends_the_calls() -> None:
    def source() -> Iterator[Any]:
        yield from batches([1])
        raise OSError("the stream broke")

    with pytest.raises(OSError, match="the stream broke"):
        list(start(instant).pipe(source()))


def test_a_coroutine_that_refuses_to_end_is_left_after_the_grace_period(short_grace: None) -> None:
    async def call(x: int) -> int:
        while x:
            try:
                await asyncio.sleep(1000)
            except BaseException:
                continue
        return x

    assert list(start(call, timeout=0.05, on_error="null").pipe(batches([1]))) == [[None]]


async def soon(x: int) -> int:
    await asyncio.sleep(0.01)
    return x


async def after_a_flush(x: int) -> int:
    await asyncio.sleep(0.3 * x)
    return x


@pytest.mark.parametrize("function", [instant, soon, after_a_flush])
def test_an_output_that_fails_ends_the_task_and_not_silently(function: Any) -> None:
    def broken(*_: Any) -> list[Any]:
        raise RuntimeError("cannot write")

    bridge = start(function, write=broken)
    with pytest.raises(RuntimeError, match="cannot write"):
        list(bridge.pipe(batches([0, 1])))


def test_a_result_future_delivers_on_the_loops_thread_wherever_it_is_completed() -> None:
    where: list[int] = []

    async def run() -> None:
        future = ResultFuture("f", asyncio.get_running_loop(), lambda *_: where.append(threading.get_ident()))
        await asyncio.to_thread(future.complete, [1])
        await future.wait()

    asyncio.run(run())
    assert where == [threading.get_ident()]


def test_a_result_future_completed_after_the_end_is_ignored() -> None:
    kept: list[ResultFuture] = []

    class Forgets(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            kept.append(result_future)

    list(start(Forgets(), timeout=0.05, on_error="null").pipe(iter([[StreamRecord(1)]])))
    kept[0].complete(["late"])


def test_a_bridge_that_is_stopped_before_it_has_begun_builds_nothing() -> None:
    stopped, built = threading.Event(), []

    class LateLoop(asyncio.SelectorEventLoop):
        def set_default_executor(self, executor: Any) -> None:
            stopped.wait(10)
            super().set_default_executor(executor)

    def build(*_: Any) -> Any:
        built.append(1)
        raise OSError("not to be built")

    made: Bridge[Any, Any] = Bridge(build, 1, LateLoop())
    begin_to_close(made)
    stopped.set()
    for _ in range(2):
        with pytest.raises(AsyncUDFError, match=r"^the task was cancelled$"):
            list(made.pipe(iter([1])))
    assert loop_threads() == []
    assert built == []


def test_the_wait_for_the_first_batch_is_told() -> None:
    """It is a part of the task's time in which it waited for its input."""
    waited: list[float] = []

    class Through:
        def pipe(self, batches: Iterator[Any]) -> Iterator[Any]:
            return batches

    def started(first: Any, seconds: float) -> Any:
        waited.append(seconds)
        return Through()

    assert list(bridge_module.pipe(iter(["first", "second"]), started, str.upper)) == ["FIRST", "SECOND"]
    assert 0 <= waited[0] < 60
