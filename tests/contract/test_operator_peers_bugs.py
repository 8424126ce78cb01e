"""The bugs of others that must not be ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture, RetryStrategy, RuntimeContext
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.functions import FIXED, Flaky


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
