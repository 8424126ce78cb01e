"""Rows of a vectorized function are gathered, sent together, and come back each in its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from asyncudf import AsyncUDFError
from asyncudf.queues import Watermark
from asyncudf.testing import OperatorHarness, run_rows


def noting(batches: list[list[int]]) -> Any:
    """Gives back what it gets, and notes each batch."""

    async def same(x: pa.Array) -> pa.Array:
        batches.append(x.to_pylist())
        return x

    return same


class TestVectorized:
    def test_batches_are_full_and_the_last_one_is_sent_at_the_end(self) -> None:
        sizes = []

        async def plus_one(x: pd.Series) -> pd.Series:
            sizes.append(len(x))
            await asyncio.sleep(1)
            return x + 1

        assert run_rows(plus_one, range(7), batch_size=3) == [1, 2, 3, 4, 5, 6, 7]
        assert sizes == [3, 3, 1]

    def test_a_partial_batch_is_sent_after_the_linger(self) -> None:
        batches: list[list[int]] = []
        same = noting(batches)

        with OperatorHarness(same, batch_size=3, batch_linger=5.0) as harness:
            harness.put(1)
            harness.advance(4.9)
            harness.put(2)
            assert batches == []
            harness.advance(0.2)
            assert batches == [[1, 2]], "the linger counts from the first row"
            harness.put(3)
            harness.advance(4)
            assert batches == [[1, 2]]
            harness.put(4, 5)
            assert batches == [[1, 2], [3, 4, 5]]
            assert harness.output == [1, 2, 3, 4, 5]

    def test_a_full_queue_sends_a_partial_batch_also_while_more_may_come(self) -> None:
        batches: list[list[int]] = []
        same = noting(batches)

        with OperatorHarness(same, batch_size=8, capacity=2, queue_size=4) as harness:
            harness.put(*range(4))
            assert batches == [[0, 1, 2, 3]]

    def test_large_batches_fill_every_call_slot(self) -> None:
        sizes, running, peak = set(), 0, 0

        async def same(x: pa.Array) -> pa.Array:
            nonlocal running, peak
            sizes.add(len(x))
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(1)
            running -= 1
            return x

        run_rows(same, range(20_000), batch_size=500, capacity=8)
        assert (sizes, peak) == ({500}, 8)

    def test_rows_of_one_batch_stay_behind_their_watermark(self) -> None:
        async def same(x: pa.Array) -> pa.Array:
            await asyncio.sleep(1)
            return x

        rows = [1, 2, Watermark(1), 3, 4, Watermark(2)]
        assert run_rows(same, rows, batch_size=4, output_mode="unordered") == rows

    def test_null_is_none_and_whole_numbers_stay_whole(self) -> None:
        seen = []

        async def look(x: pd.Series, y: pa.Array) -> pd.Series:
            seen.append((x.dtype, y.to_pylist()))
            return x

        big = 2**53 + 1
        assert run_rows(look, [(big, None), (None, big)]) == [big, None]
        assert seen == [(pd.Int64Dtype(), [None, big])]

    def test_a_data_frame_takes_and_gives_structs(self) -> None:
        async def swap(x: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"a": x["b"], "b": x["a"]})

        got = run_rows(swap, [{"a": 1, "b": "x"}, {"a": 2, "b": None}], batch_size=2)
        assert got == [{"a": "x", "b": 1}, {"a": None, "b": 2}]

    @pytest.mark.parametrize(
        ("answer", "said"), [({"x": 1}, "returned dict"), (pd.Series([1, 2]), "2 results for 1 rows")]
    )
    def test_a_wrong_answer_is_an_error_that_says_so(self, answer: Any, said: str) -> None:
        async def wrong(x: pd.Series) -> pd.Series:
            return answer

        with pytest.raises(AsyncUDFError, match=said):
            run_rows(wrong, [1])
