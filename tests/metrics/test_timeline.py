"""The curve of a task: few points, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.counters import MOST_POINTS, Point, joined


@given(st.lists(st.tuples(st.floats(0.001, 100), st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=700))
def test_however_long_it_is_there_are_few_points_with_all_rows(steps: list[tuple[float, int, int]]) -> None:
    """Points are joined in time: the rows add up, the end stays, and means are weighed by how long they held."""
    points, now, area = list[Point](), 0.0, 0.0
    for seconds, rows, in_flight in steps:
        now += seconds
        area += seconds * in_flight
        points.append(Point(now, rows, in_flight, 0))
        points = joined(points) if len(points) > MOST_POINTS else points
    assert len(points) <= MOST_POINTS
    assert sum(rows for _, rows, _, _ in points) == sum(rows for _, rows, _ in steps)
    assert points[-1][0] == pytest.approx(now, abs=1e-3)
    starts = [0.0, *(point[0] for point in points)]
    lengths = [point[0] - start for point, start in zip(points, starts, strict=False)]
    assert min(lengths) > 0
    found = sum(length * point[2] for length, point in zip(lengths, points, strict=True))
    assert found == pytest.approx(area, rel=0.01, abs=0.01 * len(steps))
