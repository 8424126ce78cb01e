"""Latencies in a sketch: 1% of error, and parts that add up to the whole."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.latency_sketch import LatencySketch

LATENCIES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200)
CLOSE = [scale * (1 + step / 200) for scale in (2e-7, 0.02) for step in range(100)]  # several in each bucket


def sketch_of(latencies: list[float]) -> LatencySketch:
    sketch = LatencySketch()
    sketch.add(latencies)
    return sketch


@given(LATENCIES, st.floats(0, 1))
def test_a_quantile_is_within_one_percent(latencies: list[float], share: float) -> None:
    """Each quantile is at most 1% away from that of the sorted latencies."""
    exact = sorted(latencies)[math.floor(share * (len(latencies) - 1))]
    found = sketch_of(latencies).quantile(share)
    assert found is not None
    assert abs(found - exact) <= exact * 0.0201  # 1% of what is shown, and the 10 ns that keep a logarithm finite


@given(LATENCIES, st.integers(0, 200))
def test_parts_add_up_to_the_whole(latencies: list[float], cut: int) -> None:
    """Two sketches merged are the sketch of all their calls, whatever way they came."""
    first, second = sketch_of(latencies[:cut]), sketch_of(latencies[cut:])
    second.merge(first)
    travelled = LatencySketch.from_plain(json.loads(json.dumps(second.to_plain())))
    whole = sketch_of(latencies)
    assert travelled.histogram() == whole.histogram()
    assert (travelled.count, travelled.shortest, travelled.longest) == (whole.count, whole.shortest, whole.longest)
    assert math.isclose(travelled.seconds, whole.seconds)


@given(st.one_of(st.lists(st.floats(0, 1e6), min_size=1), st.lists(st.sampled_from(CLOSE), min_size=1, max_size=2_000)))
def test_each_latency_is_in_the_bucket_of_the_formula(latencies: list[float]) -> None:
    """Sketches of older versions, which are stored, have the same buckets; only at a bound may rounding decide."""
    buckets = sketch_of(latencies).to_plain()["buckets"]
    found = [int(bucket) for bucket, count in buckets.items() for _ in range(count)]
    for latency, bucket in zip(sorted(latencies), found, strict=True):
        place = math.log(latency + 1e-8) / math.log(1.01 / 0.99)
        assert bucket in (math.ceil(place - 1e-9), math.ceil(place + 1e-9)), latency


def test_it_may_be_read_at_any_time() -> None:
    """Latencies that come a few at a time are put into buckets many together, and a reader sees all of them."""
    latencies = [0.001 * (1 + step % 97) for step in range(25_000)]
    read, unread = LatencySketch(), LatencySketch()
    for start in range(0, 25_000, 250):
        read.add(latencies[start : start + 250])
        assert (read.count, read.longest) == (start + 250, 0.097)
        unread.add(latencies[start : start + 250])
    assert unread.histogram() == read.histogram() == sketch_of(latencies).histogram()
    for figure, value in (("count", 2), ("seconds", 0.75), ("shortest", 0.25), ("longest", 0.5), ("mean", 0.375)):
        assert getattr(sketch_of([0.25, 0.5]), figure) == value, figure
    assert LatencySketch().merge(unread).to_plain()["buckets"] == read.to_plain()["buckets"]


def test_the_extremes_and_the_mean_are_exact() -> None:
    """They are those of the calls, and no quantile lies outside; also where a clock did not move, or moved back."""
    sketch = sketch_of([0.1, 0.2, 0.6])
    assert (sketch.shortest, sketch.longest, sketch.count) == (0.1, 0.6, 3)
    assert sketch.mean is not None
    assert math.isclose(sketch.mean, 0.3)
    assert (sketch.quantile(0.0), sketch.quantile(1.0)) == (0.1, 0.6)
    sketch = sketch_of([-1e-9, -1e-9, 0.0, 0.5])
    assert (sketch.shortest, sketch.longest, sketch.count, sketch.quantile(0.5)) == (0.0, 0.5, 4, 0.0)


def test_without_calls_there_is_nothing_to_tell() -> None:
    empty = LatencySketch.from_plain(LatencySketch().to_plain())
    assert (empty.count, empty.mean, empty.quantile(0.5), empty.histogram()) == (0, None, None, [])
    other = sketch_of([1.0])
    other.merge(empty)
    assert (other.count, other.shortest, other.longest) == (1, 1.0, 1.0)
