"""What each form of function gives: one result, many, one from a thread, one that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture, async_pandas_udf
from asyncudf.testing import OperatorHarness, run_rows
from tests.kit.functions import instant


class TestResults:
    async def _pairs(self, x: int) -> AsyncIterator[int]:
        for i in range(x):
            await asyncio.sleep(1)
            yield i

    def test_an_async_generator_gives_0_to_n_results(self) -> None:
        assert run_rows(self._pairs, [2, 0, 3]) == [0, 1, 0, 1, 2]

    def test_none_is_a_null_result(self) -> None:
        """Not a row that is missing."""
        assert run_rows(instant, [None, 1]) == [None, 1]

    def test_several_parameters_take_a_tuple(self) -> None:
        async def add(a: int, b: int = 10) -> int:
            return a + b

        assert run_rows(add, [(1, 2), (3, 4), (5,)]) == [3, 7, 15]

    def test_a_tuple_is_one_value_for_a_function_of_one_parameter(self) -> None:
        assert run_rows(instant, [(1, 2)]) == [(1, 2)]

    def test_an_empty_input_gives_an_empty_output(self) -> None:
        assert run_rows(instant, []) == []


class TestAsyncFunction:
    def test_open_calls_close_run_on_one_loop(self) -> None:
        class Traced(AsyncFunction):
            def __init__(self) -> None:
                self.events: list[Any] = []
                self.loops: set[int] = set()

            def note(self, event: Any) -> None:
                self.events.append(event)
                self.loops.add(id(asyncio.get_running_loop()))

            async def open(self, context: Any) -> None:
                self.note("open")

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                self.note(value)
                result_future.complete([value] * value)

            async def close(self) -> None:
                self.note("close")

        function = Traced()
        assert run_rows(function, [2, 0, 1]) == [2, 2, 1]
        assert function.events == ["open", 2, 0, 1, "close"]
        assert len(function.loops) == 1

    def test_a_row_is_done_when_its_future_is_though_the_coroutine_runs_on(self) -> None:
        log = []

        class Eager(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])
                await asyncio.sleep(1)
                log.append(("after", value))

        with OperatorHarness(Eager()) as harness:
            harness.put("a")
            assert harness.output == ["a"]
            assert log == []
            harness.end()
            harness.advance(1.1)
            assert harness.is_done
        assert log == [("after", "a")], "what the coroutine still does is not cut off at the end of the input"

    def test_a_completion_may_come_after_the_coroutine_has_returned(self) -> None:
        class Callback(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                asyncio.get_running_loop().call_later(3, result_future.complete, [value])

        assert run_rows(Callback(), [1, 2]) == [1, 2]

    def test_a_completion_may_come_from_another_thread(self) -> None:
        import threading

        class Threaded(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                threading.Thread(target=result_future.complete, args=([value * 10],)).start()

        assert run_rows(Threaded(), [1, 2, 3], clock="real") == [10, 20, 30]

    @pytest.mark.parametrize("results", [None, "text", 5, {"a": 1}])
    def test_pyflink_emits_a_string_letter_by_letter_here_it_is_an_error_that_names_the_function(
        self, results: Any
    ) -> None:
        class Careless(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete(results)

        with pytest.raises(AsyncUDFError, match="Careless completed a row with"):
            run_rows(Careless(), [1])
        assert run_rows(Careless(), [1], on_error="null") == [None]

    def test_the_first_completion_wins(self) -> None:
        class Twice(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete(["first"])
                result_future.complete(["second"])
                result_future.complete_exceptionally(ValueError("third"))

        assert run_rows(Twice(), [1]) == ["first"]

    def test_a_class_is_made_once_for_the_task(self) -> None:
        class Echo(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])

        assert run_rows(Echo, [1, 2]) == [1, 2]

    def test_it_may_be_declared_with_the_decorator(self) -> None:
        @async_pandas_udf("int", output_mode="unordered")
        class Echo(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])

        assert run_rows(Echo, [1]) == [1]


class TestThreads:
    def test_a_plain_def_runs_in_threads(self) -> None:
        import threading

        def name(x: int) -> str:
            return threading.current_thread().name

        names = run_rows(name, range(4), clock="real")
        assert all(n.startswith("asyncudf-call") for n in names)

    def test_capacity_bounds_the_threads(self) -> None:
        """As many calls at once as capacity says, no fewer and no more."""
        import threading

        barrier = threading.Barrier(3, timeout=60)

        def meet(x: int) -> int:
            barrier.wait()  # passes only when three calls are in progress at once
            return x

        assert run_rows(meet, range(6), clock="real", capacity=3) == list(range(6))
        barrier = threading.Barrier(3, timeout=0.2)
        with pytest.raises(AsyncUDFError, match="BrokenBarrierError"):
            run_rows(meet, range(6), clock="real", capacity=2)

    def test_the_virtual_clock_refuses_a_plain_def(self) -> None:
        def double(x: int) -> int:
            return x * 2

        with pytest.raises(ValueError, match="clock='real'"):
            run_rows(double, [1])

    def test_stop_iteration_in_a_thread_does_not_hang(self) -> None:
        def stop(x: int) -> int:
            raise StopIteration

        with pytest.raises(AsyncUDFError, match="StopIteration"):
            run_rows(stop, [1], clock="real")

    def test_a_def_that_returns_a_coroutine_is_told_what_to_do(self) -> None:
        def forgot(x: int) -> Any:
            return instant(x)

        with pytest.raises(AsyncUDFError, match="declare it async def"):
            run_rows(forgot, [1], clock="real")
