"""Arrays that are put together without pandas are those that pyarrow makes of the same values."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf._arrow.building import JOINED_AT_ONCE, array, builder, with_null_fields
from asyncudf._arrow.columns import python_values
from asyncudf._arrow.layout import WatermarkColumnGroup
from asyncudf._arrow.validation import validator
from asyncudf._errors.exceptions import ResultError
from tests.kit.thorough import examples

UTC = datetime.UTC
FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
}
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def lists(of: Typed) -> Typed:
    return pa.list_(of[0]), st.none() | st.lists(of[1], max_size=3)


def maps(of: Typed) -> Typed:
    return pa.map_(pa.string(), of[0]), st.none() | st.dictionaries(st.text(), of[1], max_size=3)


def structs(of: list[Typed]) -> Typed:
    names = [f"f{number}" for number in range(len(of))]
    values = st.fixed_dictionaries(dict(zip(names, (one for _, one in of), strict=True)))
    return pa.struct(list(zip(names, (kind for kind, _ in of), strict=True))), st.none() | values


TYPED = st.recursive(
    st.sampled_from([(kind, st.none() | values) for kind, values in FLAT.items()]),
    lambda inner: inner.map(lists) | inner.map(maps) | st.lists(inner, min_size=1, max_size=3).map(structs),
    max_leaves=4,
)
COLUMNS = TYPED.flatmap(lambda typed: st.tuples(st.just(typed[0]), st.lists(typed[1], max_size=20)))


@settings(max_examples=examples(4), deadline=None)
@given(COLUMNS)
def test_an_array_is_that_of_pyarrow(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow_type, values = column
    build = builder(arrow_type)
    assert build is not None
    made = build(values)
    made.validate(full=True)
    assert made.equals(with_null_fields(pa.array(values, arrow_type)))


@settings(max_examples=examples(4), deadline=None)
@given(COLUMNS, st.integers(0, 5))
def test_the_values_come_back_from_any_part_of_it(column: tuple[pa.DataType, list[Any]], start: int) -> None:
    arrow_type, values = column
    assert python_values(array(values, arrow_type).slice(start)) == values[start:]


def test_a_struct_that_is_null_is_so_in_each_of_its_fields() -> None:
    """Whether a field has NULL of its own in no row, in some or in all of them."""
    inner = pa.struct([("whole", pa.string()), ("none", pa.int64())])
    arrow_type = pa.struct([("whole", pa.bool_()), ("some", pa.string()), ("none", pa.int64()), ("inner", inner)])
    values = [
        {"whole": True, "some": None if row % 2 else "x", "none": None, "inner": {"whole": "y", "none": None}}
        if row % 3
        else None
        for row in range(1000)
    ]
    made = builder(arrow_type)(values)  # type: ignore[misc]
    made.validate(full=True)
    assert made.to_pylist() == values
    for name, nulls in {"whole": 334, "some": 667, "none": 1000, "inner": 334}.items():
        assert made.field(name).null_count == nulls, name
    assert made.field("inner").field("whole").null_count == 334


@pytest.mark.parametrize("last", ["z", "\u00e4", "\U0001f600", None], ids=ascii)
@pytest.mark.parametrize("count", [JOINED_AT_ONCE, JOINED_AT_ONCE + 1, 3 * JOINED_AT_ONCE])
def test_texts_are_whole_where_their_parts_meet(count: int, last: str | None) -> None:
    """Also if only the last of all has characters of more than one byte."""
    texts = [*map(str, range(count - 1)), last]
    for values, arrow_type in (
        (texts, pa.string()),
        ([text and text.encode() for text in texts], pa.binary()),
        ([{"of": [text, last]} for text in texts], pa.struct([("of", pa.list_(pa.string()))])),
    ):
        made = builder(arrow_type)(values)  # type: ignore[misc]
        made.validate(full=True)
        assert made.equals(pa.array(values, arrow_type))


@pytest.mark.parametrize(
    ("arrow_type", "values"),
    [
        (pa.decimal128(5, 2), [None]),
        (pa.struct([]), [None, {}]),
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [[([1], 2)], None]),
        (pa.timestamp("us"), [datetime.datetime(2026, 1, 1)]),
        (pa.struct([("a", pa.int64())]), [{}, {"b": 1}]),
    ],
    ids=str,
)
def test_what_it_does_not_make_pyarrow_makes(arrow_type: pa.DataType, values: list[Any]) -> None:
    assert array(values, arrow_type).equals(with_null_fields(pa.array(values, arrow_type)))


@pytest.mark.parametrize(
    ("arrow_type", "value"), [(pa.int8(), 128), (pa.string(), "\ud800"), (pa.int64(), "1")], ids=str
)
def test_what_fits_no_array_is_refused_as_by_pyarrow(arrow_type: pa.DataType, value: Any) -> None:
    with pytest.raises((pa.ArrowException, ValueError, TypeError)) as by_pyarrow:
        pa.array([value], arrow_type)
    with pytest.raises(by_pyarrow.type):
        array([value], arrow_type)


def test_equal_types_keep_the_metadata_of_their_own_fields() -> None:
    def variants(metadata: dict[str, str] | None) -> pa.DataType:
        inner = pa.struct([pa.field("value", pa.binary(), nullable=False, metadata=metadata)])
        return pa.struct([("v", inner), ("of", pa.list_(inner)), ("by", pa.map_(pa.string(), inner))])

    value = {"value": b"x"}
    rows = [{"v": value, "of": [value, None], "by": {"k": value}}, None]
    marked, plain = variants({"variant": "true"}), variants(None)
    assert marked == plain
    for arrow_type in (plain, marked, plain):
        made, expected = array(rows, arrow_type), with_null_fields(pa.array(rows, arrow_type))
        made.validate(full=True)
        assert made.equals(expected)
        for one, other in zip([made, *made.flatten()], [expected, *expected.flatten()], strict=True):
            assert one.type.equals(other.type, check_metadata=True)


def test_maps_with_nested_keys_are_left_to_pyarrow_before_the_first_call() -> None:
    assert builder(pa.map_(pa.list_(pa.int64()), pa.int64())) is None
    assert builder(pa.map_(pa.string(), pa.list_(pa.int64()))) is not None


class Moment(datetime.datetime):
    """Calculates in a way of its own, as those of some libraries do."""

    def __sub__(self, other: Any) -> Any:
        return datetime.timedelta(0)

    def astimezone(self, tz: Any = None) -> Any:
        return self.replace(year=1999)


@pytest.mark.parametrize(
    "moment", [Moment(2026, 1, 2, tzinfo=UTC), pd.Timestamp("1960-01-02T03:04:05.000006Z")], ids=str
)
def test_moments_of_other_classes_are_those_that_their_fields_say(moment: Any) -> None:
    arrow_type = pa.timestamp("us", "UTC")
    checked = validator("f", arrow_type)(moment)
    assert type(checked) is datetime.datetime
    assert array([checked, None], arrow_type).equals(pa.array([moment, None], arrow_type))


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_moment_of_pandas_after_9999_is_refused(zone: str | None) -> None:
    moment = pd.Timestamp(np.datetime64("12000-01-01", "s")).tz_localize(zone)
    with pytest.raises(ResultError, match=r"year .*12000"):
        validator("f", pa.timestamp("us", zone))(moment)


def test_watermarks_are_written_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "array", None)
    for zone in ("UTC", None):
        group = WatermarkColumnGroup.of("f", pa.timestamp("us", zone), "w")
        (column,) = group.columns([0, None, -(2**63)])
        assert column.type == pa.timestamp("us", zone)
        assert column.view(pa.int64()).to_pylist() == [0, None, -(2**63)]
