"""Elements are immutable values that compare by content, whatever else an operator makes of them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.testing import ManualFunction, OperatorHarness

ELEMENTS = [StreamRecord("a", 1), Watermark(5), Watermark.MAX, WatermarkStatus.IDLE, LatencyMarker(1.0, "map", 0)]


@pytest.mark.parametrize("element", ELEMENTS)
def test_an_element_equals_its_copy_and_no_other(element: Any) -> None:
    copied = pickle.loads(pickle.dumps(element))
    assert copied == element
    assert hash(copied) == hash(element)
    assert [other for other in ELEMENTS if other == element] == [element]
    assert element != (tuple(element) if isinstance(element, tuple) else element.value)


def test_each_field_counts_but_the_origin() -> None:
    assert StreamRecord("a", 1) not in (StreamRecord("a", 2), StreamRecord("b", 1), StreamRecord("a"))
    assert StreamRecord("a", 1, "here") == StreamRecord("a", 1, "there")
    assert hash(StreamRecord("a", 1, "here")) == hash(StreamRecord("a", 1, "there"))
    assert Watermark(5) != Watermark(6)
    assert LatencyMarker(1.0, "map", 0) not in (LatencyMarker(1.0, "map", 1), StreamRecord(1.0, "map", 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("element", "field"),
    [(StreamRecord("a", 1), "timestamp"), (Watermark(5), "timestamp"), (LatencyMarker(1.0, "map", 0), "subtask")],
)
def test_elements_cannot_be_changed(element: Any, field: str) -> None:
    before = getattr(element, field)
    with pytest.raises(AttributeError, match="can't set attribute"):
        setattr(element, field, 9)
    assert getattr(element, field) == before


def test_watermarks_are_ordered_by_time_and_max_ends_the_stream() -> None:
    assert Watermark(1) < Watermark(2) < Watermark.MAX
    assert max(Watermark(3), Watermark(2)) == Watermark(3)
    with OperatorHarness(ManualFunction()) as harness:
        harness.end()
        assert harness.is_done


def test_only_rows_reach_the_function() -> None:
    function, markers = ManualFunction(), [Watermark(1), WatermarkStatus.IDLE, LatencyMarker(1.0, "map", 0)]
    with OperatorHarness(function) as harness:
        harness.put(*markers, StreamRecord("a", 7))
        assert (function.calls, harness.output) == (["a"], markers)
