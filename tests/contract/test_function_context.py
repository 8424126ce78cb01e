"""What a call learns of itself: its attempt, its deadline, its key; and nothing of another row."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture, RetryStrategy, RuntimeContext
from asyncudf.testing import run_rows
from tests.kit.figures import figures


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

    def test_it_tells_what_the_function_has_done_so_far(self) -> None:
        """Under the names of `run.metrics`; the call that asks has not ended yet."""
        seen: list[dict[str, int]] = []

        async def call(x: int, context: RuntimeContext) -> int:
            await asyncio.sleep(1)
            seen.append(context.metrics)
            if x == 1 and context.attempt_number == 1:
                raise ValueError
            return x

        run_rows(call, [0, 1, 2], capacity=1, retry=RetryStrategy.fixed_delay(2, 0.1))
        assert [(now["rows"], now["calls"], now["attempts"]) for now in seen] == [
            (0, 0, 0),
            (1, 1, 1),
            (1, 1, 1),
            (2, 2, 3),
        ]
        assert seen[-1].keys() <= vars(figures(call, [5])).keys()

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
