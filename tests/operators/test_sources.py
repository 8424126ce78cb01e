"""The beginning of a chain: what is read of the source's columns, and how its rows are pushed on."""

from __future__ import annotations

import asyncio
import datetime
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import WatermarkStrategy
from asyncudf._arrow.rows import SourceRows, source_columns, watermark_marks
from asyncudf._operators.operator import BURST, SourceOperator
from asyncudf._operators.outputs import UNLIMITED
from asyncudf._policies.watermarks import WatermarkGenerator
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark
from asyncudf.testing import VirtualClockLoop, run_stream
from tests.kit.outputs import Taken

DAY = datetime.date(2026, 1, 2)
MOMENT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
MICROS = int(MOMENT.timestamp()) * 1_000_000


def batch(*letters: str) -> SourceRows:
    return SourceRows(pa.RecordBatch.from_pydict({"letter": list(letters), "number": list(range(len(letters)))}))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0], [1, 2], [0, 3], [0, 0, 1, 3], [2]])
def test_source_columns_stand_beside_their_own_rows_in_whatever_order_these_leave(order: list[int]) -> None:
    rows = batch(*"abcd")
    letters, numbers = source_columns([(rows, number) for number in order])
    assert letters.to_pylist() == ["abcd"[number] for number in order]
    assert numbers.to_pylist() == order


@pytest.mark.parametrize("order", ["abcdefgh", "acbdegfh", "aebfcgdh", "efghabcd", "hd", "abefcdgh"])
def test_source_columns_of_several_batches_stand_beside_their_own_rows(order: str) -> None:
    first, second = batch(*"abcd"), batch(*"efgh")
    origins = [(first if letter < "e" else second, "abcdefgh".index(letter) % 4) for letter in order]
    letters, numbers = source_columns(origins)
    assert letters.to_pylist() == list(order)
    assert numbers.to_pylist() == [number for _, number in origins]


@pytest.mark.parametrize(
    ("column", "marks"),
    [
        (pa.array([True, None, False]), [True, None, False]),
        (pa.array([5, None, 2**53 + 1]), [5, None, 2**53 + 1]),
        (pa.array([5, None, -7], pa.int32()), [5, None, -7]),
        (pa.array([DAY, None]), [MICROS, None]),
        (pa.array([MOMENT, None], pa.timestamp("ms", "Asia/Tokyo")), [MICROS, None]),
        (pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")), [MICROS, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_marks_are_flags_whole_numbers_or_microseconds(column: pa.Array, marks: list[Any]) -> None:
    read = watermark_marks(column)
    assert read == marks
    assert [type(mark) for mark in read] == [type(mark) for mark in marks]


def test_per_batch_needs_no_marks_and_takes_as_many_as_there_are() -> None:
    woven = WatermarkGenerator.of(WatermarkStrategy.per_batch()).weave([("a", None), ("b", None)], repeat(None))
    assert list(woven) == [StreamRecord("a"), StreamRecord("b"), Watermark(1)]


def test_per_batch_fences_the_batches_of_a_single_operator() -> None:
    async def reverse(n: int) -> int:
        await asyncio.sleep(100 - n)
        return n

    strategy = WatermarkStrategy.per_batch()
    rows = [{"n": n} for n in range(6)]
    got = run_stream(lambda s: s.unordered_wait(reverse, watermark=strategy), rows, "n int", batch_size=3)
    assert [row["n"] for row in got] == [2, 1, 0, 5, 4, 3]


def test_a_source_pushes_nothing_where_there_is_no_room_and_goes_on_when_there_is() -> None:
    loop, output = VirtualClockLoop(), Taken(available=0)
    rows = [StreamRecord("a"), StreamRecord("b")]

    async def main() -> None:
        source = SourceOperator(output, loop, lambda: None, None)
        async with source.running():
            source.feed(rows)
            source.end_of_input()
            await asyncio.sleep(1)
            assert output.all == []
            output.available = 1
            source.resume()

    loop.run_until_complete(main())
    loop.close()
    assert output.all == [*rows, Watermark.MAX]


def test_a_source_pushes_one_burst_in_a_turn_of_the_loop_however_often_it_is_fed() -> None:
    loop, output = VirtualClockLoop(), Taken(available=UNLIMITED)
    rows, pushed = [StreamRecord(n) for n in range(5 * BURST)], []

    async def main() -> None:
        source = SourceOperator(output, loop, lambda: None, None)
        async with source.running():
            for _ in range(4):
                source.feed(rows)
            while len(output.all) < 4 * len(rows):
                before = len(output.all)
                source.insert(LatencyMarker(0, "source", 0))
                await asyncio.sleep(0)
                pushed.append(len(output.all) - before)
            source.end_of_input()

    loop.run_until_complete(main())
    loop.close()
    assert set(pushed[:19]) == {BURST}
