"""Deadlines of several rows at once, and what runs on when its row is done. Virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import AsyncFunction, ResultFuture
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows


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
