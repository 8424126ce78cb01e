"""What results weigh, for the bound in bytes."""

from __future__ import annotations

import pyarrow as pa

from asyncudf._arrow.layout import ColumnGroup, RowLayout
from asyncudf._arrow.results import estimated_size, size_estimate
from asyncudf.queues import StreamRecord
from tests.kit.costs import python_calls


def test_keys_weigh_as_values_do() -> None:
    assert estimated_size({"ab": "cde"}) == 5
    assert estimated_size([{"ab": 1}]) == 10
    assert estimated_size([("ab", [1, 2])]) == 18


def test_a_row_weighs_what_all_operators_have_added() -> None:
    text, number = ColumnGroup.of("page", pa.string(), "page"), ColumnGroup.of("size", pa.int64(), "size")
    source = RowLayout(("x",), (pa.string(),))
    assert source.weigher() is None
    assert source.with_columns(number).weigher() is None
    both = source.with_columns(text).with_columns(number).weigher()
    assert both is not None
    assert both([5], [StreamRecord("p" * 500, None, ("rows", 0))]) == 500
    turned = source.with_columns(number).with_columns(text).weigher()
    assert turned is not None
    assert turned(["q" * 30, None], [StreamRecord(5, None, ("rows", 0))] * 2) == 30


def test_texts_and_bytes_are_weighed_without_a_function_of_python() -> None:
    for arrow_type, value in ((pa.string(), "x" * 100), (pa.binary(), b"x" * 100)):
        weigh = size_estimate(arrow_type)
        assert weigh is not None
        assert python_calls(lambda weigh=weigh, value=value: sum(map(weigh, [value, None]))) <= 1  # type: ignore[misc]
        assert sum(map(weigh, [value, None])) == 100
    assert size_estimate(pa.int64()) is None
