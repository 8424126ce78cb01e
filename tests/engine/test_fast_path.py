"""The fast path of rows whose calls return at once: how it ends, and how results reach the output's batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncudf import RetryStrategy, RuntimeContext, async_pandas_udf
from asyncudf._engine.calls.slots import Slot
from asyncudf._engine.operators import async_wait
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf._engine.operators.fast_path import BURST, FastPath, FastPathEnd
from asyncudf._engine.operators.memory import CALL_BYTES, PLACE_BYTES, RowSizes
from asyncudf._engine.operators.outputs import OperatorOutput, RecordWriterOutput
from asyncudf.testing import VirtualClockLoop

Written = list[tuple[float, list[Any]]]
Size = Callable[[Any], int]


def written(
    function: Callable[..., Any],
    rows: int,
    fill: tuple[int, int] = (4, 1_000),
    size_of: Size | None = None,
    **options: Any,
) -> Written:
    """The batches that an operator writes, each with its time; so many results, or bytes of results, fill one."""
    loop, found = VirtualClockLoop(), Written()

    def write(values: Sequence[Any], _: Sequence[Any]) -> None:
        found.append((loop.time(), [*values]))

    output = RecordWriterOutput(write, fill[0], 0.05, loop, max_bytes=fill[1], size_of=size_of)

    async def main() -> None:
        udf = async_pandas_udf(function, **options)
        operator = AsyncWaitOperator(
            udf.spec, udf.options, OperatorOutput(output), RuntimeContext("call", loop.time), loop=loop,
            rng=random.Random(0), sizes=RowSizes(result=size_of),
        )  # fmt: skip
        async with operator.running():
            operator.feed([((x,), None, None) for x in range(rows)])
            operator.end_of_input()

    loop.run_until_complete(main())
    loop.close()
    return found


def test_a_batch_leaves_with_the_result_that_fills_it() -> None:
    """Also where a later call of the same run keeps the loop busy: the results before it are with Spark by then."""

    async def call(x: int) -> int:
        if x == 5:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualClockLoop)
            loop.block(3.0)
        return x

    assert written(call, 10) == [(0.0, [0, 1, 2, 3]), (3.0, [4, 5, 6, 7]), (3.0, [8, 9])]


def test_results_that_fill_no_batch_leave_after_their_time() -> None:
    async def call(x: int) -> int:
        if x == 6:
            await asyncio.sleep(1)
        return x

    assert written(call, 7) == [(0.0, [0, 1, 2, 3]), (0.05, [4, 5]), (1.0, [6])]


def test_a_batch_leaves_with_the_result_with_which_it_weighs_enough() -> None:
    sizes = [400, 599, 1, 999, 1, 0, 2000, 10, 20, 30, 40, 999]

    async def call(x: int) -> int:
        return sizes[x]

    batches = [values for _, values in written(call, 12, size_of=int)]
    assert batches == [[400, 599, 1], [999, 1], [0, 2000], [10, 20, 30, 40], [999]]


@pytest.mark.parametrize(("hundredth", "mean"), [(0, 0), (800_000, 2_000)])
def test_rows_that_wait_count_with_the_mean_of_the_results_that_have_left_at_once(hundredth: int, mean: int) -> None:
    """So few of them begin as have a place with the results that they will have, by all 400 results before them."""
    begun = list[int]()

    async def call(x: int, tried: set[int] = set()) -> int:  # noqa: B006 - what has failed before
        if x >= 400 and x not in tried:
            tried.add(x)
            if asyncio.get_running_loop().time() < 60:
                begun.append(x)
            raise ConnectionError
        return hundredth if x == 100 else 0

    retry = RetryStrategy.fixed_delay(attempts=2, delay=60)
    options: dict[str, Any] = {"max_buffered_bytes": 100_000, "capacity": 2, "retry": retry}
    batches = written(call, 1_000, (1_000, 10**6), int, **options)
    assert sum(len(values) for _, values in batches) == 1_000
    assert len(begun) == pytest.approx(100_000 / (PLACE_BYTES + CALL_BYTES + mean), abs=2)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        (0, [FastPathEnd.NOTHING]),
        (7, [FastPathEnd.TURN, FastPathEnd.NOTHING]),
        (BURST, [FastPathEnd.TURN, FastPathEnd.NOTHING]),
        (BURST + 1, [FastPathEnd.TURN, FastPathEnd.TURN, FastPathEnd.NOTHING]),
    ],
)
def test_the_fast_path_gives_the_loop_its_turn_and_ends_without_rows(
    rows: int, ends: list[FastPathEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(x: int) -> int:
        return x

    assert ends_of(monkeypatch, call, rows) == ends


def test_a_call_that_waits_ends_the_fast_path_with_the_queue_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    async def call(x: int) -> int:
        called.append(x)
        await asyncio.sleep(x == 1)
        return x

    ends = ends_of(monkeypatch, call, 3, capacity=1)
    assert (called, ends[0]) == ([0, 1, 2], FastPathEnd.QUEUE)


def test_functions_whose_calls_ask_for_more_have_no_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(x: int, context: RuntimeContext) -> int:
        return context.attempt_number

    assert ends_of(monkeypatch, call, 3) == []


def ends_of(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], rows: int, **options: Any
) -> list[FastPathEnd]:
    ends: list[FastPathEnd] = []

    class Noted(FastPath):
        async def of(self, slot: Slot) -> FastPathEnd:
            ends.append(await super().of(slot))
            return ends[-1]

    monkeypatch.setattr(async_wait, "FastPath", Noted)
    written(function, rows, **options)
    return ends
