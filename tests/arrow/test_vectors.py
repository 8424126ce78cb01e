"""What a vectorized function gets for columns of every shape."""

from __future__ import annotations

import datetime
import decimal
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


def seen(values: list[Any], sql_type: str, batch_size: int = 100) -> list[str]:
    """The dtypes that a function sees of a column, one for each batch, as at every entry point."""
    found = []

    async def look(x: pd.Series) -> pd.Series:
        found.append(str(x.dtype))
        return x.isna()

    rows = [{"x": value} for value in values]
    got = run_stream(
        lambda stream: stream.ordered_wait(look, returnType="boolean", as_="gone", batch_size=batch_size),
        rows,
        f"x {sql_type}",
    )
    assert [row["gone"] for row in got] == [value is None for value in values]
    return found


MOMENT = datetime.datetime(2500, 1, 2, 3, tzinfo=datetime.UTC)  # nanoseconds end in 2262
TEXT = str(pd.Series([""]).dtype)  # "object" in pandas 2, "str" in pandas 3

DTYPES: dict[str, tuple[Any, str]] = {
    "float": (1.5, "float32"),
    "double": (1.5, "float64"),
    "timestamp": (MOMENT, "datetime64[us, UTC]"),
    "timestamp_ntz": (MOMENT.replace(tzinfo=None), "datetime64[us]"),
    "interval day to second": (datetime.timedelta(days=1, microseconds=1), "timedelta64[us]"),
    "string": ("a", TEXT),
    "binary": (b"a", "object"),
    "date": (MOMENT.date(), "object"),
    "decimal(9,2)": (decimal.Decimal("1.50"), "object"),
    "array<int>": ([1], "object"),
    "map<string,int>": ({"a": 1}, "object"),
    "struct<a: int>": ({"a": 1}, "object"),
}


@pytest.mark.parametrize("sql_type", DTYPES)
def test_a_column_has_the_dtype_of_its_type_in_every_batch(sql_type: str) -> None:
    """With a NULL, without one, and with nothing else: `.dt` and numpy failed in batches with a NULL alone."""
    value, dtype = DTYPES[sql_type]
    assert seen([value, value, value, None, None, None], sql_type, batch_size=2) == [dtype] * 3


@pytest.mark.parametrize(
    ("sql_type", "value", "dtype", "nullable"),
    [
        ("tinyint", 1, "int8", "Int8"),
        ("smallint", 1, "int16", "Int16"),
        ("int", 1, "int32", "Int32"),
        ("bigint", 2**53 + 1, "int64", "Int64"),
        ("boolean", True, "bool", "boolean"),
    ],
)
def test_whole_numbers_and_flags_are_nullable_beside_a_null(
    sql_type: str, value: Any, dtype: str, nullable: str
) -> None:
    assert seen([value, value, value, None, None, None], sql_type, batch_size=2) == [dtype, nullable, nullable]


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [("bigint", 1), ("boolean", True), *((name, value) for name, (value, _) in DTYPES.items() if "<" not in name)],
)
def test_a_series_can_be_written_to_with_a_null_and_without(sql_type: str, value: Any) -> None:
    """`x[x < 0] = 0` failed in batches without a NULL alone: "assignment destination is read-only"."""

    async def first_again(x: pd.Series) -> pd.Series:
        x.iloc[1] = x.iloc[0]
        return x

    got = run_stream(
        lambda stream: stream.ordered_wait(first_again, returnType=sql_type, as_="y", batch_size=2),
        [{"x": one} for one in (value, value, value, None)],
        f"x {sql_type}",
    )
    assert [row["y"] for row in got] == [value] * 4


def test_fields_of_a_struct_have_the_dtypes_of_their_types() -> None:
    async def look(s: pd.DataFrame) -> pd.Series:
        return pd.Series([" ".join(map(str, s.dtypes))] * len(s))

    rows = [{"s": {"n": 2**53 + 1, "x": 1.5, "t": None}}, {"s": None}]
    got = run_stream(
        lambda stream: stream.ordered_wait(look, returnType="string"),
        rows,
        "s struct<n: bigint, x: double, t: timestamp>",
    )
    assert {row["look"] for row in got} == {"Int64 float64 datetime64[us, UTC]"}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, None], "Int64"),
        ([1, 2], "int64"),
        ([1.5, None], "float64"),
        ([1, 2.5], "float64"),
        ([True, None], "boolean"),
        (["a", None], TEXT),
        ([MOMENT, None], "datetime64[us, UTC]"),
        ([None, None], "object"),
        ([2**70, None], "object"),
        ([1, "a"], "object"),
    ],
)
def test_the_test_kit_has_the_dtype_of_the_values_where_no_type_is_declared(values: list[Any], dtype: str) -> None:
    async def look(x: pd.Series) -> pd.Series:
        return pd.Series([str(x.dtype)] * len(x))

    assert run_rows(look, values, returnType="string", batch_size=2) == [dtype] * 2
