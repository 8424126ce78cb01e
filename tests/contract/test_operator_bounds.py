"""How many calls, rows and bytes an operator holds, and that every row comes out all the same. Virtual clock."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from asyncudf import OutputTag, RuntimeContext, http
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.engines import Engine

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


class TestBounds:
    def test_a_slow_head_stops_new_calls_only_when_the_queue_is_full(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=4) as harness:
            harness.put(*range(10))
            for x in (1, 2, 3):
                harness.complete(x, x)
            assert function.calls == [0, 1, 2, 3], "four rows are in the queue, though one call only is running"
            harness.complete(0, 0)
            assert harness.output == [0, 1, 2, 3]
            assert function.calls == [0, 1, 2, 3, 4, 5]

    def test_results_that_wait_stop_new_calls_when_they_are_too_large(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, max_buffered_bytes=10_000) as harness:
            harness.put(*range(8))
            harness.complete(1, "x" * 6_000)
            assert function.calls == [0, 1, 2], "6,000 bytes wait for the first row: there is room for more"
            harness.complete(2, ["y" * 2_000, {"z": b"z" * 2_000}])
            assert function.calls == [0, 1, 2], "10,000 bytes wait, and a call slot is free"
            harness.complete(0, None)
            assert len(harness.output) == 3
            assert function.calls == [0, 1, 2, 3, 4], "all that waited has left"

    @pytest.mark.parametrize("result", [np.str_("x" * 10_000), "\U0001f600" * 2_500], ids=["a subclass", "emojis"])
    def test_a_text_counts_with_the_bytes_that_python_has_for_it(self, result: str) -> None:
        function = ManualFunction()
        with OperatorHarness(function, returnType="string", capacity=2, max_buffered_bytes=10_000) as harness:
            harness.put(*range(8))
            harness.complete(1, result)
            assert function.calls == [0, 1]
            harness.complete(0, None)

    def test_what_is_written_to_a_side_output_weighs_as_well(self) -> None:
        tag, began = OutputTag("pages", "string"), []

        async def call(x: int, context: RuntimeContext) -> int:
            began.append(x)
            if x == 0:
                await asyncio.sleep(1)
                assert began == [0, 1, 2], "ten thousand bytes wait"
            context.output(tag, "x" * 5_000)
            return x

        assert run_rows(call, range(50), capacity=2, max_buffered_bytes=10_000, side_outputs={tag: []}) == [*range(50)]

    def test_a_slot_holds_no_result_while_its_next_call_runs(self) -> None:
        class Result:
            pass

        function, result = ManualFunction(), Result()
        gone = weakref.ref(result)
        with OperatorHarness(function, capacity=1) as harness:
            harness.put(0, 1)
            harness.complete(0, result)
            del result
            harness.output.clear()
            gc.collect()
            assert function.running == [1]
            assert gone() is None
            harness.complete(1, None)

    @MODES
    @pytest.mark.parametrize("limit", [1, 40, 1_000])
    @pytest.mark.parametrize("options", [{}, {"batch_size": 8}, {"on_error": "capture"}], ids=str)
    def test_every_row_comes_out_whatever_the_bound_in_bytes(
        self, mode: str, limit: int, options: dict[str, Any]
    ) -> None:
        def text(x: int) -> str:
            return "x" * (x * 13 % 60)

        async def one(x: int) -> str:
            if x % 3:
                await asyncio.sleep((x * 7) % 5)
            return text(x)

        async def many(x: pd.Series) -> pd.Series:
            await asyncio.sleep(float(x.iloc[0] * 7 % 5))
            return x.map(text)

        got = run_rows(
            many if "batch_size" in options else one,
            range(300),
            output_mode=mode,
            capacity=7,
            max_buffered_bytes=limit,
            **options,
        )
        values = [each["value"] for each in got] if "on_error" in options else got
        assert sorted(values) == sorted(map(text, range(300)))
        assert mode == "unordered" or values == list(map(text, range(300)))

    def test_rows_are_pulled_only_when_a_slot_and_a_place_are_free(self) -> None:
        finish, pulled, seen = asyncio.Event(), list[int](), list[list[int]]()

        async def call(x: int) -> int:
            if x:
                await finish.wait()
            await asyncio.sleep(1)
            return x

        def rows() -> Iterator[int]:
            for x in range(10):
                pulled.append(x)
                yield x

        engine = Engine(call, capacity=2)
        engine.feed(rows())
        engine.end()
        engine.loop.call_at(0.5, lambda: seen.append(list(pulled)))
        engine.loop.call_at(1.5, lambda: seen.append(list(pulled)))
        engine.loop.call_at(2.5, finish.set)
        engine.run()
        assert seen == [[0, 1], [0, 1, 2]]
        assert engine.output == list(range(10))

    def test_calls_that_never_wait_do_not_starve_the_others(self) -> None:
        woken = []

        async def call(x: int) -> int:
            if x == 0:
                await asyncio.sleep(0)
                woken.append(len(done))
            done.append(x)
            return x

        done: list[int] = []
        run_rows(call, range(5000), output_mode="unordered")
        assert woken[0] < 1000


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_slot_that_finds_no_row_and_ends_is_no_call_less(rows: int) -> None:
    """How many calls are in flight is true in every turn of the loop: a task's share of the job's rests on it."""
    flying, seen = 0, []

    async def call(x: int) -> int:
        nonlocal flying
        flying += 1
        await asyncio.sleep(1)
        flying -= 1
        return x

    engine = Engine(call, capacity=10)

    def look(turns: int) -> None:
        (operator,) = engine._chain.counted.values()
        seen.append((operator.in_progress[0], flying))
        if turns:
            engine.loop.call_soon(look, turns - 1)

    engine.loop.call_later(0.5, engine.feed, range(rows))
    engine.loop.call_later(0.5, look, 20)
    engine.loop.call_later(2.0, engine.end)
    engine.run()
    assert (len(engine.output), (rows, rows) in seen) == (rows, True)
    assert [one for one in seen if one[0] != one[1]] == []


def test_rows_whose_deadline_was_moved_are_gone_once_they_are_done() -> None:
    """A pause of all calls moves the deadlines of rows: each of them lived on until its deadline would have come."""
    sent, alive = Counter[str](), list[int]()

    class Argument(str):
        """What a row holds, so that it is seen whether it lives."""

    async def refuses_twice(x: str) -> str:
        sent[x + x] += 1
        await asyncio.sleep(0.05)
        if sent[x + x] < 3:
            raise http.ThrottledError(429, retry_after=0.1)
        alive.append(sum(one() is not None for one in held))
        return x + x

    rows = [Argument(number) for number in range(200)]
    held = [weakref.ref(row) for row in rows]
    engine = Engine(refuses_twice, capacity=20, timeout=3600.0, output_mode="unordered")
    engine.feed(rows.pop(0) for _ in range(200))
    engine.end()
    engine.run()
    assert len(engine.output) == 200
    assert alive[-1] <= 20, "those in flight"
