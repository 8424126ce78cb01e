"""Chains of operators on the virtual clock: order, back-pressure, watermarks, copies, side outputs, ends."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    FunctionError,
    OptionError,
    OutputTag,
    ProcessFunction,
    ResultError,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
    WatermarkStrategy,
    async_pandas_udf,
)
from asyncudf._arrow.layout import ColumnGroup, RowLayout
from asyncudf._chain.plan import ChainPlan, StreamNode
from asyncudf._policies.options import EventLoop
from asyncudf.queues import StreamRecord
from asyncudf.testing import run_rows, run_stream

LOG = OutputTag("log", "n int")
STRICT = WatermarkStrategy.for_monotonous_timestamps("n", interval=1)


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


@async_pandas_udf("first int")
async def first(n: int) -> dict[str, int]:
    await asyncio.sleep(10 - n)  # the last row is done first
    return {"first": n}


@async_pandas_udf("second int")
async def second(first: int) -> dict[str, int]:
    await asyncio.sleep(0.1)
    return {"second": first * 10}


class TestOrder:
    def test_ordered_all_the_way(self) -> None:
        got = run_stream(lambda s: s.ordered_wait(first).ordered_wait(second), numbers(5), "n int")
        assert got == [{"n": n, "first": n, "second": n * 10} for n in range(5)]

    def test_unordered_all_the_way_is_the_order_of_completion(self) -> None:
        got = run_stream(lambda s: s.unordered_wait(first).unordered_wait(second), numbers(5), "n int")
        assert column(got, "second") == [40, 30, 20, 10, 0]

    def test_ordered_behind_unordered_keeps_the_order_that_it_was_given(self) -> None:
        got = run_stream(lambda s: s.unordered_wait(first).ordered_wait(second), numbers(5), "n int")
        assert column(got, "n") == [4, 3, 2, 1, 0]

    def test_a_row_goes_on_before_the_others_are_done(self) -> None:
        seen: list[tuple[str, int, float]] = []

        async def one(n: int) -> int:
            await asyncio.sleep(n)
            seen.append(("one", n, asyncio.get_running_loop().time()))
            return n

        async def two(one: int) -> int:
            seen.append(("two", one, asyncio.get_running_loop().time()))
            return one

        run_stream(lambda s: s.unordered_wait(one).unordered_wait(two), numbers(3), "n int")
        assert seen == [(f, n, float(n)) for n in range(3) for f in ("one", "two")]


class TestBackPressure:
    @pytest.mark.parametrize("is_instant", [True, False])
    @pytest.mark.parametrize("between", [False, True])
    @pytest.mark.parametrize("marked", [False, True])
    @pytest.mark.parametrize("batch_size", [7, 60])
    def test_a_slow_second_operator_stops_the_first_from_starting_calls(
        self, is_instant: bool, between: bool, marked: bool, batch_size: int
    ) -> None:
        started = done = ahead = 0

        async def fast(n: int) -> int:
            nonlocal started, ahead
            started += 1
            ahead = max(ahead, started - done)
            if not is_instant:
                await asyncio.sleep(0.001)
            return n

        async def slow(fast: int) -> int:
            nonlocal done
            await asyncio.sleep(1)
            done += 1
            return fast

        def chain(stream: AsyncStream) -> AsyncStream:
            if marked:
                strategy = WatermarkStrategy.for_monotonous_timestamps("n", interval=1)
                stream = stream.assign_timestamps_and_watermarks(strategy)
            stream = stream.ordered_wait(fast, capacity=2, queue_size=5)
            if between:
                stream = stream.filter(lambda row: True).map(lambda row: row)
            return stream.ordered_wait(slow, capacity=3, queue_size=4)

        assert len(run_stream(chain, numbers(60), "n long", batch_size=batch_size)) == 60
        # 5 in the first queue, 3 that wait in front of the second, 4 in its queue, and the one that is starting
        assert 5 <= ahead <= 5 + 3 + 4 + 1

    def test_a_slow_branch_holds_back_the_fast_one(self) -> None:
        progress = {"slow": 0, "fast": 0}
        ahead = 0

        async def slow(n: int) -> int:
            await asyncio.sleep(1)
            progress["slow"] += 1
            return n

        async def fast(n: int) -> int:
            nonlocal ahead
            progress["fast"] += 1
            ahead = max(ahead, progress["fast"] - progress["slow"])
            return n

        got = run_stream(
            lambda s: {
                "slow": s.branch().ordered_wait(slow, capacity=1, queue_size=2),
                "fast": s.branch().ordered_wait(fast, capacity=1, queue_size=2),
            },
            numbers(30),
            "n int",
        )
        assert len(got["slow"]) == len(got["fast"]) == 30
        assert ahead <= 5

    def test_a_vectorized_operator_behind_another_gets_full_batches(self) -> None:
        import pandas as pd

        sizes: list[int] = []

        async def one(n: int) -> int:
            await asyncio.sleep(n % 3)
            return n

        @async_pandas_udf("bigint", batch_size=10, capacity=2)
        async def many(one: pd.Series) -> pd.Series:
            sizes.append(len(one))
            await asyncio.sleep(1)
            return one * 2

        got = run_stream(lambda s: s.ordered_wait(one).ordered_wait(many), numbers(25), "n int")
        assert column(got, "many") == [2 * n for n in range(25)]
        assert sizes == [10, 10, 5]


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


class TestCopies:
    SCHEMA = "n int, xs array<int>, m map<string, array<int>>"

    def rows(self) -> list[dict[str, Any]]:
        return [{"n": n, "xs": [n], "m": {"k": [n]}} for n in range(3)]

    def spoil(self, row: dict[str, Any]) -> bool:
        row["n"] = -1
        row["xs"].append(99)
        row["m"]["k"].append(99)
        row["m"]["new"] = [0]
        return True

    def test_an_edit_is_never_seen_by_those_after_and_beside(self) -> None:
        seen: list[Any] = []

        async def edits(xs: list[int], m: dict[str, Any]) -> list[int]:
            xs.append(7)
            m["k"].append(7)
            return xs

        def chain(s: AsyncStream) -> dict[str, AsyncStream]:
            shared = s.ordered_wait(edits, returnType="array<int>")
            return {
                "beside": shared.filter(lambda row: seen.append(str(row)) or True),  # type: ignore[func-returns-value]
                "spoiled": shared.filter(self.spoil).filter(self.spoil),
                "whole": shared,
            }

        got = run_stream(chain, self.rows(), self.SCHEMA)
        whole = [{**row, "edits": [n, 7]} for n, row in enumerate(self.rows())]
        assert got == {"beside": whole, "spoiled": whole, "whole": whole}
        assert seen == [str(row) for row in whole]

    def test_with_object_reuse_nothing_is_copied(self) -> None:
        seen: list[Any] = []

        async def made(n: int) -> list[int]:
            return [n]

        def edit(row: dict[str, Any]) -> bool:
            row["made"].append(99)
            return True

        def look(row: dict[str, Any]) -> bool:
            seen.append(row["made"])
            return True

        for reuse, expected in ((False, [0]), (True, [0, 99])):
            seen.clear()
            run_stream(
                lambda s: s.ordered_wait(made, returnType="array<int>").filter(edit).filter(look),
                numbers(1),
                "n int",
                object_reuse=reuse,
            )
            assert seen == [expected]

    def test_rows_of_plain_values_are_not_copied_for_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("copy.deepcopy", lambda value: pytest.fail("a copy of what nobody can edit"))
        assert len(run_stream(lambda s: s.ordered_wait(first).ordered_wait(second), numbers(3), "n int")) == 3


class TestSideOutputs:
    def test_a_process_function_gives_rows_and_side_rows(self) -> None:
        class Split(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                if value["n"] % 2:
                    context.output(LOG, {"n": value["n"]})
                else:
                    collector.collect(value)
                    collector.collect({"n": -value["n"]})

        got = run_stream(lambda s: _with_side(s.process(Split()), LOG), numbers(5), "n int")
        assert column(got["main"], "n") == [0, 0, 2, -2, 4, -4]
        assert column(got["side"], "n") == [1, 3]

    def test_what_a_failed_attempt_has_written_is_dropped(self) -> None:
        async def stubborn(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": context.attempt_number})
            await asyncio.sleep(1)
            if context.attempt_number < 3:
                raise ConnectionError
            return n

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(stubborn, retry=RetryStrategy.fixed_delay(5, 1.0)), LOG),
            numbers(2),
            "n int",
        )
        assert column(got["side"], "n") == [3, 3]

    def test_side_rows_keep_the_place_of_their_row(self) -> None:
        async def slow_first(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": n})
            await asyncio.sleep(10 - n)
            return n

        for wait, expected in (("ordered_wait", [0, 1, 2]), ("unordered_wait", [2, 1, 0])):
            got = run_stream(lambda s, w=wait: _with_side(getattr(s, w)(slow_first), LOG), numbers(3), "n int")  # type: ignore[misc]
            assert column(got["side"], "n") == column(got["main"], "n") == expected

    def test_an_instant_call_may_write_too(self) -> None:
        async def instant(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": n})
            return n

        got = run_stream(lambda s: _with_side(s.ordered_wait(instant), LOG), numbers(3), "n int")
        assert column(got["side"], "n") == column(got["main"], "n") == [0, 1, 2]

    def test_an_async_function_writes_through_its_context_also_at_its_deadline(self) -> None:
        class Lookup(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.context = context

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                self.context.output(LOG, {"n": value["n"]})
                if value["n"] == 1:
                    await asyncio.sleep(100)
                result_future.complete([value["n"]])

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                self.context.output(LOG, {"n": -1})
                result_future.complete([])

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(Lookup(), "n", returnType="int", timeout=5), LOG), numbers(3), "n int"
        )
        assert column(got["main"], "n") == [0, 2]
        assert column(got["side"], "n") == [0, -1, 2]

    def test_a_value_that_does_not_fit_its_tag_is_the_rows_error(self) -> None:
        async def wrong(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": "one"})
            return n

        with pytest.raises(ResultError, match=r"side output 'log' returned 'one' \(str\) in field 'n'"):
            run_stream(lambda s: _with_side(s.ordered_wait(wrong), LOG), numbers(1), "n int")

    @pytest.mark.parametrize("pause", [0, 1])
    def test_what_a_call_has_written_is_dropped_when_its_result_does_not_fit(self, pause: int) -> None:
        async def writes(n: int, context: RuntimeContext) -> Any:
            context.output(LOG, {"n": n})
            if pause:
                await asyncio.sleep(pause)
            return "text" if n == 1 else n

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(writes, returnType="int", on_error="null"), LOG), numbers(3), "n int"
        )
        assert column(got["main"], "writes") == [0, None, 2]
        assert column(got["side"], "n") == [0, 2]

    def test_a_tag_that_nobody_reads_is_dropped(self) -> None:
        async def writes(n: int, context: RuntimeContext) -> int:
            context.output(LOG, "whatever")
            return n

        assert len(run_stream(lambda s: s.ordered_wait(writes), numbers(2), "n int")) == 2

    @pytest.mark.parametrize("tag", ["log", DEAD_LETTERS, LATENCIES])
    def test_only_own_tags_can_be_written(self, tag: Any) -> None:
        async def writes(n: int, context: RuntimeContext) -> int:
            context.output(tag, {"n": n})
            return n

        with pytest.raises(AsyncUDFError, match="OutputTag"):
            run_rows(writes, [1])

    def test_dead_letters_hold_the_input_and_what_went_wrong(self) -> None:
        async def picky(n: int) -> int:
            await asyncio.sleep(1)
            if n == 1:
                raise ValueError("not 1")
            return n

        async def pickier(picky: int) -> int:
            if picky == 2:
                raise KeyError("2")
            return picky

        def chain(s: AsyncStream) -> Any:
            retry = RetryStrategy.fixed_delay(2, 1.0)
            stream = s.ordered_wait(picky, on_error="dead_letter", retry=retry)
            return _with_side(stream.ordered_wait(pickier, on_error="dead_letter"), DEAD_LETTERS)

        got = run_stream(chain, numbers(4), "n int")
        assert column(got["main"], "n") == [0, 3]
        one, two = sorted(got["side"], key=lambda row: row["n"])
        error = {"type": "ValueError", "message": "not 1", "attempts": 2, "elapsed": 3.0, "status": None}
        assert one == {"n": 1, "picky": None, "error": {**error, "function": "picky", "partition": 0}}
        assert (two["n"], two["picky"], two["error"]["function"]) == (2, 2, "pickier")

    @pytest.mark.parametrize("why", ["timeout", "misfit", "cancelled"])
    def test_every_kind_of_failure_is_a_dead_letter(self, why: str) -> None:
        async def fails(n: int) -> Any:
            if why == "timeout":
                await asyncio.sleep(100)
            if why == "cancelled":
                raise asyncio.CancelledError
            return "text"

        got = run_stream(
            lambda s: _with_side(
                s.ordered_wait(fails, returnType="int", on_error="dead_letter", timeout=5), DEAD_LETTERS
            ),
            numbers(2),
            "n int",
        )
        types = {"timeout": "AsyncTimeoutError", "misfit": "ResultError", "cancelled": "CancelledError"}
        assert [row["error"]["type"] for row in got["side"]] == [types[why]] * 2
        assert got["main"] == []

    def test_run_rows_tells_side_rows_and_dead_letters(self) -> None:
        async def picky(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": n})
            if n == 1:
                raise ValueError("not 1")
            return n

        sides: dict[OutputTag, list[Any]] = {}
        assert run_rows(picky, [0, 1], on_error="dead_letter", side_outputs=sides) == [0]
        assert sides[LOG] == [{"n": 0}]
        assert sides[DEAD_LETTERS][0]["input"] == (1,)
        assert sides[DEAD_LETTERS][0]["error"]["message"] == "not 1"

    def test_latencies_tell_how_long_each_operator_took(self) -> None:
        async def slow(n: int) -> int:
            await asyncio.sleep(4)
            return n

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(slow, capacity=1).filter(lambda row: True), LATENCIES),
            numbers(3),
            "n int",
            latency_interval=3.0,
            batch_size=1,
        )
        rows = [(row["operator"], row["latency"]) for row in got["side"]]
        assert {name for name, _ in rows} == {"slow", "filter"}
        # the first stands behind the first row; those of the seconds 3, 6, ... wait for the row that is worked on
        assert [latency for name, latency in rows if name == "slow"] == [1.0, 4.0, 2.0, 3.0, 0.0]


def _with_side(stream: AsyncStream, tag: OutputTag) -> dict[str, AsyncStream]:
    return {"main": stream, "side": stream.side_output(tag)}


class Witness(AsyncFunction):
    """Notes when it is opened and closed."""

    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    async def open(self, context: RuntimeContext) -> None:
        self.log.append(f"open {self.name}")
        if self.fails == "open":
            raise RuntimeError("no way in")

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        try:
            await asyncio.sleep(1 if self.fails != "never" else 1000)
        except asyncio.CancelledError:
            self.log.append(f"cancelled {self.name}")
            raise
        if self.fails == "call":
            raise RuntimeError("no answer")
        result_future.complete([{self.name: 1}])

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


class Plain(ProcessFunction):
    def __init__(self, log: list[str], fails: str = "") -> None:
        self.log, self.fails = log, fails

    async def open(self, context: Any) -> None:
        self.log.append("open plain")
        if self.fails == "open":
            raise RuntimeError("no way in")

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        if self.fails == "call":
            raise RuntimeError("no answer")
        collector.collect(value)

    def close(self) -> None:
        self.log.append("close plain")


class TestEnds:
    def chain(self, log: list[str], a: str = "", plain: str = "", b: str = "") -> Any:
        def build(s: AsyncStream) -> AsyncStream:
            stream = s.ordered_wait(Witness("a", log, a), "n", returnType="a int", capacity=1)
            stream = stream.process(Plain(log, plain))
            return stream.ordered_wait(Witness("b", log, b), "n", returnType="b int")

        return build

    def test_operators_open_from_the_tail_to_the_head_and_close_from_the_head_to_the_tail(self) -> None:
        log: list[str] = []
        run_stream(self.chain(log), numbers(3), "n int")
        assert log == ["open b", "open plain", "open a", "close a", "close plain", "close b"]

    def test_the_head_closes_while_the_tail_still_works(self) -> None:
        times: dict[str, float] = {}

        class Timed(Witness):
            async def close(self) -> None:
                times[self.name] = asyncio.get_running_loop().time()

        log: list[str] = []
        run_stream(
            lambda s: s.ordered_wait(Timed("a", log), "n", returnType="a int").ordered_wait(
                Timed("b", log), "n", returnType="b int"
            ),
            numbers(1),
            "n int",
        )
        assert times == {"a": 1.0, "b": 2.0}

    @pytest.mark.parametrize("where", ["a", "plain", "b"])
    def test_a_failing_row_ends_all_operators_each_before_it_is_closed(self, where: str) -> None:
        log: list[str] = []
        with pytest.raises(AsyncUDFError, match="no answer") as caught:
            run_stream(self.chain(log, **{where: "call"}), numbers(9), "n int")
        cancelled = [line for line in log if line.startswith("cancelled")]  # calls that were in progress just then
        assert [line for line in log if line not in cancelled] == [
            *["open b", "open plain", "open a"],
            *["close a", "close plain", "close b"],
        ]
        assert all(log.index(line) < log.index(line.replace("cancelled", "close")) for line in cancelled)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert {"a": "Witness", "plain": "Plain", "b": "Witness"}[where] in str(caught.value)

    def test_calls_in_progress_are_cancelled_when_a_neighbour_fails(self) -> None:
        log: list[str] = []
        with pytest.raises(AsyncUDFError, match="no answer"):
            run_stream(
                lambda s: {
                    "hangs": s.ordered_wait(Witness("a", log, "never"), "n", returnType="a int"),
                    "fails": s.ordered_wait(Witness("b", log, "call"), "n", returnType="b int"),
                },
                numbers(2),
                "n int",
            )
        assert log == ["open b", "open a", "cancelled a", "cancelled a", "close a", "close b"]

    @pytest.mark.parametrize(("where", "opened"), [("b", ["b"]), ("plain", ["b", "plain"]), ("a", ["b", "plain", "a"])])
    def test_what_was_opened_is_closed_when_one_cannot_be(self, where: str, opened: list[str]) -> None:
        log: list[str] = []
        with pytest.raises(AsyncUDFError, match="no way in"):
            run_stream(self.chain(log, **{where: "open"}), numbers(3), "n int")
        assert log == [f"open {name}" for name in opened] + [f"close {name}" for name in reversed(opened)]

    def test_a_row_error_deep_in_the_chain_says_where_once(self) -> None:
        def broken(row: dict[str, Any]) -> bool:
            return bool(1 / row["n"])

        with pytest.raises(AsyncUDFError, match="broken failed") as caught:
            run_stream(lambda s: s.map(lambda row: row).filter(broken), numbers(1), "n int")
        assert (
            str(caught.value)
            == "broken failed, partition 0, for the input {'n': 0}: ZeroDivisionError: division by zero"
        )

    def test_no_rows_at_all(self) -> None:
        log: list[str] = []
        assert run_stream(self.chain(log), [], "n int") == []


class TestPlans:
    """What cannot work is said when the chain is written down."""

    def build(self, wrong: Any) -> None:
        run_stream(wrong, numbers(1), "n int, xs array<int>")

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (lambda s: s.map(first.__wrapped__), "map takes a plain def; for an async def use ordered_wait"),
            (lambda s: s.filter("n > 1"), "filter takes a function of one row"),
            (lambda s: s.process(len), "process takes a ProcessFunction"),
            (lambda s: s.ordered_wait(first, "m"), "unknown column 'm'"),
            (lambda s: s.ordered_wait(first).ordered_wait(first, "n"), "would add a column 'first'"),
            (lambda s: s.side_output(DEAD_LETTERS), "needs an operator with on_error='dead_letter'"),
            (lambda s: s.side_output(LATENCIES), "needs latency_interval"),
            (lambda s: s.ordered_wait(first).side_output(LOG), "needs a ProcessFunction, an AsyncFunction"),
            (lambda s: s.side_output("log"), "takes an OutputTag"),
            (lambda s: s.union(s.map(lambda row: 1, "int")), "union takes streams of the same columns"),
            (lambda s: s.union(3), "union takes branches of the same stream"),
            (lambda s: s.assign_timestamps_and_watermarks("n"), "a WatermarkStrategy is needed"),
            (
                lambda s: s.map(lambda row: row).assign_timestamps_and_watermarks(WatermarkStrategy.per_batch()),
                "assign it before the first operator",
            ),
            (lambda s: s.ordered_wait(first, output_mode="unordered"), "output_mode is said by the name"),
            (lambda s: s.ordered_wait(first, with_watermark_column="w"), "with_watermark_column needs watermark="),
            (lambda s: s.ordered_wait(first, watermark=3), "watermark must be a WatermarkStrategy"),
            (
                lambda s: s.ordered_wait(first, loop="uvloop").ordered_wait(second, loop="asyncio"),
                "share one event loop",
            ),
        ],
    )
    def test_a_mistake_is_named(self, wrong: Any, said: str) -> None:
        with pytest.raises((FunctionError, OptionError), match=said):
            self.build(wrong)

    @pytest.mark.parametrize("kind", [EventLoop.ASYNCIO, EventLoop.UVLOOP])
    def test_one_explicit_loop_is_that_of_the_whole_chain(self, kind: EventLoop) -> None:
        def chain(*asked: EventLoop) -> ChainPlan:
            layout = RowLayout(("n",), (pa.int64(),))
            return ChainPlan(tuple(StreamNode(SimpleNamespace(loop=loop), (), layout, None) for loop in asked))  # type: ignore[arg-type]

        assert chain(EventLoop.AUTO, kind, EventLoop.AUTO).loop is kind
        assert chain(kind, kind).loop is kind
        assert chain(EventLoop.AUTO).loop is EventLoop.AUTO

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"object_reuse": 1}, "object_reuse must be True or False"),
            ({"latency_interval": 0}, "latency_interval must be more than 0 seconds"),
        ],
    )
    def test_an_option_that_cannot_work(self, options: Any, said: str) -> None:
        with pytest.raises(OptionError, match=said):
            run_stream(lambda s: s, numbers(1), "n int", **options)

    def test_only_a_dataframe_can_be_chained(self) -> None:
        with pytest.raises(OptionError, match=r"AsyncStream takes a DataFrame, not \[1\]"):
            AsyncStream([1])  # type: ignore[arg-type]

    def test_a_flat_map_that_returns_a_text_is_no_row_for_each_letter(self) -> None:
        with pytest.raises(ResultError, match="a flat_map gives an iterable of rows"):
            run_stream(lambda s: s.flat_map(lambda row: "ab", "string"), numbers(1), "n int")

    def test_a_map_may_give_one_value(self) -> None:
        got = run_stream(
            lambda s: s.map(lambda row: row["n"] + 1, "int").filter(lambda row: row["value"] > 1), numbers(3), "n int"
        )
        assert got == [{"value": 2}, {"value": 3}]


def test_operators_of_the_same_name_are_told_apart_from_the_head_to_the_tail() -> None:
    def same(row: dict[str, Any]) -> bool:
        return True

    got = run_stream(
        lambda s: _with_side(s.filter(same).filter(same), LATENCIES), numbers(3), "n int", latency_interval=1.0
    )
    assert column(got["side"], "operator") == ["source", "same", "same 2"]


def test_a_catch_all_around_the_collector_cannot_lose_a_row_that_failed_further_down() -> None:
    class Careless(ProcessFunction):
        def process_element(self, value: Any, context: Any, collector: Any) -> None:
            with contextlib.suppress(Exception):
                collector.collect(value)

    def broken(row: dict[str, Any]) -> bool:
        raise ValueError("no")

    with pytest.raises(AsyncUDFError, match="broken failed"):
        run_stream(lambda s: s.process(Careless()).filter(broken), numbers(2), "n int")


def test_a_row_weighs_what_all_operators_have_added() -> None:
    text, number = ColumnGroup.of("page", pa.string(), "page"), ColumnGroup.of("size", pa.int64(), "size")
    source = RowLayout(("x",), (pa.string(),))
    assert source.weigher() is None
    assert source.with_columns(number).weigher() is None
    both = source.with_columns(text).with_columns(number).weigher()
    assert both is not None
    assert both(5, StreamRecord("p" * 500, None, ("rows", 0))) == 500
    turned = source.with_columns(number).with_columns(text).weigher()
    assert turned is not None
    assert turned("q" * 30, StreamRecord(5, None, ("rows", 0))) == 30
