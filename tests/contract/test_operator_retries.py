"""A failed attempt is made again: how often, when, for what, and without a slot in between. Virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import tenacity

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture, RetryStrategy
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.functions import Flaky, hangs


class TestRetry:
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

    def test_jitter_shortens_each_delay_by_up_to_half(self) -> None:
        retry = RetryStrategy.exponential_backoff(attempts=9, initial=4, maximum=60)
        delays = run_rows(Flaky(1), range(200), retry=retry)
        assert all(2 <= delay <= 4 for delay in delays)
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

    @pytest.mark.parametrize("kind", ["generator", "AsyncFunction"])
    def test_a_result_predicate_sees_the_list_of_results(self, kind: str) -> None:
        seen: list[Any] = []

        async def generator(x: int) -> AsyncIterator[int]:
            if seen:
                yield x

        class Empty(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value] if seen else [])

        retry = RetryStrategy.fixed_delay(2, 1.0, retry_if_result=lambda results: seen.append(results) or results == [])
        assert run_rows(Empty() if kind == "AsyncFunction" else generator, [7], retry=retry) == [7]
        assert seen == [[], [7]]

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

    def test_a_predicate_for_everything_does_not_catch_the_librarys_own_cancellation(self) -> None:
        """tenacity's retry_always swallows CancelledError."""
        retry = RetryStrategy(stop=tenacity.stop_after_attempt(99), retry=tenacity.retry_always)
        with OperatorHarness(hangs, retry=retry, timeout=5.0, on_error="null") as harness:
            harness.put("hang")
            harness.advance(5.1)
            assert harness.output == [None]
