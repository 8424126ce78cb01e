"""Where each strategy puts its watermarks, what they fence, and how branches and their union agree on them."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AsyncStream, ProcessFunction, WatermarkStrategy, async_pandas_udf
from asyncudf.testing import VirtualClockLoop, run_stream
from tests.kit.chains import column, numbers

MOMENT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
MICROS = int(MOMENT.timestamp()) * 1_000_000
BY_TIME = WatermarkStrategy.for_monotonous_timestamps
LATE_BY = WatermarkStrategy.for_bounded_out_of_orderness
STRICT = BY_TIME("n", interval=1)


class Times(ProcessFunction):
    """The event time of each row, and the watermark in force when it comes."""

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect({"time": context.timestamp, "mark": context.watermark})


def timed(strategy: WatermarkStrategy, at: list[Any], kind: str = "bigint", batch_size: int = 99) -> list[Any]:
    """(event time, watermark in force) of rows with these values in the column `at`."""
    rows = run_stream(
        lambda s: s.assign_timestamps_and_watermarks(strategy).process(Times(), "time bigint, mark bigint"),
        [{"at": one} for one in at],
        f"at {kind}",
        batch_size=batch_size,
    )
    return [(row["time"], row["mark"]) for row in rows]


def marks(*args: Any, **kwargs: Any) -> list[int | None]:
    return [mark for _, mark in timed(*args, **kwargs)]


class TestStrategies:
    def test_a_watermark_is_the_largest_timestamp_less_the_delay_less_one_microsecond(self) -> None:
        late = LATE_BY("at", "2 seconds", interval=2)
        at = [10_000_000, 30_000_000, 20_000_000, 40_000_000, 0]
        assert marks(late, at) == [None, None, 27_999_999, 27_999_999, 37_999_999]

    @pytest.mark.parametrize(
        "delay",
        ["10 seconds", "10 second", " 10  Seconds ", "0.1666666667 minutes", 10, 10.0, dt.timedelta(seconds=10)],
    )
    def test_a_delay_is_told_in_many_ways(self, delay: Any) -> None:
        assert marks(LATE_BY("at", delay, interval=1), [0, 0])[1] == pytest.approx(-10_000_001, abs=10)

    @pytest.mark.parametrize(
        ("strategy", "at", "wanted"),
        [
            (BY_TIME("at", interval=3), [1, 2, 3, 4, 5, 6, 7], [*[None] * 3, *[2] * 3, 5]),
            (BY_TIME("at"), [*range(1_500)], [*[None] * 1_000, *[998] * 500]),
            (BY_TIME("at", interval=1), [5, 3, 5, 6, 0], [None, 4, 4, 4, 5]),
            (BY_TIME("at", interval=1), [None, 5, None], [None, None, 4]),
            (WatermarkStrategy.for_punctuation("at"), [None, 50, 40, 60, None], [None, None, 50, 50, 60]),
            (WatermarkStrategy.from_column("at"), [None, None, 5, 5, 4, 9], [None, None, 5, 5, 5, 9]),
        ],
        ids=[
            "every so many rows", "a thousand by default", "never backwards", "a row without a time advances nothing",
            "after a punctuation", "a column's comes before its row",
        ],
    )  # fmt: skip
    def test_where_they_come(self, strategy: WatermarkStrategy, at: list[Any], wanted: list[Any]) -> None:
        assert marks(strategy, at, batch_size=2_000) == wanted

    def test_one_comes_at_each_batch_end(self) -> None:
        assert marks(BY_TIME("at"), [5, 7, 9, 8, 0], batch_size=2) == [None, None, 6, 6, 8]

    def test_punctuation_by_flags_is_numbered(self) -> None:
        flags = [False, True, None, True, False]
        assert timed(WatermarkStrategy.for_punctuation("at"), flags, "boolean") == [
            (None, mark) for mark in (None, None, 1, 1, 2)
        ]

    @pytest.mark.parametrize(
        ("kind", "at", "time"),
        [
            ("bigint", 2**53 + 1, 2**53 + 1),
            ("bigint", -7, -7),
            ("date", MOMENT.date(), MICROS),
            ("timestamp", MOMENT, MICROS),
            ("timestamp_ntz", MOMENT.replace(tzinfo=None), MICROS),
        ],
    )
    def test_a_timestamp_may_be_of_any_type_with_an_order(self, kind: str, at: Any, time: int) -> None:
        assert timed(BY_TIME("at", interval=1), [at, None], kind) == [(time, None), (None, time - 1)]


class TestFences:
    @given(naps=st.permutations(range(9)), batch_size=st.integers(1, 9))
    def test_rows_leave_by_completion_between_two_watermarks_beside_their_own_columns(
        self, naps: list[int], batch_size: int
    ) -> None:
        """Whatever batches of the source the rows that leave together come from."""

        async def nap(n: int) -> int:
            await asyncio.sleep(naps[n])
            return n

        rows = [{"n": n, "letter": "abcdefghi"[n]} for n in range(9)]
        got = run_stream(
            lambda s: s.unordered_wait(nap, watermark=BY_TIME("n", interval=4)),
            rows, "n long, letter string", batch_size=batch_size,
        )  # fmt: skip
        fences = [n for n in range(9) if n % batch_size % 4 == 0]
        segments = [range(begin, end) for begin, end in zip(fences, [*fences[1:], 9], strict=True)]
        wanted = [n for segment in segments for n in sorted(segment, key=naps.__getitem__)]
        assert column(got, "nap") == wanted
        assert [(row["n"], row["letter"]) for row in got] == [(n, "abcdefghi"[n]) for n in wanted]

    @pytest.mark.parametrize("branches", [1, 2])
    def test_per_batch_follows_the_batches_of_the_source_also_on_a_branch(self, branches: int) -> None:
        async def reverse(n: int) -> int:
            await asyncio.sleep(100 - n)
            return n

        def build(s: AsyncStream) -> dict[str, AsyncStream]:
            built = {"a": s.unordered_wait(reverse, watermark=WatermarkStrategy.per_batch())}
            return built if branches == 1 else {**built, "b": s.filter(lambda row: False)}

        got = run_stream(build, numbers(6), "n int", batch_size=3)
        assert column(got["a"], "n") == [2, 1, 0, 5, 4, 3]


@async_pandas_udf("bigint")
async def times_ten(n: int) -> int | None:
    return n * 10 if n != 1 else None


async def same(n: int) -> int:
    return n


class TestInAChain:
    def test_the_watermark_in_force_can_be_a_column_for_later_operators(self) -> None:
        seen: list[Any] = []

        def look(row: dict[str, Any]) -> bool:
            seen.append(row["mark"])
            return True

        strategy = WatermarkStrategy.for_punctuation("n")
        got = run_stream(
            lambda s: s.ordered_wait(same, watermark=strategy, with_watermark_column="mark").filter(look),
            [{"n": n} for n in (5, 7)],
            "n long",
        )
        first_mark = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=5)
        assert seen == column(got, "mark") == [None, first_mark]

    def test_a_strategy_in_the_middle_reads_what_an_operator_has_added_and_gives_event_times(self) -> None:
        class Untimed(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                assert context.timestamp is context.watermark is None
                collector.collect(value)

        def build(s: AsyncStream) -> AsyncStream:
            added = (
                s.process(Untimed())
                .ordered_wait(times_ten)
                .assign_timestamps_and_watermarks(LATE_BY("times_ten", 0, interval=2))
            )
            return added.ordered_wait(same, "n").process(Times(), "time bigint, mark bigint")

        got = run_stream(build, numbers(5), "n long")
        assert [(row["time"], row["mark"]) for row in got] == [(0, None), (None, None), (20, -1), (30, -1), (40, 29)]


class TestUnion:
    def marks(self, build: Any, rows: list[dict[str, Any]]) -> list[Any]:
        """The watermark in force at each row; row n comes out in second n."""

        async def at(n: int) -> int:
            await asyncio.sleep(n)
            return n

        chain = lambda s: build(s.ordered_wait(at)).process(Times(), "time bigint, mark bigint")  # noqa: E731
        return column(run_stream(chain, rows, "n long"), "mark")

    def test_its_watermark_is_the_lowest_of_its_inputs(self) -> None:
        def build(s: AsyncStream) -> AsyncStream:
            ahead = s.assign_timestamps_and_watermarks(STRICT)
            behind = s.assign_timestamps_and_watermarks(LATE_BY("n", dt.timedelta(microseconds=2), interval=1))
            return ahead.union(behind)

        assert self.marks(build, numbers(4)) == [None, None, -3, -3, -2, -2, -1, -1]

    def test_an_idle_branch_does_not_hold_it_back_until_it_is_active_again(self) -> None:
        def build(s: AsyncStream, quiet: WatermarkStrategy) -> AsyncStream:
            busy = s.assign_timestamps_and_watermarks(STRICT)
            rare = s.filter(lambda row: row["n"] == 6).assign_timestamps_and_watermarks(quiet)
            return busy.union(rare)

        held = [None] * 8 + [5, 5, 5]
        assert self.marks(lambda s: build(s, STRICT), numbers(10)) == [*held[:7], None, 5, 5, 5]
        idle = [None] * 5 + [3, 4, 5, 5, 5, 5]  # silent since second 4.5, but for row 6 and the 4.5 seconds after it
        assert self.marks(lambda s: build(s, STRICT.with_idleness(4.5)), numbers(10)) == idle

    def test_each_row_begins_the_idle_time_anew(self) -> None:
        rows = [{"n": n} for n in (1, 4, 6, 7, 8, 9, 13, 14, 15)]

        def build(s: AsyncStream) -> AsyncStream:
            busy = s.filter(lambda row: row["n"] not in (1, 4, 8)).assign_timestamps_and_watermarks(STRICT)
            rare = s.filter(lambda row: row["n"] in (1, 4, 8)).assign_timestamps_and_watermarks(
                STRICT.with_idleness(5.1)
            )
            return busy.union(rare)

        assert self.marks(build, rows) == [None, None, None, 3, 3, 6, 7, 12, 13], "idle from 13.1 on"

    def test_rows_set_no_timer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A timer was set and cancelled for each row."""
        timers, call_at = 0, VirtualClockLoop.call_at

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal timers
            timers += 1
            return call_at(*args, **kwargs)

        monkeypatch.setattr(VirtualClockLoop, "call_at", counted)
        assert len(timed(BY_TIME("at").with_idleness(5.0), [1] * 1_000)) == 1_000
        assert timers < 20

    def test_an_assigner_replaces_the_watermarks_that_come_to_it(self) -> None:
        def build(s: AsyncStream) -> AsyncStream:
            later = LATE_BY("n", dt.timedelta(microseconds=5), interval=1)
            return s.assign_timestamps_and_watermarks(STRICT).assign_timestamps_and_watermarks(later)

        assert self.marks(build, numbers(3)) == [None, -6, -5]
