"""A null struct comes through, though its fields are declared not null and Spark has a null in them all the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncudf._arrow.rows import values_of
from asyncudf._chain.results import ResultPlan, encoders_of

ID = pa.field("id", pa.int64(), nullable=False)


def spark_array() -> pa.Array:
    """`[None, {"id": 2}]` as Spark hands it over: under a null struct, a null in a field that has none."""
    valid = pa.array([None, 1]).buffers()[0]
    return pa.StructArray.from_buffers(pa.struct([ID]), 2, [valid], children=[pa.array([None, 2])])


def planned(column: pa.Array) -> ResultPlan:
    node: Any = None
    return ResultPlan(node, None, False, None, pa.struct([("x", column.type)]), None)


def test_one_of_several_results_is_written() -> None:
    """Its columns become the fields of a struct, for which pyarrow casts each to its declared type."""
    column = spark_array()
    batch = encoders_of([planned(column), planned(column)])[1]([column])
    assert batch.column("r1").to_pylist() == [{"0": None}, {"0": {"id": 2}}]
    assert batch.column("r0").to_pylist() == [None, None]


def test_a_list_of_such_structs_is_written() -> None:
    column = pa.ListArray.from_arrays(pa.array([0, 2]), spark_array())
    batch = encoders_of([planned(column), planned(column)])[0]([column])
    assert batch.column("r0").to_pylist() == [{"0": [None, {"id": 2}]}]


def test_a_map_with_arrays_as_keys_is_written_in_utc() -> None:
    """A cast of it ends the process before pyarrow 17."""
    whole = pa.field("element", pa.int32(), nullable=False)
    in_oslo, in_utc = (pa.map_(pa.list_(whole), pa.timestamp("us", zone)) for zone in ("Europe/Oslo", "UTC"))
    column = pa.array([[([1, 2], 0)], None], in_oslo)
    batch = encoders_of([planned(column), planned(column)])[1]([column])
    assert batch.column("r1").field(0).to_pylist() == pa.array([[([1, 2], 0)], None], in_utc).to_pylist()


@pytest.mark.parametrize("zone", ["Europe/Oslo", "UTC"])
def test_values_are_read_in_a_session_of_any_zone(zone: str) -> None:
    """Moments are read in UTC, so what has one beside it is cast."""
    column = pa.StructArray.from_arrays([spark_array(), pa.nulls(2, pa.timestamp("us", zone))], ["s", "t"])
    assert values_of(column) == [{"s": None, "t": None}, {"s": {"id": 2}, "t": None}]


def test_rows_behind_the_first_of_a_batch_are_written_with_void_beside_what_is_not_null() -> None:
    """Such as `named_struct('a', NULL, 'id', id)`; pyarrow's view skipped the void once more, or ended the process."""
    rows = [{"a": None, "id": n} for n in range(5)]
    column = pa.array(rows, pa.struct([pa.field("a", pa.null()), ID])).slice(2, 2)
    batch = encoders_of([planned(column), planned(column)])[1]([column])
    batch.validate(full=True)
    assert batch.column("r1").to_pylist() == [{"0": row} for row in rows[2:4]]
