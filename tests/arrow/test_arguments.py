"""Arrow columns as a function's arguments: every value exact, also where a faster way than pyarrow's own is taken."""

from __future__ import annotations

import datetime
import re
import struct
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._arrow import columns
from asyncudf._arrow.rows import reader, rows_of, values_of
from asyncudf._arrow.sizes import size_as_objects

UTC = datetime.UTC
EXTREMES = [datetime.datetime.min, datetime.datetime.max, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]
MAP = pa.map_(pa.string(), pa.int64())

# Values beside the interesting ones of each type, which hypothesis would not find.
FLAT: list[tuple[pa.DataType, Any]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from([-0.0, float("nan")])),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.decimal128(38, 9), st.decimals(-(10**20), 10**20, places=9)),
    (pa.decimal128(5, 0), st.decimals(-99999, 99999, places=0)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes() | st.sampled_from(EXTREMES)),
    (
        pa.timestamp("us", "UTC"),
        (st.datetimes() | st.sampled_from(EXTREMES)).map(lambda value: value.replace(tzinfo=UTC)),
    ),
    (pa.timestamp("ms"), st.datetimes().map(lambda value: value.replace(microsecond=0))),
    (pa.duration("us"), st.integers(-(2**62), 2**62).map(lambda us: datetime.timedelta(microseconds=us))),
]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = inner.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=3)))
    large = inner.map(lambda one: (pa.large_list(one[0]), st.lists(st.none() | one[1], max_size=3)))
    maps = inner.map(
        lambda one: (
            pa.map_(pa.struct([("k", pa.list_(pa.int8()))]), one[0]),
            st.lists(st.integers(-128, 127), unique=True, max_size=3).flatmap(
                lambda keys: st.tuples(*(st.tuples(st.just({"k": [key]}), st.none() | one[1]) for key in keys)).map(
                    list
                )
            ),
        )
    )
    structs = st.lists(inner, max_size=3).map(
        lambda fields: (
            pa.struct([(f"f{i}", field) for i, (field, _) in enumerate(fields)]),
            st.fixed_dictionaries({f"f{i}": st.none() | values for i, (_, values) in enumerate(fields)}),
        )
    )
    return lists | large | maps | structs


TYPES = st.recursive(st.sampled_from(FLAT), nested, max_leaves=4)


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


@given(st.data())
def test_values_are_as_pyarrow_makes_them_one_by_one(data: st.DataObject) -> None:
    """Of all types, at any depth, in slices and in several chunks; only maps and zones look different."""
    arrow_type, values = data.draw(TYPES)
    chunks = [pa.array(chunk, arrow_type) for chunk in data.draw(st.lists(st.lists(st.none() | values, max_size=8)))]
    start, stop = sorted([data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))])
    column = pa.chunked_array(chunks, arrow_type)[start:stop]
    expected = list(map(reader(arrow_type), column.to_pylist()))
    with mock.patch.object(columns, "_MAKES_NO_SCALARS", data.draw(st.booleans())):
        values = values_of(column)
    assert repr(values) == re.sub(r"<UTC>|zoneinfo\.ZoneInfo\(key='UTC'\)", repr(UTC), repr(expected))


def test_chunks_of_timestamps_are_read_in_any_zone() -> None:
    chunk = pa.array([0, None], pa.timestamp("us", "Asia/Kathmandu"))
    assert values_of(pa.chunked_array([chunk, chunk])) == [datetime.datetime(1970, 1, 1, tzinfo=UTC), None] * 2


def test_no_offset_is_read_of_lists_without_rows() -> None:
    """Arrow takes an empty column that has none; what is in memory in their place ends the process."""
    offsets = pa.py_buffer(struct.pack("2i", 0, 2**31 - 1)).slice(4, 0)
    inner = pa.Array.from_buffers(pa.list_(pa.date32()), 0, [None, offsets], children=[pa.array([], pa.date32())])
    column = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), inner)
    assert values_of(inner) == []
    assert values_of(column) == [[]]
    assert size_as_objects(column) == size_as_objects(pa.array([[]], column.type))


def test_what_is_below_a_null_is_not_seen() -> None:
    """Arrow keeps values there: of a moment that Python does not have, or of a key that is there twice."""
    moments = pa.array([2**62, 0]).cast(pa.timestamp("us", "UTC"))
    assert values_of(pa.StructArray.from_arrays([moments], ["x"], mask=pa.array([True, False]))) == [
        None,
        {"x": datetime.datetime(1970, 1, 1, tzinfo=UTC)},
    ]
    assert values_of(pa.ListArray.from_arrays(pa.array([None, 1, 2], pa.int32()), moments))[0] is None
    offsets = pa.py_buffer(struct.pack("3i", 0, 2, 3))
    entries = pa.StructArray.from_arrays([pa.array(["a", "a", "b"]), pa.array([1, 2, 3])], ["key", "value"])
    column = pa.Array.from_buffers(MAP, 2, [pa.py_buffer(b"\2"), offsets], children=[entries])
    assert values_of(column) == [None, {"b": 3}]


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
        pa.array([1, -(2**63)]).cast(pa.timestamp("us", "UTC")),
    ],
    ids=["timestamp_ntz", "timestamp", "date", "not a time", "not a time, in a zone"],
)
def test_a_moment_that_python_does_not_have_is_an_error_of_its_row(column: pa.Array) -> None:
    rows, errors = rows_of("lookup", [column], None)
    assert len(list(rows)) == len(column)
    assert [*errors] == [len(column) - 1]
    assert "the input of lookup (column 1, " in str(errors[len(column) - 1])
    assert "has a moment that is not in the years 1 to 9999: CAST" in str(errors[len(column) - 1])
