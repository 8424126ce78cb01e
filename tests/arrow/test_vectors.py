"""What a vectorized function gets for columns of every shape."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from asyncudf.testing import run_rows, run_stream
from tests.kit.bridges import column


async def described(frame: pd.DataFrame) -> pd.Series:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return pd.Series([repr(row) for row in rows])


def in_a_chain(*columns: str) -> list[str]:
    rows = [{"x": 1, "s": None}, {"x": 2, "s": {"a": 3}}]
    found = run_stream(
        lambda stream: stream.ordered_wait(described, *columns, returnType="string"), rows, "x int, s struct<a: int>"
    )
    return [row["described"] for row in found]


@pytest.mark.parametrize(
    ("columns", "frames"),
    [
        (["x"], ["{'x': 1}", "{'x': 2}"]),
        (["s"], ["{'a': None}", "{'a': 3}"]),
        (["s", "x"], ["{'s': None, 'x': 1}", "{'s': {'a': 3}, 'x': 2}"]),
    ],
    ids=["one column is a frame of it", "a struct's fields", "a struct beside another column"],
)
def test_a_frame_in_a_chain(columns: list[str], frames: list[str]) -> None:
    """A `pd.DataFrame` parameter alone has the named columns, or the fields of the one struct that is named."""
    assert in_a_chain(*columns) == frames


def test_a_frame_of_a_column_expression_is_called_like_the_parameter() -> None:
    batches = column(described, [pa.array([1, 2])], "string")
    assert [value for batch in batches for value in batch.to_pylist()] == ["{'frame': 1}", "{'frame': 2}"]


@pytest.mark.parametrize(
    ("rows", "frames"),
    [
        ([1, None], ["{'frame': 1}", "{'frame': None}"]),
        ([None, {"a": 1}], ["{'a': None}", "{'a': 1}"]),
        ([{"a": 1}, {"b": 2}], ["{'a': 1, 'b': None}", "{'a': None, 'b': 2}"]),
        ([None], ["{'frame': None}"]),
    ],
    ids=["values", "a NULL before the first struct", "structs with different fields", "nothing but NULL"],
)
def test_a_frame_in_the_test_kit(rows: list[Any], frames: list[str]) -> None:
    assert run_rows(described, rows, returnType="string") == frames


def test_a_frame_beside_a_series() -> None:
    async def both(frame: pd.DataFrame, x: pd.Series) -> pd.Series:
        return frame["a"] + x

    assert run_rows(both, [({"a": 1}, 2), ({"a": 3}, 4)]) == [3, 7]
    rows = [{"frame": {"a": 1}, "x": 2}]
    found = run_stream(lambda s: s.ordered_wait(both, returnType="bigint"), rows, "frame struct<a: bigint>, x bigint")
    assert found[0]["both"] == 3
