"""The bugs of others that must not be ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, ResultFuture, RuntimeContext
from asyncudf.testing import run_rows
from tests.kit.functions import FIXED


class TestPeersBugs:
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

    def test_http_connector_39_a_completion_that_is_lost_does_not_fill_the_queue_for_ever(self) -> None:
        class Loses(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                if value % 2:
                    result_future.complete([value])

        got = run_rows(Loses(), range(10), capacity=2, queue_size=2, timeout=5.0, on_error="null")
        assert got == [None, 1, None, 3, None, 5, None, 7, None, 9]

    def test_ray_47734_a_client_made_in_open_belongs_to_the_loop_of_the_calls(self) -> None:
        class Client(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.ready = asyncio.get_running_loop().create_future()
                self.ready.get_loop().call_later(1, self.ready.set_result, "connected")

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([await asyncio.shield(self.ready)])  # "attached to a different loop" otherwise

        assert run_rows(Client(), [1, 2]) == ["connected"] * 2
