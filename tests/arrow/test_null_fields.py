"""Where a struct is NULL its fields are NULL, at any depth: an engine may read a field alone, and must see no value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import DEAD_LETTERS
from asyncudf._arrow.building import with_null_fields
from asyncudf._arrow.layout import ColumnGroup
from asyncudf._arrow.rows import ResultArrays, capture_type
from asyncudf._chain.results import ResultPlan, encoders_of
from asyncudf._errors.records import ERROR_FIELDS

FLAT = pa.struct([("a", pa.float64()), ("b", pa.string()), ("c", pa.binary()), ("d", pa.bool_())])
DEEP = pa.struct([("a", pa.int64()), ("deep", pa.struct([("b", pa.int64()), ("flat", FLAT)]))])
NO_NULLS = pa.struct([pa.field("a", pa.int64(), nullable=False)])
ONE = {"a": 1.5, "b": "x", "c": b"y", "d": True}
SHAPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a struct": (FLAT, [ONE, None, ONE]),
    "no field declared to be NULL": (NO_NULLS, [{"a": 1}, None]),
    "a struct in a struct": (DEEP, [None, {"a": 1, "deep": None}, {"a": 2, "deep": {"b": 3, "flat": None}}]),
    "a list of structs": (pa.list_(DEEP), [[None, {"a": 1, "deep": None}], None, [], [None]]),
    "a large list": (pa.large_list(FLAT), [[ONE, None], None]),
    "a list in a struct": (pa.struct([("items", pa.list_(FLAT))]), [{"items": [None, ONE]}, None, {"items": None}]),
    "a list of lists": (pa.list_(pa.list_(FLAT)), [[[None], None], None]),
    "a map of structs": (pa.map_(pa.string(), DEEP), [[("k", None), ("m", {"a": 1, "deep": None})], None, []]),
    "a map with structs as keys": (pa.map_(DEEP, pa.int64()), [[({"a": 1, "deep": None}, 5)], None]),
    "a captured result": (capture_type(DEEP), [{"value": {"a": 1, "deep": None}, "error": None}]),
    "a captured error": (
        capture_type(FLAT),
        [{"value": None, "error": dict.fromkeys(ERROR_FIELDS) | {"type": "KeyError"}}],
    ),
    "nothing but NULL": (DEEP, [None, None]),
    "no rows": (pa.list_(DEEP), []),
    "a struct without fields": (pa.struct([]), [None, {}]),
}
shapes = pytest.mark.parametrize(("arrow_type", "values"), SHAPES.values(), ids=SHAPES)


def hidden(array: pa.Array) -> Iterator[Any]:
    """The values of fields below a struct that is NULL: what an engine sees that reads a field alone."""
    if pa.types.is_struct(array.type):
        for number in range(array.type.num_fields):
            field = array.field(number)
            yield from (
                one
                for one, is_null in zip(field.is_valid(), array.is_null(), strict=True)
                if is_null.as_py() and one.as_py()
            )
            yield from hidden(field)
    elif pa.types.is_map(array.type):
        yield from hidden(array.keys)
        yield from hidden(array.items)
    elif pa.types.is_nested(array.type):
        yield from hidden(array.values)


def test_pyarrow_alone_hides_values_below_a_null() -> None:
    """If it no longer does, `with_null_fields` is not needed."""
    assert list(hidden(pa.array([None], FLAT)))


@shapes
def test_results_have_no_value_below_a_null(arrow_type: pa.DataType, values: list[Any]) -> None:
    made = ResultArrays("f", arrow_type).array(values)
    assert list(hidden(made)) == []
    assert made.type == arrow_type
    assert made.equals(pa.array(values, arrow_type))
    made.validate(full=True)


@shapes
def test_so_has_each_slice(arrow_type: pa.DataType, values: list[Any]) -> None:
    """Of an array as pyarrow makes it, at any offset."""
    array = pa.array(values, arrow_type)
    for start in range(len(values)):
        part = array.slice(start)
        made = with_null_fields(part)
        assert made.equals(part)
        assert made.type == arrow_type
        made.validate(full=True)
        assert list(hidden(pa.concat_arrays([made]))) == []


def nested() -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    """Types with structs in them, and the strategy of their values."""
    leaves = st.sampled_from([(pa.int64(), st.integers(1, 9)), (pa.string(), st.sampled_from(["x", "yy"]))])

    def around(inner: st.SearchStrategy[tuple[pa.DataType, Any]]) -> st.SearchStrategy[tuple[pa.DataType, Any]]:
        of_struct = st.tuples(inner, inner).map(
            lambda two: (
                pa.struct([("a", two[0][0]), ("b", two[1][0])]),
                st.fixed_dictionaries({"a": st.none() | two[0][1], "b": st.none() | two[1][1]}),
            )
        )
        of_list = inner.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=3)))
        of_map = inner.map(
            lambda one: (
                pa.map_(pa.string(), one[0]),
                st.dictionaries(st.sampled_from("km"), st.none() | one[1]).map(lambda made: [*made.items()]),
            )
        )
        return of_struct | of_list | of_map

    return st.recursive(leaves, around, max_leaves=6)


@given(st.data())
def test_whatever_the_type_nothing_else_changes(data: st.DataObject) -> None:
    arrow_type, values = data.draw(nested())
    given_values = data.draw(st.lists(st.none() | values, max_size=6))
    array = pa.array(given_values, arrow_type)
    part = array.slice(data.draw(st.integers(0, len(array))))
    made = with_null_fields(part)
    made.validate(full=True)
    assert made.type == arrow_type
    assert made.to_pylist() == part.to_pylist()
    assert list(hidden(with_null_fields(array))) == []


@pytest.mark.parametrize(
    ("arrow_type", "values"),
    [
        (pa.int64(), [1, None]),
        (FLAT, [ONE, ONE]),
        (pa.list_(pa.int64()), [[1, None], None]),
        (pa.list_(FLAT), [[ONE], None]),
        (pa.map_(pa.string(), pa.string()), [[("k", None)], None]),
        (pa.struct([("items", pa.list_(FLAT))]), [{"items": None}]),
    ],
)
def test_nothing_is_made_anew_where_no_struct_is_null(arrow_type: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, arrow_type)
    assert with_null_fields(array) is array


def test_values_are_shared() -> None:
    """Only the bits that say what is NULL are new, however long the texts are."""
    array = pa.array([{"b": "x" * 1000}, None], pa.struct([("b", pa.string())]))
    made = with_null_fields(array)
    assert [one.address for one in made.field(0).buffers()[1:]] == [one.address for one in array.field(0).buffers()[1:]]


def test_columns_that_a_struct_is_spread_over_have_none() -> None:
    columns = ColumnGroup.of("f", DEEP, "value").columns([None, {"a": 1, "deep": None}])
    assert [list(hidden(column)) for column in columns] == [[], []]
    assert columns[1].field(0).to_pylist() == [None, None]


def test_one_of_several_results_has_none() -> None:
    """In the union of results the others are NULL, and so is each of their fields."""
    node: Any = None
    results = [ResultPlan(node, tag, False, None, pa.struct([("w", DEEP)]), None) for tag in (None, DEAD_LETTERS)]
    column = ResultArrays("f", DEEP).array([None, {"a": 1, "deep": None}])
    batch = encoders_of(results)[0]([column])
    assert [list(hidden(one)) for one in batch.columns] == [[], [], []]
    assert batch.column("r0").to_pylist() == [{"0": None}, {"0": {"a": 1, "deep": None}}]
