"""A slow operator or branch holds back those before it, and batches are full all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import AsyncStream, WatermarkStrategy, async_pandas_udf
from asyncudf.testing import MemoryStore, run_stream
from tests.kit.chains import column, numbers


class TestBackPressure:
    @pytest.mark.parametrize("is_instant", [True, False])
    @pytest.mark.parametrize("between", [False, True])
    @pytest.mark.parametrize("marked", [False, True])
    @pytest.mark.parametrize("batch_size", [7, 60])
    @pytest.mark.parametrize(("store", "in_front"), [(None, 3), (MemoryStore(), 3 * 3)], ids=["no store", "store"])
    def test_a_slow_second_operator_stops_the_first_from_starting_calls(
        self, is_instant: bool, between: bool, marked: bool, batch_size: int, store: Any, in_front: int
    ) -> None:
        started = done = ahead = 0

        async def fast(n: int) -> int:
            nonlocal started, ahead
            started += 1
            ahead = max(ahead, started - done)
            if not is_instant:
                await asyncio.sleep(0.001)
            return n

        async def slow(fast: int) -> int:
            nonlocal done
            await asyncio.sleep(1)
            done += 1
            return fast

        def chain(stream: AsyncStream) -> AsyncStream:
            if marked:
                strategy = WatermarkStrategy.for_monotonous_timestamps("n", interval=1)
                stream = stream.assign_timestamps_and_watermarks(strategy)
            stream = stream.ordered_wait(fast, capacity=2, queue_size=5)
            if between:
                stream = stream.filter(lambda row: True).map(lambda row: row)
            version = f"{is_instant} {between} {marked} {batch_size}"
            return stream.ordered_wait(slow, capacity=3, queue_size=4, store=store, version=version)

        assert len(run_stream(chain, numbers(60), "n long", batch_size=batch_size)) == 60
        # 5 in the first queue, those that wait in front of the second, 4 in its queue, and the one that is starting
        assert 5 <= ahead <= 5 + in_front + 4 + 1

    def test_a_slow_branch_holds_back_the_fast_one(self) -> None:
        progress = {"slow": 0, "fast": 0}
        ahead = 0

        async def slow(n: int) -> int:
            await asyncio.sleep(1)
            progress["slow"] += 1
            return n

        async def fast(n: int) -> int:
            nonlocal ahead
            progress["fast"] += 1
            ahead = max(ahead, progress["fast"] - progress["slow"])
            return n

        got = run_stream(
            lambda s: {
                "slow": s.branch().ordered_wait(slow, capacity=1, queue_size=2),
                "fast": s.branch().ordered_wait(fast, capacity=1, queue_size=2),
            },
            numbers(30),
            "n int",
        )
        assert len(got["slow"]) == len(got["fast"]) == 30
        assert ahead <= 5

    def test_a_vectorized_operator_behind_another_gets_full_batches(self) -> None:
        import pandas as pd

        sizes: list[int] = []

        async def one(n: int) -> int:
            await asyncio.sleep(n % 3)
            return n

        @async_pandas_udf("bigint", batch_size=10, capacity=2)
        async def many(one: pd.Series) -> pd.Series:
            sizes.append(len(one))
            await asyncio.sleep(1)
            return one * 2

        got = run_stream(lambda s: s.ordered_wait(one).ordered_wait(many), numbers(25), "n int")
        assert column(got, "many") == [2 * n for n in range(25)]
        assert sizes == [10, 10, 5]
