"""Arrays that are put together without pandas are those that pyarrow makes of the same values."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf._arrow.building import array, builder, with_null_fields
from asyncudf._arrow.columns import python_values
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
