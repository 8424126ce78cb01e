"""Where each strategy puts its watermarks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncudf import WatermarkStrategy
from asyncudf._policies.watermarks import WatermarkGenerator
from asyncudf.queues import StreamRecord, Watermark


def weave(strategy: WatermarkStrategy, *batches: list[Any]) -> list[Any]:
    """The elements of batches of marks: rows as their numbers, watermarks as they are."""
    generator, number, woven = WatermarkGenerator.of(strategy), 0, []
    for marks in batches:
        rows = [(number + i, None) for i in range(len(marks))]
        number += len(marks)
        woven += [e.value if isinstance(e, StreamRecord) else e for e in generator.weave(rows, marks)]
    return woven


def test_bounded_out_of_orderness_is_the_largest_timestamp_less_the_delay_less_one() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("ts", "2 seconds", interval=2)
    got = weave(strategy, [10_000_000, 30_000_000, 20_000_000, 40_000_000])
    assert got == [0, 1, Watermark(27_999_999), 2, 3, Watermark(37_999_999)]


def test_monotonous_timestamps_have_no_delay() -> None:
    assert weave(WatermarkStrategy.for_monotonous_timestamps("ts"), [5, 7], [9]) == [
        0,
        1,
        Watermark(6),
        2,
        Watermark(8),
    ]


def test_watermarks_only_advance() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps("ts", interval=1)
    assert weave(strategy, [5, 3, 5, 6]) == [0, Watermark(4), 1, 2, 3, Watermark(5)]


def test_a_row_without_a_timestamp_advances_nothing() -> None:
    assert weave(WatermarkStrategy.for_monotonous_timestamps("ts"), [None, None]) == [0, 1]


def test_rows_carry_their_timestamps() -> None:
    generator = WatermarkGenerator.of(WatermarkStrategy.for_monotonous_timestamps("ts"))
    first, *_ = generator.weave([("a", "origin")], [5])
    assert first == StreamRecord("a", 5)
    assert isinstance(first, StreamRecord)
    assert first.origin == "origin"


def test_punctuation_by_flags_is_numbered() -> None:
    strategy = WatermarkStrategy.for_punctuation("last")
    assert weave(strategy, [False, True, None], [True]) == [0, 1, Watermark(1), 2, 3, Watermark(2)]


def test_punctuation_by_timestamps_is_the_timestamp() -> None:
    assert weave(WatermarkStrategy.for_punctuation("at"), [None, 50, 40, 60]) == [
        0,
        1,
        Watermark(50),
        2,
        3,
        Watermark(60),
    ]


def test_per_batch_ends_every_batch() -> None:
    assert weave(WatermarkStrategy.per_batch(), [None, None], [None]) == [0, 1, Watermark(1), 2, Watermark(2)]


def test_from_column_rebuilds_the_segments_that_were_written() -> None:
    strategy = WatermarkStrategy.from_column("wm")
    assert weave(strategy, [None, None, 5, 5], [5, 9]) == [0, 1, Watermark(5), 2, 3, 4, Watermark(9), 5]


@pytest.mark.parametrize(
    "delay", ["10 seconds", "10 second", " 10  Seconds ", "0.1666666667 minutes", 10, 10.0, timedelta(seconds=10)]
)
def test_a_delay_is_told_in_many_ways(delay: Any) -> None:
    assert WatermarkStrategy.for_bounded_out_of_orderness("ts", delay).delay == pytest.approx(10_000_000, abs=10)
