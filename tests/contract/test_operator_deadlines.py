"""A row has until its deadline, counted from its start; then it ends, whatever its call does. Virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import timedelta
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncTimeoutError, ResultFuture, RetryStrategy
from asyncudf.testing import ManualFunction, OperatorHarness, VirtualClockLoop, run_rows, run_stream
from tests.kit.clocks import HandClock
from tests.kit.functions import hangs


class TestDeadline:
    def test_it_is_a_timeout_error_too(self) -> None:
        with pytest.raises(TimeoutError, match=r"hangs failed in attempt 1.*no result within 5 s"):
            run_rows(hangs, ["hang"], timeout=timedelta(seconds=5))
        with pytest.raises(AsyncTimeoutError, match="within 180 s"):
            run_rows(hangs, ["hang"])
        with pytest.raises(AsyncTimeoutError, match="attempt 1 gave no result within 2 s"):
            run_rows(hangs, ["hang"], attempt_timeout=2.0)

    def test_the_call_is_cancelled_for_real(self) -> None:
        """Its coroutine gets a CancelledError at the deadline and is not left running."""
        cancelled = []

        async def call(x: int) -> int:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append((x, asyncio.get_running_loop().time()))
                raise
            return x

        with OperatorHarness(call, timeout=2.0, on_error="null") as harness:
            harness.put(1)
            harness.advance(3.0)
            assert cancelled == [(1, 2.0)]

    @pytest.mark.parametrize("mode", ["ordered", "unordered"])
    def test_a_coroutine_that_swallows_its_cancellation_starves_nobody(self, mode: str) -> None:
        async def stubborn(x: int) -> int:
            while x == 0:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)
            await asyncio.sleep(1)
            return x

        function = OperatorHarness(stubborn, timeout=5.0, on_error="null", capacity=1, output_mode=mode)
        with function as harness:
            harness.put(0, 1, 2)
            harness.advance(5.1)
            assert harness.output == [None], "completed at once, whether or not the coroutine obeys"
            harness.advance(2.0)
            assert harness.output == [None, 1, 2], "its slot went to the next row"

    @pytest.mark.parametrize(
        ("answer", "got"),
        [
            (lambda row, future: future.complete([row, "late"]), ["a", "late"]),
            (lambda row, future: [future.complete([one]) for one in ("first", "second")], ["first"]),
            (lambda row, future: None, [None]),
        ],
        ids=["own", "the first one wins", "forgotten: a timeout"],
    )
    def test_an_async_function_may_give_its_own_answer(self, answer: Any, got: list[Any]) -> None:
        class Patient(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                await asyncio.sleep(100)

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                answer(value, result_future)

        assert run_rows(Patient(), ["a"], timeout=1.0, on_error="null") == got

    def test_a_row_that_times_out_while_it_waits_for_a_slot_is_not_called_again(self) -> None:
        function = ManualFunction()
        retry = RetryStrategy.fixed_delay(attempts=9, delay=1.0)
        with OperatorHarness(function, capacity=1, retry=retry, timeout=5.0, on_error="null") as harness:
            harness.put("a")
            harness.fail("a", ValueError())
            harness.put("b")
            harness.advance(4.9)
            assert function.running == ["b"], "the retry of a is ready and waits for the slot"
            harness.advance(0.2)
            assert harness.output[0] is None
            harness.advance(100)
            assert function.calls == ["a", "b"]

    def test_what_runs_when_others_time_out_has_its_own_time(self) -> None:
        """The timer of the first row that started looks at all rows; it is set again by the next one that starts."""

        async def call(x: float) -> float:
            await asyncio.sleep(x)
            return x

        times = list[float]()
        with OperatorHarness(call, timeout=4.0, on_error="null", capacity=2, output_mode="unordered") as harness:
            harness.put(9.0, 3.0, 9.0, 1.0, 9.0)
            for number in range(1, 20):
                harness.advance(0.5)
                times += [number / 2] * (len(harness.output) - len(times))
            assert harness.output == [3.0, None, 1.0, None, None]
        assert times == [3.0, 4.0, 5.0, 7.0, 9.0]

    @pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
    def test_those_of_one_moment_end_in_the_order_of_their_rows(self, limit: str) -> None:
        cancelled = []

        async def call(x: int) -> int:
            try:
                return await asyncio.sleep(9 + x / 100, x)
            except asyncio.CancelledError:
                cancelled.append(x)
                raise

        options: Any = {limit: 2.0, "on_error": "null"}
        assert run_rows(call, range(40), output_mode="unordered", **options) == [None] * 40
        assert cancelled == [*range(40)]

    def test_a_thread_that_is_late_keeps_neither_its_row_nor_its_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        clock, release = HandClock.of_the_kit(monkeypatch), threading.Event()

        def call(x: int) -> int:
            if x == 0:
                clock.pass_time(1.0)
                release.wait(60)
            if x == 4:
                release.set()
            return x

        got = run_rows(call, range(5), clock="real", capacity=1, timeout=0.2, on_error="null")
        assert got == [None, 1, 2, 3, 4]


class Eternal(AsyncFunction):
    """Gives its result, then never ends by itself."""

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.ended: list[float] = []

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        await asyncio.sleep(self.pause)
        result_future.complete([value])
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.append(asyncio.get_running_loop().time())


def test_each_row_has_a_deadline_of_its_own_counted_from_its_start() -> None:
    function = ManualFunction()
    with OperatorHarness(function, timeout=5.0, on_error="null", output_mode="unordered") as harness:
        for row in "abc":
            harness.put(row)
            harness.advance(0.5)
        harness.complete("b", "B")
        harness.advance(3.4)
        assert (harness.output, function.running) == (["B"], ["a", "c"]), "4.9 s: none is late"
        harness.advance(0.2)
        assert (harness.output, function.running) == (["B", None], ["c"])
        harness.advance(0.8)
        assert function.running == ["c"], "5.9 s: the deadline of b is over, that of c is not"
        harness.advance(0.2)
        assert (harness.output, function.running) == (["B", None, None], [])
        harness.put("d")
        harness.advance(4.9)
        assert function.running == ["d"]
        harness.advance(0.2)
        assert harness.output == ["B", None, None, None], "the watch goes on when all rows were done for a while"


def test_what_runs_behind_a_call_is_no_time_of_the_next_one() -> None:
    """The slot's next call begins when the last row has passed through the chain, not when its call has ended."""

    async def call(x: int) -> int:
        await asyncio.sleep(0.5)
        return x

    def busy(row: dict[str, int]) -> dict[str, int]:
        asyncio.get_running_loop().block(0.9)  # type: ignore[attr-defined]
        return row

    found = run_stream(
        lambda s: s.ordered_wait(call, timeout=1.0, capacity=1, queue_size=1_000).map(busy),
        [{"x": x} for x in range(6)],
        "x bigint",
    )
    assert [row["call"] for row in found] == [*range(6)]


@pytest.mark.parametrize("pause", [0, 1])
def test_a_coroutine_that_never_ends_after_its_result_is_ended_at_the_rows_deadline(pause: float) -> None:
    function = Eternal(pause)
    with OperatorHarness(function, timeout=3.0, capacity=1) as harness:
        harness.put("a", "b")
        harness.advance(2.9)
        assert (harness.output, function.ended) == (["a"], []), "it keeps its slot as long"
        harness.advance(2.0)
        assert (harness.output, function.ended) == (["a", "b"], [3.0])


def test_a_coroutine_that_never_ends_after_its_result_ends_with_the_task_when_there_is_no_deadline() -> None:
    function = Eternal(0)
    assert run_rows(function, ["a", "b"], timeout=None) == ["a", "b"]
    assert function.ended == [5.0, 5.0], "after the grace period"


def test_rounding_cannot_make_the_timer_of_the_deadlines_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer may fire a hair before its time; scheduling it again for the same time would go on for ever."""
    timers, call_at = 0, VirtualClockLoop.call_at

    def a_hair_early(loop: Any, when: float, *callback: Any, **context: Any) -> Any:
        nonlocal timers
        timers += 1
        assert timers < 100
        return call_at(loop, math.nextafter(when, 0), *callback, **context)

    monkeypatch.setattr(VirtualClockLoop, "call_at", a_hair_early)
    assert run_rows(hangs, ["hang"], timeout=0.2, on_error="null") == [None]
