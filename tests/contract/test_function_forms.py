"""What each form of function gives: one result, many, one from a thread, one that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture
from asyncudf.testing import OperatorHarness, run_rows
from tests.kit.functions import instant


class TestResults:
    async def _pairs(self, x: int) -> AsyncIterator[int]:
        for i in range(x):
            await asyncio.sleep(1)
            yield i

    def test_an_async_generator_gives_0_to_n_results(self) -> None:
        assert run_rows(self._pairs, [2, 0, 3]) == [0, 1, 0, 1, 2]

    def test_several_parameters_take_a_tuple(self) -> None:
        async def add(a: int, b: int = 10) -> int:
            return a + b

        assert run_rows(add, [(1, 2), (3, 4), (5,)]) == [3, 7, 15]

    def test_a_tuple_is_one_value_for_a_function_of_one_parameter(self) -> None:
        assert run_rows(instant, [(1, 2)]) == [(1, 2)]


class TestAsyncFunction:
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


class TestThreads:
    def test_capacity_bounds_the_threads(self) -> None:
        import threading

        barrier = threading.Barrier(3, timeout=60)

        def meet(x: int) -> int:
            barrier.wait()  # passes only when three calls are in progress at once
            return x

        assert run_rows(meet, range(6), clock="real", capacity=3) == list(range(6))
        barrier = threading.Barrier(3, timeout=0.2)
        with pytest.raises(AsyncUDFError, match="BrokenBarrierError"):
            run_rows(meet, range(6), clock="real", capacity=2)

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
