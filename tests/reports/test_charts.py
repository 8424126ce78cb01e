"""What a report draws is what was counted: nothing is lost, nothing leaves the chart, no label is on another."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.latency_sketch import LatencySketch
from asyncudf._observe.reports.run_report import TICK_SPACE, curves_of, histogram_of

QUANTILES = ("p50", "p95", "p99")
latencies = st.lists(st.floats(min_value=0, max_value=1e5), min_size=1, max_size=60)
stretches = st.lists(
    st.tuples(st.floats(min_value=1e-6, max_value=100), st.integers(0, 500), st.floats(min_value=0, max_value=64)),
    min_size=1,
    max_size=130,
)


def figures_of(seconds: Sequence[float]) -> dict[str, Any]:
    """Latencies, as they stand in the metrics."""
    sketch = LatencySketch()
    sketch.add(seconds)
    quantiles = {name: sketch.quantile(int(name[1:]) / 100) for name in QUANTILES}
    return {**quantiles, "histogram": [[*bucket] for bucket in sketch.histogram()]}


def timeline_of(stretches: Sequence[tuple[float, int, float]]) -> list[list[float]]:
    ends, now = [], 0.0
    for length, rows, in_flight in stretches:
        now += length
        ends.append([now, rows, in_flight, 0])
    return ends


def steps_of(path: str) -> list[tuple[float, float]]:
    """The height of each step of a line, and where it ends, in percent."""
    steps = re.findall(r"V([\d.-]+)H([\d.]+)", path)
    return [(100 - float(height), float(end)) for height, end in steps]


class TestHistogram:
    @given(latencies)
    def test_every_call_is_in_a_bar(self, seconds: list[float]) -> None:
        """Bars, quantiles and ticks are in their places: none on another, none outside, each where its calls are."""
        figures = figures_of(seconds)
        chart = histogram_of(figures, QUANTILES)
        assert chart is not None
        assert sum(bar.calls for bar in chart.bars) == len(seconds)
        assert max(bar.height for bar in chart.bars) == pytest.approx(100)
        assert all(bar.at >= 0 and bar.at + bar.width <= 100 + 1e-6 for bar in chart.bars)
        assert all(bar.at + bar.width <= after.at + 1e-6 for bar, after in pairwise(chart.bars))
        bucket = min(bar.width for bar in chart.bars)
        for mark in chart.quantiles:
            assert mark.value == figures[mark.name]
            assert any(bar.at - bucket <= mark.at <= bar.at + bar.width + bucket for bar in chart.bars)
        assert chart.ticks
        assert all(0 <= tick.at <= 100 for tick in chart.ticks)
        assert all(after.at - tick.at >= TICK_SPACE - 0.5 for tick, after in pairwise(chart.ticks))

    @pytest.mark.parametrize("factor", [1e-4, 1, 60])
    def test_calls_that_are_equal_are_one_slim_bar(self, factor: float) -> None:
        chart = histogram_of(figures_of([factor] * 7), QUANTILES)
        assert chart is not None
        (bar,) = chart.bars
        assert bar.width < 4
        assert bar.at == pytest.approx(50, abs=5)
        assert bar.shortest <= factor * 1.02
        assert bar.longest >= factor / 1.02


class TestCurves:
    """What tasks did over time."""

    @given(stretches)
    def test_the_areas_are_the_rows_that_were_done_and_the_calls_in_flight(
        self, stretches: list[tuple[float, int, float]]
    ) -> None:
        """However long each stretch was, and however the chart is cut; and never above the capacity."""
        timeline = timeline_of(stretches)
        chart = curves_of([timeline], 64)
        assert chart.in_flight == 64
        areas = []
        for path in (chart.rates[0], chart.calls[0]):
            area, begin = 0.0, 0.0
            for height, end in steps_of(path):
                assert -0.01 <= height <= 100.01
                area += height / 100 * (end - begin) / 100
                begin = end
            areas.append(area)
        rows = sum(rows for _, rows, _ in stretches)
        drawn = areas[0] * chart.rate * chart.seconds
        assert drawn == pytest.approx(rows, rel=0.02, abs=chart.rate * chart.seconds / 2e4)
        mean = sum(length * calls for length, _, calls in stretches) / timeline[-1][0]
        assert areas[1] * 64 == pytest.approx(mean, abs=0.1)

    def test_tasks_have_one_scale(self) -> None:
        chart = curves_of([[[4.0, 40, 2, 0]], [[2.0, 10, 1, 0]]], None)
        assert (chart.seconds, chart.rate, chart.in_flight) == (4.0, 10.0, 2.0)
        assert steps_of(chart.rates[0])[-1] == (100, 100)
        assert steps_of(chart.rates[1])[-1] == (50, 50)
        assert steps_of(chart.calls[1])[-1] == (50, 50)
        assert curves_of([[[1.0, 1, 30, 0]]], 20).in_flight == 30  # beyond the capacity, whatever the options say

    def test_a_last_short_stretch_is_no_spike(self) -> None:
        """Rows that are counted when a task ends would else be a million in a second."""
        chart = curves_of([[[10.0, 1000, 5, 0], [10.000001, 5, 0, 0]]], 5)
        assert chart.rate <= 150

    @pytest.mark.parametrize("timelines", [[], [[]], [[[0.0, 0, 0, 0]]], [[[1.0, 0, 0, 0]]]])
    def test_nothing_is_drawn_of_nothing(self, timelines: list[list[list[float]]]) -> None:
        """A task that ended at once, or did nothing."""
        chart = curves_of(timelines, None)
        assert all(math.isfinite(end) and end >= 0 for end in (chart.seconds, chart.rate, chart.in_flight))
        assert all(height == 0 for path in chart.rates for height, _ in steps_of(path))
        assert histogram_of({"histogram": []}, QUANTILES) is None
