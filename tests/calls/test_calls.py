"""Deadlines, retries and errors of single calls, and the bugs of others that must not be ours. Virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pandas as pd
import pytest
import tenacity

from asyncudf import (
    AsyncFunction,
    AsyncTimeoutError,
    AsyncUDFError,
    OptionError,
    ResultError,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf._errors.http import retry_after
from asyncudf._policies.retry import Attempt
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows

from .clocks import HandClock

FIXED = RetryStrategy.fixed_delay(attempts=3, delay=1.0)


def busy(attempts: int, elapsed: float) -> dict[str, Any]:
    """What is captured of a row on which a `Flaky` has failed for good."""
    return {"type": "ValueError", "message": "busy", "attempts": attempts, "elapsed": elapsed, "status": None}


class Flaky:
    """Fails a given number of times for each row, then returns the time of success."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.failures = failures
        self.error = error or ValueError("busy")
        self.calls: list[tuple[Any, float]] = []

    async def __call__(self, x: Any) -> float:
        now = asyncio.get_running_loop().time()
        self.calls.append((x, now))
        if sum(row == x for row, _ in self.calls) <= self.failures:
            raise self.error
        return now

    def times(self, x: Any) -> list[float]:
        return [time for row, time in self.calls if row == x]


async def hangs(x: Any) -> Any:
    if x == "hang":
        await asyncio.get_running_loop().create_future()
    return x


class TestErrors:
    async def fails(self, x: int) -> int:
        if x == 3:
            raise ValueError("bad row")
        await asyncio.sleep(x)
        return x

    def test_raise_names_function_attempt_partition_and_input_and_has_the_users_exception_as_cause(self) -> None:
        with pytest.raises(AsyncUDFError) as caught:
            run_rows(self.fails, [1, 2, 3])
        assert str(caught.value) == "fails failed in attempt 1, partition 0, for the input (3,): ValueError: bad row"
        assert isinstance(caught.value.__cause__, ValueError)

    def test_raise_fails_at_once_not_after_the_rows_before(self) -> None:
        ended = []

        async def call(x: int) -> int:
            try:
                await asyncio.sleep(100 if x == 0 else 1)
            finally:
                ended.append((x, asyncio.get_running_loop().time()))
            raise ValueError

        with pytest.raises(AsyncUDFError, match="ValueError"):
            run_rows(call, [0, 1])
        assert ended == [(1, 1.0), (0, 1.0)], "the slow call was cancelled and awaited when the other failed"

    def test_null_gives_null(self) -> None:
        assert run_rows(self.fails, [1, 3, 2], on_error="null") == [1, None, 2]

    def test_capture_gives_a_value_or_the_error(self) -> None:
        assert run_rows(Flaky(1), ["a"], on_error="capture", retry=None) == [
            {
                "value": None,
                "error": {"type": "ValueError", "message": "busy", "attempts": 1, "elapsed": 0.0, "status": None},
            }
        ]
        retried = run_rows(Flaky(9), ["a"], on_error="capture", retry=FIXED)
        assert retried[0]["error"] == {
            "type": "ValueError",
            "message": "busy",
            "attempts": 3,
            "elapsed": 2.0,
            "status": None,
        }
        assert run_rows(Flaky(0), ["a"], on_error="capture") == [{"value": 0.0, "error": None}]

    def test_daft_5678_a_failing_row_does_not_lose_the_finished_ones(self) -> None:
        """Daft 5678: a rate limit killed the run and lost the inferences that had been paid for."""
        got = run_rows(self.fails, [5, 3, 1, 3, 2], on_error="null", output_mode="unordered")
        assert sorted(got, key=str) == [1, 2, 5, None, None]

    @pytest.mark.parametrize("policy", ["null", "capture"])
    @pytest.mark.parametrize("fatal", [SystemExit(3), KeyboardInterrupt()])
    def test_system_exit_fails_the_task_under_every_policy(self, policy: str, fatal: BaseException) -> None:
        with pytest.raises(AsyncUDFError, match=type(fatal).__name__):
            run_rows(Flaky(9, fatal), ["a"], on_error=policy)

        async def later(x: int) -> int:
            await asyncio.sleep(1)
            raise fatal

        with pytest.raises(AsyncUDFError, match=type(fatal).__name__):
            run_rows(later, [1], on_error=policy)

    def test_the_input_in_the_message_is_shortened(self) -> None:
        with pytest.raises(AsyncUDFError) as caught:
            run_rows(Flaky(1), ["x" * 10_000])
        assert len(str(caught.value)) < 300

    def test_an_exception_that_cannot_be_printed_is_no_obstacle(self) -> None:
        class UnprintableError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        with pytest.raises(AsyncUDFError, match="UnprintableError"):
            run_rows(Flaky(1, UnprintableError()), [1])

    def test_an_error_of_a_vectorized_call_is_that_of_all_its_rows(self) -> None:
        async def call(x: pd.Series) -> pd.Series:
            if 3 in x.tolist():
                raise ValueError("bad row")
            return x

        assert run_rows(call, [1, 2, 3, 4, 5, 6], batch_size=2, on_error="null") == [1, 2, None, None, 5, 6]

    def test_a_misfit_in_a_vector_is_the_error_of_its_row_only(self) -> None:
        @async_pandas_udf("int", batch_size=3, on_error="null")
        async def call(x: pd.Series) -> pd.Series:
            return pd.Series(["text" if v == 2 else v for v in x], dtype=object)

        assert run_rows(call, [1, 2, 3]) == [1, None, 3]

    def test_an_error_in_a_generator_after_some_results_is_the_rows_error(self) -> None:
        async def call(x: int) -> AsyncIterator[int]:
            yield x
            raise ValueError

        assert run_rows(call, [1], on_error="null") == [None]

    def test_a_function_that_cannot_take_the_columns_is_refused_before_it_runs(self) -> None:
        async def two(a: int, b: int) -> int:
            return a + b

        with pytest.raises(TypeError, match=r"two takes the columns \(a, b\), not 3 of them"):
            run_rows(two, [(1, 2, 3)])


class TestCancelledError:
    """PyFlink's `except Exception` misses CancelledError, and the row is never completed."""

    async def cancelled(self, x: int) -> int:
        if x == 2:
            raise asyncio.CancelledError
        await asyncio.sleep(x)
        return x

    def test_pyflink_swallows_it_one_raised_by_the_users_code_is_an_error_like_any_other(self) -> None:
        assert run_rows(self.cancelled, [1, 2, 3], on_error="null") == [1, None, 3]
        with pytest.raises(AsyncUDFError, match="CancelledError"):
            run_rows(self.cancelled, [1, 2, 3])

    def test_a_task_that_cancels_itself_spoils_only_its_own_row(self) -> None:
        async def call(x: int) -> int:
            if x == 2:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            if x == 3:
                await asyncio.sleep(0)
            return x

        assert run_rows(call, [1, 2, 3, 4], on_error="null", capacity=1) == [1, 2, 3, 4]

    def test_a_worker_that_is_cancelled_between_two_calls_is_replaced(self) -> None:
        async def call(x: int) -> int:
            task = asyncio.current_task()
            assert task is not None
            if x == 0:
                asyncio.get_running_loop().call_soon(task.cancel)  # comes when the worker pauses after a burst
            return x

        assert run_rows(call, range(1000), capacity=1) == list(range(1000))

    def test_a_cancelled_child_is_an_error_of_its_row(self) -> None:
        async def call(x: int) -> int:
            child = asyncio.ensure_future(asyncio.sleep(10))
            child.cancel()
            await child
            return x

        assert run_rows(call, [1, 2], on_error="null") == [None, None]


class TestDeadline:
    def test_a_row_is_timed_out_while_the_others_go_on(self) -> None:
        assert run_rows(hangs, ["a", "hang", "b"], timeout=5.0, on_error="null") == ["a", None, "b"]

    def test_it_is_a_timeout_error_too(self) -> None:
        with pytest.raises(TimeoutError, match=r"hangs failed in attempt 1.*no result within 5 s"):
            run_rows(hangs, ["hang"], timeout=timedelta(seconds=5))
        with pytest.raises(AsyncTimeoutError, match="no result within 5 s"):
            run_rows(hangs, ["hang"], timeout=5)

    def test_there_is_one_by_default(self) -> None:
        with pytest.raises(AsyncTimeoutError, match="within 180 s"):
            run_rows(hangs, ["hang"])

    def test_the_call_is_cancelled_for_real(self) -> None:
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


class TestRetry:
    def test_attempts_counts_all_calls(self) -> None:
        flaky = Flaky(2)
        assert run_rows(flaky, ["a"], retry=FIXED) == [2.0]
        assert flaky.times("a") == [0, 1, 2]

    def test_the_last_exception_stands(self) -> None:
        with pytest.raises(AsyncUDFError, match="attempt 3"):
            run_rows(Flaky(3), ["a"], retry=FIXED)

    @pytest.mark.parametrize(
        "make",
        [lambda: RetryStrategy.fixed_delay(1, 1.0), lambda: RetryStrategy.exponential_backoff(1, 1.0, 2.0)],
        ids=["fixed", "exponential"],
    )
    def test_one_attempt_is_one_call(self, make: Callable[[], RetryStrategy]) -> None:
        flaky = Flaky(1)
        with pytest.raises(AsyncUDFError, match=r"attempt 1, .*ValueError: busy"):
            run_rows(flaky, ["a"], retry=make())
        assert flaky.times("a") == [0]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: RetryStrategy.fixed_delay(attempts=3, delay=0),
            lambda: RetryStrategy.fixed_delay(attempts=3, delay=timedelta(0)),
            lambda: RetryStrategy.exponential_backoff(3, 0, 0),
        ],
        ids=["fixed", "timedelta", "exponential"],
    )
    def test_without_a_delay_the_next_call_comes_at_once(self, make: Callable[[], RetryStrategy]) -> None:
        flaky = Flaky(2)
        assert run_rows(flaky, ["a"], retry=make()) == [0]
        assert flaky.times("a") == [0, 0, 0]

    def test_exponential_delays_grow_to_the_cap(self) -> None:
        flaky = Flaky(5)
        retry = RetryStrategy.exponential_backoff(attempts=6, initial=1, maximum=5, jitter=False)
        run_rows(flaky, ["a"], retry=retry)
        assert flaky.times("a") == [0, 1, 3, 7, 12, 17]

    def test_jitter_shortens_each_delay_by_up_to_half(self) -> None:
        retry = RetryStrategy.exponential_backoff(attempts=9, initial=4, maximum=60)
        attempt = Attempt(1, 0.0, 0.0, ValueError(), None)
        delays = [retry.next_delay(attempt, random.Random(seed)) for seed in range(200)]
        assert all(2 <= delay <= 4 for delay in delays if delay is not None)
        assert len(set(delays)) > 100

    def test_flinks_shared_back_off_field_rows_never_disturb_each_others_delays(self) -> None:
        """Flink keeps the last delay in one field of the strategy: interleaved rows change each other's."""
        flaky = Flaky(3)
        retry = RetryStrategy.exponential_backoff(attempts=4, initial=1, maximum=60, jitter=False)
        run_rows(flaky, ["a", "b", "c"], retry=retry)
        assert flaky.times("a") == flaky.times("b") == flaky.times("c") == [0, 1, 3, 7]

    def test_back_off_holds_no_slot_but_keeps_its_place(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=1, retry=RetryStrategy.fixed_delay(2, 10.0)) as harness:
            harness.put("a", "b", "c")
            harness.fail("a", ValueError())
            assert function.running == ["b"], "the slot went to the next row"
            harness.complete("b", "B")
            harness.complete("c", "C")
            assert harness.output == [], "the row in back-off is still the head"
            harness.advance(10.1)
            harness.complete("a", "A")
            assert harness.output == ["A", "B", "C"]

    def test_a_row_in_back_off_counts_against_the_queue(self) -> None:
        function = ManualFunction()
        retry = RetryStrategy.fixed_delay(2, 10.0)
        with OperatorHarness(function, capacity=1, queue_size=2, retry=retry) as harness:
            harness.put("a", "b", "c")
            harness.fail("a", ValueError())
            harness.fail("b", ValueError())
            assert function.running == []
            harness.advance(10.1)
            assert function.running == ["a"]

    def test_retries_come_before_new_rows(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=1, retry=RetryStrategy.fixed_delay(2, 1.0)) as harness:
            harness.put("a", "b", "c", "d")
            harness.fail("a", ValueError())
            harness.advance(1.1)
            harness.complete("b", "B")
            assert function.running == ["a"]

    @pytest.mark.parametrize(
        "retry_on",
        [KeyError, (OSError, KeyError), lambda e: isinstance(e, KeyError), tenacity.retry_if_exception_type(KeyError)],
    )
    def test_only_what_is_named_is_tried_again(self, retry_on: Any) -> None:
        retry = RetryStrategy.fixed_delay(3, 1.0, retry_on=retry_on)
        assert run_rows(Flaky(1, KeyError("k")), ["a"], retry=retry) == [1.0]
        with pytest.raises(AsyncUDFError, match="attempt 1, "):
            run_rows(Flaky(1, ValueError()), ["a"], retry=retry)

    def test_an_unsatisfactory_result_is_tried_again_and_the_last_one_stands(self) -> None:
        calls = []

        async def call(x: int) -> str | None:
            calls.append(x)
            return None if len(calls) < 3 else "found"

        def is_none(result: Any) -> bool:
            return result is None

        retry = RetryStrategy.fixed_delay(5, 1.0, retry_if_result=is_none)
        assert run_rows(call, [1], retry=retry) == ["found"]
        calls.clear()
        assert run_rows(call, [1], retry=RetryStrategy.fixed_delay(2, 1.0, retry_if_result=is_none)) == [None]

    def test_a_generator_with_no_results_can_be_tried_again(self) -> None:
        calls = []

        async def call(x: int) -> AsyncIterator[int]:
            calls.append(x)
            if len(calls) > 1:
                yield x

        retry = RetryStrategy.fixed_delay(3, 1.0, retry_if_result=lambda results: not results)
        assert run_rows(call, [7], retry=retry) == [7]

    @pytest.mark.parametrize(
        "retrying",
        [
            tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)),
            RetryStrategy(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)),
            RetryStrategy.fixed_delay(tenacity.stop_after_attempt(3), tenacity.wait_fixed(1)),
        ],
    )
    def test_tenacitys_objects_are_understood(self, retrying: Any) -> None:
        flaky = Flaky(2)
        assert run_rows(flaky, ["a"], retry=retrying) == [2.0]
        with pytest.raises(AsyncUDFError, match="attempt 3"):
            run_rows(Flaky(3), ["a"], retry=retrying)

    def test_tenacitys_clock_is_the_loops(self) -> None:
        flaky = Flaky(99)
        retry = RetryStrategy(stop=tenacity.stop_after_delay(3.5), wait=tenacity.wait_fixed(1))
        with pytest.raises(AsyncUDFError, match=r"attempt 5, .*ValueError: busy"):
            run_rows(flaky, ["a"], retry=retry)
        assert flaky.times("a") == [0, 1, 2, 3, 4]

    def test_a_broken_predicate_is_the_rows_error(self) -> None:
        def broken(error: BaseException) -> bool:
            raise RuntimeError("predicate")

        with pytest.raises(AsyncUDFError, match="RuntimeError: predicate"):
            run_rows(Flaky(1), ["a"], retry=RetryStrategy.fixed_delay(2, 1.0, retry_on=broken))

    def test_a_predicate_for_everything_does_not_catch_the_librarys_own_cancellation(self) -> None:
        """tenacity's retry_always swallows CancelledError."""
        retry = RetryStrategy(stop=tenacity.stop_after_attempt(99), retry=tenacity.retry_always)
        with OperatorHarness(hangs, retry=retry, timeout=5.0, on_error="null") as harness:
            harness.put("hang")
            harness.advance(5.1)
            assert harness.output == [None]

    def test_retry_after_wins_over_the_computed_delay(self) -> None:
        class ThrottledError(Exception):
            retry_after = 7.0

        flaky = Flaky(1, ThrottledError())
        assert run_rows(flaky, ["a"], retry=FIXED) == [7.0]

    def test_retry_after_is_read_from_where_clients_put_it(self) -> None:
        class HolderError(Exception):
            pass

        def with_headers(headers: dict[str, str], nested: bool = False) -> Exception:
            error, holder = HolderError(), HolderError()
            holder.headers = headers  # type: ignore[attr-defined]
            error.response = holder  # type: ignore[attr-defined]
            return error if nested else holder

        assert retry_after(with_headers({"Retry-After": "3"})) == 3
        assert retry_after(with_headers({"Retry-After": "1.5"}, nested=True)) == 1.5
        soon = datetime.now(UTC) + timedelta(seconds=100)
        date = retry_after(with_headers({"Retry-After": format_datetime(soon, usegmt=True)}))
        assert date is not None
        assert 0 < date <= 100
        assert retry_after(with_headers({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})) == 0
        assert retry_after(with_headers({"Retry-After": "soon"})) is None
        assert retry_after(ValueError()) is None

    def test_a_retry_after_beyond_the_deadline_ends_the_row(self) -> None:
        class ThrottledError(Exception):
            retry_after = 3600

        got = run_rows(Flaky(1, ThrottledError()), ["a"], retry=FIXED, timeout=60, on_error="capture")
        assert got[0]["error"]["type"] == "ThrottledError"
        assert got[0]["error"]["elapsed"] == 0

    def test_a_completion_with_an_exception_is_an_attempt_that_failed(self) -> None:
        calls = []

        class Sometimes(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                calls.append(value)
                if len(calls) == 1:
                    result_future.complete_exceptionally(ValueError())
                    await asyncio.sleep(0.5)
                else:
                    result_future.complete([value])

        assert run_rows(Sometimes(), ["a"], retry=FIXED) == ["a"]
        assert len(calls) == 2


class TestPeersBugs:
    def test_flink_40456_a_timeout_that_races_a_retry_never_drops_the_row(self) -> None:
        retry = RetryStrategy.fixed_delay(attempts=99, delay=1.0)
        for timeout in (1.0, 2.0, 2.5, 3.0):
            got = run_rows(Flaky(99), ["a", "b"], retry=retry, timeout=timeout, on_error="null")
            assert got == [None, None]

    def test_flink_38082_a_timeout_answer_that_fails_is_not_retried(self) -> None:
        calls = []

        class Late(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                calls.append(value)
                await asyncio.sleep(100)

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete_exceptionally(ValueError("too late"))

        with pytest.raises(AsyncUDFError, match="too late"):
            run_rows(Late(), ["a"], timeout=5.0, retry=FIXED)
        assert calls == ["a"]

    def test_flink_30477_no_retry_is_fired_after_the_timeout(self) -> None:
        flaky = Flaky(99)
        retry = RetryStrategy.fixed_delay(attempts=99, delay=3.0)
        with OperatorHarness(flaky, retry=retry, timeout=4.0, on_error="null") as harness:
            harness.put("a")
            harness.advance(100)
            assert flaky.times("a") == [0, 3]
            assert harness.output == [None]

    def test_http_connector_39_a_completion_that_is_lost_does_not_fill_the_queue_for_ever(self) -> None:
        class Loses(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                if value % 2:
                    result_future.complete([value])

        got = run_rows(Loses(), range(10), capacity=2, queue_size=2, timeout=5.0, on_error="null")
        assert got == [None, 1, None, 3, None, 5, None, 7, None, 9]

    def test_flink_39532_a_row_is_not_changed_by_the_next_one(self) -> None:
        seen = []

        async def call(row: dict[str, int]) -> int:
            await asyncio.sleep(1)
            seen.append(row["x"])
            return row["x"]

        assert run_rows(call, ({"x": i} for i in range(5))) == list(range(5))

    def test_openaivec_184_siblings_do_not_run_on_after_a_failure(self) -> None:
        running: set[int] = set()

        async def call(x: int) -> int:
            running.add(x)
            try:
                await asyncio.sleep(x)
                if x == 1:
                    raise ValueError
            finally:
                running.discard(x)
            return x

        with pytest.raises(AsyncUDFError, match="ValueError"):
            run_rows(call, [1, 5, 9])
        assert running == set()

    def test_flink_7949_a_full_queue_at_restart_does_not_deadlock(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=2) as harness:
            harness.put(*range(7))
            state = harness.snapshot()

        async def instant(x: int) -> int:
            return x

        with OperatorHarness(instant, capacity=2, queue_size=2) as harness:
            harness.restore(state)
            harness.end()
            assert harness.output == list(range(7))
            assert harness.is_done

    def test_ray_47734_a_client_made_in_open_belongs_to_the_loop_of_the_calls(self) -> None:
        class Client(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.ready = asyncio.get_running_loop().create_future()
                self.ready.get_loop().call_later(1, self.ready.set_result, "connected")

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([await asyncio.shield(self.ready)])  # "attached to a different loop" otherwise

        assert run_rows(Client(), [1, 2]) == ["connected"] * 2

    def test_ray_51188_an_ordered_run_of_rows_without_results_is_empty_and_ends(self) -> None:
        async def nothing(x: int) -> AsyncIterator[int]:
            if x < 0:
                yield x

        assert run_rows(nothing, range(1000), capacity=3) == []


class TestContext:
    def test_it_tells_attempt_deadline_and_a_stable_key(self) -> None:
        seen: list[Any] = []

        async def call(x: str, context: RuntimeContext) -> str:
            seen.append((context.partition, context.attempt_number, context.remaining(), context.idempotency_key))
            await asyncio.sleep(1)
            assert context.remaining() == seen[-1][2] - 1
            if context.attempt_number == 1:
                raise ValueError
            return x

        run_rows(call, ["a"], retry=RetryStrategy.fixed_delay(2, 2.0), timeout=10)
        run_rows(call, ["a"], retry=RetryStrategy.fixed_delay(2, 2.0), timeout=10)
        (_, first, remaining, key), (_, second, later, same_key), again, _ = seen
        assert (first, second) == (1, 2)
        assert (remaining, later) == (10, 7)
        assert key == same_key == again[3]

    def test_each_row_has_its_own_key_and_tasks_made_by_the_call_share_it(self) -> None:
        keys: dict[str, str] = {}

        async def call(x: str, context: RuntimeContext) -> str:
            async def child() -> str:
                await asyncio.sleep(1)
                return context.idempotency_key

            own = context.idempotency_key
            assert await asyncio.gather(child(), child()) == [own, own]
            keys[x] = own
            return x

        run_rows(call, ["a", "b", "c"])
        assert len(set(keys.values())) == 3

    def test_outside_a_call_it_says_so(self) -> None:
        class Early(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                context.remaining()

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None: ...

        with pytest.raises(AsyncUDFError, match="no row is being worked on"):
            run_rows(Early(), [1])

    def test_it_works_in_a_thread(self) -> None:
        def call(x: int, context: RuntimeContext) -> bool:
            remaining = context.remaining()
            return remaining is not None and 0 < remaining <= 10

        assert run_rows(call, [1], clock="real", timeout=10) == [True]

    def test_context_variables_of_one_row_do_not_reach_another(self) -> None:
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

        async def call(x: int) -> int:
            before = variable.get()
            variable.set(x)
            if x % 2:
                await asyncio.sleep(1)
            return before

        assert run_rows(call, range(20), capacity=2) == [0] * 20


class TestResources:
    def test_one_is_opened_per_task_passed_by_name_and_closed(self) -> None:
        events: list[str] = []

        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[str]:
            events.append("open")
            yield "the client"
            events.append("close")

        async def call(x: int, client: str) -> str:
            events.append(f"{x} {client}")
            return client

        assert run_rows(call, [1, 2], resources=client) == ["the client"] * 2
        assert events == ["open", "1 the client", "2 the client", "close"]

    def test_several_by_name_close_in_reverse_also_after_a_failure(self) -> None:
        events: list[str] = []

        def resource(name: str) -> Any:
            class Manager:
                async def __aenter__(self) -> str:
                    events.append(f"open {name}")
                    return name

                async def __aexit__(self, *exception: object) -> None:
                    events.append(f"close {name}")

            return Manager

        async def call(x: int, a: str, b: str) -> str:
            raise ValueError(a + b)

        with pytest.raises(AsyncUDFError, match="ValueError: ab"):
            run_rows(call, [1], resources={"a": resource("a"), "b": resource("b")})
        assert events == ["open a", "open b", "close b", "close a"]

    def test_calls_that_are_cancelled_still_find_their_resource_open(self) -> None:
        events: list[str] = []

        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[None]:
            try:
                yield
            finally:
                events.append("closed")

        async def call(x: int, client: None) -> int:
            try:
                await asyncio.sleep(x)
                raise ValueError("the first to end")
            finally:
                events.append(f"{x} ends")

        with pytest.raises(AsyncUDFError, match="the first to end"):
            run_rows(call, [9, 1, 9], resources=client)
        assert events == ["1 ends", "9 ends", "9 ends", "closed"]

    def test_an_error_of_opening_names_the_resource_and_closes_the_others(self) -> None:
        events: list[str] = []

        class Good:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, *exception: object) -> None:
                events.append("closed")

        class Bad:
            async def __aenter__(self) -> None:
                raise OSError("no route")

            async def __aexit__(self, *exception: object) -> None: ...

        async def call(x: int, good: Any, bad: Any) -> int:
            return x

        with pytest.raises(AsyncUDFError, match=r"resource 'bad' of call could not be opened: OSError: no route"):
            run_rows(call, [1], resources={"good": Good, "bad": Bad})
        assert events == ["closed"]

    def test_the_rows_error_wins_over_one_of_closing(self) -> None:
        class Bad:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, *exception: object) -> None:
                raise OSError("closing")

        async def call(x: int, bad: Any) -> int:
            if x:
                raise ValueError("row")
            return x

        with pytest.raises(AsyncUDFError, match="ValueError: row"):
            run_rows(call, [1], resources={"bad": Bad})
        with pytest.raises(AsyncUDFError, match="resource 'bad' of call could not be closed: OSError: closing"):
            run_rows(call, [0], resources={"bad": Bad})

    def test_close_runs_after_a_failure_and_a_hanging_one_ends(self) -> None:
        class Hanging(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])

            async def close(self) -> None:
                await asyncio.sleep(1e9)

        with pytest.raises(AsyncUDFError, match=r"Hanging\.close\(\) failed: TimeoutError"):
            run_rows(Hanging(), [1])


def test_a_result_error_follows_the_policy() -> None:
    @async_pandas_udf("int", on_error="capture")
    async def call(x: int) -> Any:
        return float(x)

    got = run_rows(call, [1])
    assert got[0]["error"]["type"] == "ResultError"
    with pytest.raises(ResultError, match=r"call returned 1.0 \(float\): declared int32"):
        run_rows(call, [1], on_error="raise")


FIXED_DELAY, BACKOFF = RetryStrategy.fixed_delay, RetryStrategy.exponential_backoff


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FIXED_DELAY(0, 1.0), r"attempts must be at least 1 .*, not 0"),
        (lambda: FIXED_DELAY(True, 1.0), r"attempts must be at least 1 .*, not True"),
        (lambda: FIXED_DELAY(3, -1.0), r"delay must be seconds \(0 or more\) .*, not -1.0"),
        (lambda: FIXED_DELAY(3, float("inf")), r"delay must be seconds \(0 or more\) .*, not inf"),
        (lambda: FIXED_DELAY(3, 1.0, retry_on="ValueError"), "retry_on must be exception types .*, not 'ValueError'"),  # type: ignore[arg-type]
        (lambda: FIXED_DELAY(3, 1.0, retry_if_result=5), "retry_if_result must be a plain function .*, not 5"),  # type: ignore[arg-type]
        (lambda: BACKOFF(3, 5.0, 1.0), r"maximum must be at least initial \(5.0 s\), not 1.0 s"),
        (lambda: BACKOFF(3, 1.0, 5.0, multiplier=0.5), "multiplier must be at least 1, not 0.5"),
        (lambda: RetryStrategy(stop=3), "stop must be one of tenacity's stop objects, not 3"),  # type: ignore[arg-type]
    ],
)
def test_a_retry_strategy_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()
