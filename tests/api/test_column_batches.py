"""The batches of a column: whatever comes in, rows stay rows, and results leave together."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.bridges import column


async def at_once(x: int) -> int:
    return x


async def later(x: int) -> int:
    await asyncio.sleep(0.001)
    return x


def batches_of(function: Any, given: list[list[int]]) -> list[list[int]]:
    arrays = [pa.array(batch, pa.int64()) for batch in given]
    written = [batch.to_pylist() for batch in column(function, arrays, "long")]
    return [batch for batch in written if batch]


@pytest.mark.parametrize("function", [at_once, later])
@pytest.mark.parametrize("given", [[[], [1, 2, 3]], [[1, 2], [], [3]], [[], [], [1, 2, 3], []], [[1, 2, 3]]])
def test_a_batch_without_rows_is_no_obstacle(function: Any, given: list[list[int]]) -> None:
    """It comes from another column below this one, as its sign of life; as the first it was a ZeroDivisionError."""
    assert [value for batch in batches_of(function, given) for value in batch] == [1, 2, 3]


def test_only_batches_without_rows_open_nothing() -> None:
    assert batches_of(at_once, [[], []]) == []


@pytest.mark.parametrize("function", [at_once, later])
def test_a_small_first_batch_does_not_make_all_results_leave_in_small_ones(function: Any) -> None:
    rows = list(range(1, 2000))
    written = batches_of(function, [[0], rows])
    assert [value for batch in written for value in batch] == [0, *rows]
    assert len(written) < 100


@pytest.mark.parametrize("rows", [0, 1, 2000])
def test_an_engine_that_sends_one_batch_may_have_one_of_results(rows: int) -> None:
    """Sail with a client of Spark 4.1 failed where results left in several, as they do when a call takes long."""
    given = [pa.array(range(rows), pa.int64()), pa.array([rows], pa.int64())] if rows else [pa.array([], pa.int64())]
    (results,) = column(at_once, given, "long", in_parts=False)
    assert results.type == pa.int64()
    assert results.to_pylist() == [*range(rows), *([rows] if rows else [])]
