"""The order in which rows leave an operator, and that none passes a watermark. Virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from asyncudf.queues import LatencyMarker, WatermarkStatus
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.functions import sleepy

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


class TestOrder:
    def test_ordered_keeps_the_order_of_the_rows(self) -> None:
        assert run_rows(sleepy, [3, 1, 2]) == [3, 1, 2]

    def test_unordered_is_the_order_of_completion(self) -> None:
        assert run_rows(sleepy, [3, 1, 2], output_mode="unordered") == [1, 2, 3]

    @MODES
    def test_rows_that_return_at_once_keep_their_order_around_those_that_do_not(self, mode: str) -> None:
        async def sometimes(x: int) -> int:
            if x % 3 == 0:
                await asyncio.sleep(1)
            return x

        got = run_rows(sometimes, range(9), output_mode=mode)
        assert got == (list(range(9)) if mode == "ordered" else [1, 2, 4, 5, 7, 8, 0, 3, 6])

    @MODES
    def test_statuses_and_latency_markers_keep_their_place(self, mode: str) -> None:
        function = ManualFunction()
        marker = LatencyMarker(1.0, "source", 0)
        with OperatorHarness(function, output_mode=mode) as harness:
            harness.put("a", WatermarkStatus.IDLE, marker, "b")
            harness.complete("b", "B")
            assert harness.output == []
            harness.complete("a", "A")
            assert harness.output == ["A", WatermarkStatus.IDLE, marker, "B"]
