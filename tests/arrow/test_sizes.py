"""How much memory values take, for the bounds in bytes."""

from __future__ import annotations

import datetime
import decimal
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncudf._arrow.layout import ColumnGroup, RowLayout
from asyncudf._arrow.rows import values_of
from asyncudf._arrow.sizes import estimated_size, fixed_size, size_as_objects, size_estimate
from asyncudf.queues import StreamRecord
from tests.kit.costs import python_calls

ROWS = 1_000
VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "whole numbers": (pa.int64(), lambda n: n + 1_000),
    "numbers": (pa.float64(), float),
    "decimals": (pa.decimal128(20, 2), lambda n: decimal.Decimal(n)),
    "moments": (pa.timestamp("us"), lambda n: datetime.datetime(2025, 1, 1) + datetime.timedelta(seconds=n)),
    "short texts": (pa.string(), lambda n: f"{n:010}"),
    "long texts": (pa.large_string(), lambda n: f"{n:01000}"),
    "bytes": (pa.binary(), lambda n: b"%0100d" % n),
    "lists": (pa.list_(pa.float64()), lambda n: [n + 0.5 * i for i in range(50)]),
    "structs": (pa.struct([("n", pa.int64()), ("x", pa.float64())]), lambda n: {"n": n + 1_000, "x": n / 2}),
    "structs with texts": (
        pa.struct([("n", pa.int64()), ("text", pa.string())]),
        lambda n: {"n": n + 1_000, "text": f"{n:050}"},
    ),
    "lists of structs": (
        pa.list_(pa.struct([("n", pa.int64()), ("text", pa.string())])),
        lambda n: [{"n": n + 1_000 + i, "text": f"{n:020}"} for i in range(5)],
    ),
    "maps": (pa.map_(pa.string(), pa.int64()), lambda n: [(f"key {n} {i}", n + i + 1_000) for i in range(20)]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_sizes_are_those_of_pythons_objects(kind: str) -> None:
    """Not far below what they take, nor three times as much: a moment and a short text count as the largest do."""
    arrow_type, value_of = VALUES[kind]
    column = pa.array([value_of(n) for n in range(ROWS)], arrow_type)
    values_of(column.slice(0, 1))  # what is made once
    tracemalloc.start()
    try:
        values = values_of(column)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    size = size_estimate(arrow_type)
    estimated = ROWS * (fixed_size(arrow_type) or 0) if size is None else sum(map(size, values))
    for told in (estimated, size_as_objects(column)):
        assert 0.75 * taken <= told <= 3 * taken


def test_values_of_one_size_are_not_estimated() -> None:
    assert size_estimate(pa.int64()) is None
    assert size_estimate(VALUES["structs"][0]) is None
    assert fixed_size(pa.string()) is None
    assert fixed_size(VALUES["structs with texts"][0]) is None


def test_keys_are_as_large_as_values() -> None:
    assert estimated_size({"x" * 1_000: 1}) > 1_000
    assert estimated_size([{1: "x" * 1_000}]) > 1_000
    assert estimated_size([("x" * 1_000, [1, 2])]) > 1_000


def test_a_row_may_begin_with_a_number() -> None:
    assert estimated_size((1, "x" * 1_000)) > 1_000


def test_methods_of_a_subclass_are_not_asked() -> None:
    class Odd(str):
        def __len__(self) -> int:
            raise ValueError

        __sizeof__ = __len__

    assert estimated_size(Odd("x" * 1_000)) > 1_000
    assert estimated_size(np.str_("x" * 1_000)) > 1_000
    assert estimated_size(memoryview(bytes(1_000))) == 1_000


def test_a_row_holds_what_all_operators_have_added() -> None:
    text, number = ColumnGroup.of("page", pa.string(), "page"), ColumnGroup.of("size", pa.int64(), "size")
    source = RowLayout(("x",), (pa.string(),))
    assert source.weigher() is None
    assert source.with_columns(number).weigher() is None
    both = source.with_columns(text).with_columns(number).weigher()
    assert both is not None
    assert 500 <= both([5], [StreamRecord("p" * 500, None, ("rows", 0))]) <= 600
    turned = source.with_columns(number).with_columns(text).weigher()
    assert turned is not None
    assert 30 <= turned(["q" * 30, None], [StreamRecord(5, None, ("rows", 0))] * 2) <= 130
    assert source.size_of_place < source.with_columns(number).size_of_place


def test_texts_and_bytes_are_estimated_without_a_function_of_python() -> None:
    for arrow_type, value in ((pa.string(), "x" * 100), (pa.binary(), b"x" * 100)):
        size = size_estimate(arrow_type)
        assert size is not None
        assert python_calls(lambda size=size, value=value: sum(map(size, [value, None]))) <= 1  # type: ignore[misc]
