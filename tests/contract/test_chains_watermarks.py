"""No row passes a watermark on its way through a chain, wherever the watermarks come from."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest

from asyncudf import AsyncStream, ProcessFunction, WatermarkStrategy
from asyncudf.testing import run_stream
from tests.kit.chains import column, numbers


class TestWatermarks:
    @pytest.mark.parametrize("batch_size", [3, 100])
    def test_no_row_passes_a_watermark_on_its_way_through_all_operators(self, batch_size: int) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps("n", interval=3)

        async def late(n: int) -> int:
            await asyncio.sleep(-n % 7)
            return n

        async def later(late: int) -> int:
            await asyncio.sleep(late % 5)
            return late

        got = run_stream(
            lambda s: (
                s.assign_timestamps_and_watermarks(strategy)
                .unordered_wait(late)
                .filter(lambda row: row["n"] != 4)
                .unordered_wait(later)
            ),
            numbers(12),
            "n long",
            batch_size=batch_size,
        )
        order = column(got, "n")
        assert order != sorted(order), "rows do change places"
        assert [sorted(order[a:b]) for a, b in ((0, 3), (3, 5), (5, 8), (8, 11))] == [
            [0, 1, 2],
            [3, 5],
            [6, 7, 8],
            [9, 10, 11],
        ]

    def test_the_watermark_in_force_can_be_a_column_for_later_operators(self) -> None:
        strategy = WatermarkStrategy.for_punctuation("n")
        seen: list[Any] = []

        def look(row: dict[str, Any]) -> bool:
            seen.append(row["mark"])
            return True

        async def same(n: int) -> int:
            return n

        got = run_stream(
            lambda s: s.ordered_wait(same, watermark=strategy, with_watermark_column="mark").filter(look),
            [{"n": n} for n in (5, 7)],
            "n long",
        )
        first_mark = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=5)
        assert seen == column(got, "mark") == [None, first_mark]

    def test_a_strategy_in_the_middle_reads_what_an_operator_has_added(self) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("at", 0, interval=2)

        async def at(n: int) -> int:
            return n * 10

        async def same(n: int) -> int:
            return n

        got = run_stream(
            lambda s: s.ordered_wait(at, returnType="bigint").ordered_wait(
                same, "n", watermark=strategy, with_watermark_column="mark"
            ),
            numbers(5),
            "n long",
        )
        micros = [None if mark is None else mark.microsecond for mark in column(got, "mark")]
        assert micros == [None, None, 9, 9, 29]

    def test_rows_behind_a_strategy_in_the_middle_have_its_event_time(self) -> None:
        class Times(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                collector.collect({"before": value["before"], "time": context.timestamp})

        async def at(n: int) -> int | None:
            return n * 10 if n != 1 else None

        async def same(at: int | None) -> int | None:
            return at

        strategy = WatermarkStrategy.for_monotonous_timestamps("at", interval=1)

        def chain(s: AsyncStream) -> AsyncStream:
            stream = s.process(Untimed(), "n long, before long").ordered_wait(at, returnType="bigint")
            stream = stream.assign_timestamps_and_watermarks(strategy).ordered_wait(same, returnType="bigint")
            return stream.process(Times(), "before long, time long")

        class Untimed(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                collector.collect({"n": value["n"], "before": context.timestamp})

        got = run_stream(chain, numbers(4), "n long")
        assert got == [{"before": None, "time": time} for time in (0, None, 20, 30)]

    def test_per_batch_follows_the_batches_of_the_source_also_on_a_branch(self) -> None:
        async def reverse(n: int) -> int:
            await asyncio.sleep(100 - n)
            return n

        got = run_stream(
            lambda s: {
                "a": s.unordered_wait(reverse, watermark=WatermarkStrategy.per_batch()),
                "b": s.filter(lambda row: False),
            },
            numbers(6),
            "n int",
            batch_size=3,
        )
        assert column(got["a"], "n") == [2, 1, 0, 5, 4, 3]
