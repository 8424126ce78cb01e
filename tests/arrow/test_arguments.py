"""Arrow columns as a function's arguments: every value exact, also where a faster way than pyarrow's own is taken."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AsyncUDFError
from asyncudf._arrow.rows import rows_of, values_of

UTC = datetime.UTC
EXTREMES = [datetime.datetime.min, datetime.datetime.max, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]
MAP = pa.map_(pa.string(), pa.int64())

OTHERS = [
    pa.array([2**63 - 1, None, -(2**63)]),
    pa.array([True, None]),
    pa.array([1.5, None, float("inf")]),
    pa.array([b"x", None, b""]),
    pa.array(["å", None, ""]),
    pa.array([decimal.Decimal("1.50"), None]),
    pa.array([[1, None], None, []], pa.list_(pa.int64())),
    pa.array([{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    pa.array([None, None]),
    pa.array([], pa.date32()),
    pa.array([None], pa.timestamp("us", "UTC")),
]


def moments(values: Any) -> Any:
    return st.lists(st.none() | values | st.sampled_from(EXTREMES), max_size=20)


@given(moments(st.datetimes()))
def test_local_timestamps_are_naive(values: list[datetime.datetime | None]) -> None:
    assert values_of(pa.array(values, pa.timestamp("us"))) == values


@given(moments(st.datetimes()), st.sampled_from(["UTC", "Asia/Kathmandu", "-08:00"]))
def test_timestamps_are_in_utc_whatever_the_sessions_zone(values: list[datetime.datetime | None], zone: str) -> None:
    aware = [value and value.replace(tzinfo=UTC) for value in values]
    column = pa.array(aware, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    got = values_of(column)
    assert got == aware
    assert all(value is None or value.tzinfo is UTC for value in got)


@given(st.lists(st.none() | st.dates(), max_size=20))
def test_dates_are_dates(values: list[datetime.date | None]) -> None:
    got = values_of(pa.array(values, pa.date32()))
    assert got == values
    assert not any(isinstance(value, datetime.datetime) for value in got)


@pytest.mark.parametrize("column", OTHERS, ids=lambda column: str(column.type))
def test_other_values_are_as_pyarrow_makes_them(column: pa.Array) -> None:
    assert values_of(column) == column.to_pylist()
    assert list(map(type, values_of(column))) == list(map(type, column.to_pylist()))


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (MAP, {"a": 1}),
        (pa.list_(MAP), [{"a": 1}, None]),
        (pa.struct([("x", pa.int64()), ("m", pa.list_(MAP))]), {"x": 1, "m": [{}]}),
        (pa.map_(pa.string(), MAP), {"a": {"b": 2}}),
    ],
    ids=str,
)
def test_maps_are_dicts_however_deep(arrow_type: pa.DataType, value: Any) -> None:
    assert values_of(pa.array([value, None], arrow_type)) == [value, None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62]).cast(pa.timestamp("us")),
        pa.array([2**62]).cast(pa.timestamp("us", "UTC")),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([1, -(2**63)]).cast(pa.timestamp("us")),  # numpy's "no time"
    ],
    ids=["timestamp_ntz", "timestamp", "date", "not a time"],
)
def test_a_moment_that_python_does_not_have_is_an_error(column: pa.Array) -> None:
    with pytest.raises(AsyncUDFError, match=r"the input of lookup .* has no Python form"):
        list(rows_of("lookup", [column], None))
