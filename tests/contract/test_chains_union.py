"""A union has the rows of all its branches and the lowest of their watermarks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from asyncudf import AsyncStream, ProcessFunction, WatermarkStrategy
from asyncudf.testing import run_stream
from tests.kit.chains import column, numbers

STRICT = WatermarkStrategy.for_monotonous_timestamps("n", interval=1)


class TestUnion:
    def test_rows_of_all_branches_come_out(self) -> None:
        got = run_stream(
            lambda s: s.filter(lambda row: row["n"] < 2).union(s.filter(lambda row: row["n"] >= 2)), numbers(4), "n int"
        )
        assert sorted(column(got, "n")) == [0, 1, 2, 3]

    def test_a_stream_may_be_joined_with_itself(self) -> None:
        assert column(run_stream(lambda s: s.union(s), numbers(2), "n int"), "n") == [0, 0, 1, 1]

    def marks(self, build: Any, count: int) -> list[Any]:
        """The watermark in force at each row."""

        class Marks(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                collector.collect(context.watermark)

        async def at(n: int) -> int:  # row n comes out in second n
            await asyncio.sleep(n)
            return n

        chain = lambda s: build(s.ordered_wait(at)).process(Marks(), "bigint")  # noqa: E731
        return column(run_stream(chain, numbers(count), "n long"), "value")

    def test_its_watermark_is_the_lowest_of_its_inputs(self) -> None:
        def build(s: AsyncStream) -> AsyncStream:
            ahead = s.assign_timestamps_and_watermarks(STRICT)
            behind = s.assign_timestamps_and_watermarks(
                WatermarkStrategy.for_bounded_out_of_orderness("n", timedelta(microseconds=2), interval=1)
            )
            return ahead.union(behind)

        assert self.marks(build, 4) == [None, None, -3, -3, -2, -2, -1, -1]

    def test_an_idle_branch_does_not_hold_it_back_until_it_is_active_again(self) -> None:
        def build(s: AsyncStream, quiet: WatermarkStrategy) -> AsyncStream:
            busy = s.assign_timestamps_and_watermarks(STRICT)
            rare = s.filter(lambda row: row["n"] == 6).assign_timestamps_and_watermarks(quiet)
            return busy.union(rare)

        held = [None] * 8 + [5, 5, 5]
        assert self.marks(lambda s: build(s, STRICT), 10) == [*held[:7], None, 5, 5, 5]
        idle = [None] * 5 + [3, 4, 5, 5, 5, 5]  # silent since second 4.5, but for row 6 and the 4.5 seconds after it
        assert self.marks(lambda s: build(s, STRICT.with_idleness(4.5)), 10) == idle

    def test_an_assigner_replaces_the_watermarks_that_come_to_it(self) -> None:
        later = WatermarkStrategy.for_bounded_out_of_orderness("n", timedelta(microseconds=5), interval=1)

        def build(s: AsyncStream) -> AsyncStream:
            return s.assign_timestamps_and_watermarks(STRICT).assign_timestamps_and_watermarks(later)

        assert self.marks(build, 3) == [None, -6, -5]

    def test_it_ends_when_its_last_input_ends(self) -> None:
        async def slow(n: int) -> int:
            await asyncio.sleep(5)
            return n

        async def instant(slow: int) -> int:
            return slow

        def chain(s: AsyncStream) -> AsyncStream:
            quick = s.map(lambda row: {**row, "slow": -1}, "n int, slow int")
            return quick.union(s.ordered_wait(slow, returnType="int")).ordered_wait(instant, returnType="bigint")

        assert len(run_stream(chain, numbers(3), "n int")) == 6
