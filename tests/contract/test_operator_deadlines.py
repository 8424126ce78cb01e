"""A row has until its deadline, counted from its start; then it ends, whatever its call does. Virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncFunction, AsyncTimeoutError, AsyncUDFError, ResultFuture, RetryStrategy
from asyncudf.testing import ManualFunction, OperatorHarness, VirtualClockLoop, run_rows, run_stream
from tests.kit.clocks import HandClock
from tests.kit.functions import FIXED, Flaky, hangs


class TestDeadline:
    def test_a_row_is_timed_out_while_the_others_go_on(self) -> None:
        assert run_rows(hangs, ["a", "hang", "b"], timeout=5.0, on_error="null") == ["a", None, "b"]

    def test_it_is_a_timeout_error_too(self) -> None:
        """`except TimeoutError` catches it, as asyncio's own."""
        with pytest.raises(TimeoutError, match=r"hangs failed in attempt 1.*no result within 5 s"):
            run_rows(hangs, ["hang"], timeout=timedelta(seconds=5))
        with pytest.raises(AsyncTimeoutError, match="no result within 5 s"):
            run_rows(hangs, ["hang"], timeout=5)

    def test_there_is_one_by_default(self) -> None:
        """180 seconds: a call that never ends must not hang a job."""
        with pytest.raises(AsyncTimeoutError, match="within 180 s"):
            run_rows(hangs, ["hang"])

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

    def test_a_late_result_is_ignored(self) -> None:
        async def late(x: int) -> int:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            return x

        with OperatorHarness(late, timeout=5.0, on_error="null") as harness:
            harness.put(1)
            harness.advance(20)
            assert harness.output == [None]

    def test_it_starts_with_the_call_and_not_while_waiting_for_a_slot(self) -> None:
        async def call(x: int) -> int:
            await asyncio.sleep(4)
            return x

        assert run_rows(call, range(5), capacity=1, timeout=5.0) == list(range(5))

    def test_it_covers_every_attempt_and_every_back_off(self) -> None:
        flaky = Flaky(99)
        retry = RetryStrategy.fixed_delay(attempts=99, delay=2.0)
        with pytest.raises(AsyncUDFError, match=r"attempt 3, .*ValueError: busy"):
            run_rows(flaky, ["a"], retry=retry, timeout=5.0)
        assert flaky.times("a") == [0, 2, 4], "a retry at 6 would start after the deadline: the last error stands"

    def test_a_retry_that_would_start_late_ends_the_row_at_once(self) -> None:
        flaky = Flaky(99)
        retry = RetryStrategy.fixed_delay(attempts=2, delay=60.0)
        got = run_rows(flaky, ["a"], retry=retry, timeout=5.0, on_error="capture")
        assert got[0]["error"] == {
            "type": "ValueError",
            "message": "busy",
            "attempts": 1,
            "elapsed": 0.0,
            "status": None,
        }

    def test_an_attempt_timeout_is_an_attempts_error(self) -> None:
        times = []

        async def second_time(x: int) -> str:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 3:
                await asyncio.get_running_loop().create_future()
            return "done"

        got = run_rows(second_time, [1], attempt_timeout=2.0, retry=FIXED, timeout=60)
        assert got == ["done"]
        assert times == [0, 3, 6]

    def test_an_attempt_timeout_without_retry_fails_the_row(self) -> None:
        with pytest.raises(AsyncTimeoutError, match="attempt 1 gave no result within 2 s"):
            run_rows(hangs, ["hang"], attempt_timeout=2.0)

    @pytest.mark.parametrize("fallback", ["unknown", lambda x: "unknown"])
    def test_on_timeout_gives_the_result(self, fallback: Any) -> None:
        got = run_rows(hangs, ["a", "hang"], timeout=5.0, on_timeout=fallback)
        assert got == ["a", "unknown"]

    def test_on_timeout_sees_the_arguments(self) -> None:
        async def call(a: int, b: int) -> int:
            await asyncio.sleep(100)
            return a

        assert run_rows(call, [(1, 2)], timeout=5.0, on_timeout=lambda a, b: a + b) == [3]

    def test_an_error_in_on_timeout_follows_the_policy(self) -> None:
        def broken(x: Any) -> Any:
            raise KeyError(x)

        assert run_rows(hangs, ["hang"], timeout=5.0, on_timeout=broken, on_error="null") == [None]

    def test_an_async_function_may_give_its_own_answer(self) -> None:
        class Patient(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                await asyncio.sleep(100)

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value, "late"])

        assert run_rows(Patient(), ["a"], timeout=1.0) == ["a", "late"]

    def test_an_async_functions_timeout_that_forgets_to_answer_is_a_timeout(self) -> None:
        class Forgetful(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None: ...

            def timeout(self, value: Any, result_future: ResultFuture) -> None: ...

        with pytest.raises(AsyncTimeoutError, match="no result within 1 s"):
            run_rows(Forgetful(), ["a"], timeout=1.0)

    def test_the_first_answer_of_a_timeout_wins(self) -> None:
        class Twice(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None: ...

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete(["first"])
                result_future.complete(["second"])

        assert run_rows(Twice(), ["a"], timeout=1.0) == ["first"]

    def test_a_row_that_is_done_does_not_time_out_though_its_coroutine_is_ended(self) -> None:
        ended = []

        class Lingers(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])
                try:
                    await asyncio.sleep(100)
                finally:
                    ended.append(asyncio.get_running_loop().time())

        with OperatorHarness(Lingers(), timeout=5.0) as harness:
            harness.put("a")
            harness.advance(6.0)
            assert ended == [5.0]
            assert not harness.is_done
            assert harness.output == ["a"]

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

    def test_all_rows_of_a_vectorized_call_time_out_together(self) -> None:
        async def call(x: pd.Series) -> pd.Series:
            await asyncio.sleep(100)
            return x

        assert run_rows(call, [1, 2, 3], batch_size=2, timeout=1.0, on_timeout=lambda x: -x) == [-1, -2, -3]

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
