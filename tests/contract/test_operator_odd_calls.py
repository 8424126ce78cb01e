"""Calls that cancel their neighbours, run on, complete one another's rows, or block: order and slots survive them."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.types import DayTimeIntervalType

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    OutputTag,
    ResultError,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf.queues import Watermark
from asyncudf.testing import OperatorHarness, VirtualClockLoop, run_rows, run_stream

TWICE = RetryStrategy.fixed_delay(attempts=2, delay=1.0)
SIDE = OutputTag("side", "n int")


def block(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.block(seconds)


ENDED: list[float] = []  # when coroutines did that ran on after their row was done


class RunsOn(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([value])
        try:
            await asyncio.sleep(1000)
        finally:
            ENDED.append(asyncio.get_running_loop().time())


class TestSlots:
    @pytest.mark.parametrize("capacity", [2, 3, 5])
    def test_a_call_that_is_cancelled_before_its_first_step_gives_its_slot_back(self, capacity: int) -> None:
        variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)
        others: set[Any] = set()
        running = peak = 0

        async def call(n: int) -> int:
            nonlocal running, peak
            variable.set(n)  # so that its slot gets another coroutine
            others.update(asyncio.all_tasks() if not others else ())
            running += 1
            peak = max(peak, running) if n > 10 else 0
            try:
                await asyncio.sleep(1 if n > 10 else 0)
            finally:
                running -= 1
            if n == 0:
                for task in asyncio.all_tasks() - others:
                    task.cancel()
            await asyncio.sleep(0)
            return n

        got = run_rows(call, range(40), capacity=capacity, on_error="null")
        assert [n for n in got if n is not None] == [n for n in range(40) if got[n] is not None]
        assert got.count(None) < capacity, "only calls that were in progress then"
        assert peak == capacity

    def test_the_end_of_input_needs_no_slot(self) -> None:
        """Coroutines that ran on after their rows were done held it up until their deadline, or for ever."""
        ENDED.clear()
        assert run_rows(RunsOn(), [1], capacity=1, timeout=None) == [1]
        assert run_rows(RunsOn(), [1, 2], capacity=2) == [1, 2]
        assert max(ENDED) <= 5.0, "the time that they have to end"

    def test_nor_does_a_watermark(self) -> None:
        with OperatorHarness(RunsOn(), capacity=1, timeout=2000) as harness:
            harness.put(1, Watermark(5))
            harness.put(Watermark(6))
            harness.put(Watermark(7), 2, Watermark(8))
            assert harness.output == [1, Watermark(5), Watermark(6), Watermark(7)]
            harness.advance(1000)
            assert harness.output[4:] == [2, Watermark(8)]


class TestDeadlinesThatMeet:
    def test_a_retry_whose_time_comes_after_the_deadline_is_not_made_though_the_loop_was_busy(self) -> None:
        calls = []

        async def call(n: int) -> int:
            calls.append(n)
            if n == 0:
                raise ValueError("busy")
            block(3.0)
            return n

        got = run_rows(call, [0, 1, 2], capacity=1, timeout=5, on_error="capture", retry=TWICE)
        assert calls == [0, 1, 2]
        assert [row["value"] for row in got] == [None, 1, 2]
        assert (got[0]["error"]["type"], got[0]["error"]["attempts"]) == ("AsyncTimeoutError", 1)

    @pytest.mark.parametrize("rows", [[100.0], [1.0, 100.0], [100.0] * 5])
    def test_where_the_limits_of_the_attempt_and_of_the_row_meet_the_rows_counts(self, rows: list[float]) -> None:
        async def call(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        got = run_rows(call, rows, timeout=2, attempt_timeout=2, on_timeout=-1.0, on_error="null")
        assert got == [1.0 if seconds == 1.0 else -1.0 for seconds in rows]
        got = run_rows(call, rows, timeout=5, attempt_timeout=2, retry=TWICE, on_timeout=-1.0, on_error="null")
        assert got == [1.0 if seconds == 1.0 else -1.0 for seconds in rows]


FUTURES: list[ResultFuture] = []


class Two(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        if value["n"] == 0:
            await asyncio.sleep(1)
            result_future.complete([10, 11])
        else:
            FUTURES.append(result_future)


def complete_the_other(row: Any) -> Any:
    if row["two"] == 10:
        FUTURES.pop().complete([20, 21])
    return row


@pytest.mark.parametrize("mode", ["ordered_wait", "unordered_wait"])
def test_a_row_that_is_completed_while_another_leaves_leaves_behind_it(mode: str) -> None:
    """An ordered operator gave 20, 21, 10, 11."""

    def build(stream: AsyncStream) -> AsyncStream:
        waited: AsyncStream = getattr(stream, mode)(Two(), "n", returnType="int", as_="two")
        return waited.map(complete_the_other)

    got = run_stream(build, [{"n": 0}, {"n": 1}], "n int")
    assert [row["two"] for row in got] == [10, 11, 20, 21]


@pytest.mark.parametrize("mode", ["ordered_wait", "unordered_wait"])
def test_rows_without_a_call_behind_a_row_that_is_completed_while_another_leaves_leave_too(mode: str) -> None:
    """The coroutines of both rows run on, so the others need no slot: "cannot enter context", and the job was dead."""

    class Both(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            if value["n"] == 0:
                await asyncio.sleep(1)
                result_future.complete([10])
            else:
                FUTURES.append(result_future)
            await asyncio.sleep(60)

    def build(stream: AsyncStream) -> AsyncStream:
        waited: AsyncStream = getattr(stream, mode)(
            Both(), "n", returnType="int", as_="two", on_null_input="null", capacity=2, queue_size=2
        )
        return waited.map(complete_the_other)

    got = run_stream(build, [{"n": n} for n in (0, 1, None, None)], "n int")
    assert [row["two"] for row in got] == [10, 20, 21, None, None]


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=None)
SEEN: list[Any] = []


async def sets_at_once(n: int) -> int:
    VARIABLE.set(n)
    return n


async def sets_later(n: int) -> int:
    VARIABLE.set(n)
    await asyncio.sleep(1)
    return n


def look(row: Any) -> Any:
    SEEN.append(VARIABLE.get())
    return row


class TestContextVariables:
    def test_an_answer_at_the_deadline_does_not_see_those_of_another_row(self) -> None:
        variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)

        async def call(n: int) -> Any:
            variable.set(n)
            await asyncio.sleep(100)

        def answer(n: int) -> Any:
            found = variable.get()
            variable.set(f"answer {n}")
            return found

        assert run_rows(call, [1, 2, 3], timeout=2, on_timeout=answer) == [None, None, None]

    @pytest.mark.parametrize("suspends", [False, True], ids=["at once", "later"])
    def test_what_runs_further_down_does_not_see_those_of_a_call(self, suspends: bool) -> None:
        SEEN.clear()
        call = sets_later if suspends else sets_at_once

        rows = [{"n": n} for n in range(6)]
        run_stream(lambda stream: stream.ordered_wait(call, capacity=2).map(look), rows, "n int")
        assert SEEN == [None] * 6


class TestEditedArguments:
    def test_the_idempotency_key_is_that_of_the_input(self) -> None:
        class Stamps(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.context = context

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                value["stamp"] = time.time_ns()
                result_future.complete([self.context.idempotency_key])

        assert run_rows(Stamps(), [{"n": 1}]) == run_rows(Stamps(), [{"n": 1}])


class Lies:
    """A proxy, whose class is that of what it stands for."""

    def __init__(self, value: Any) -> None:
        self.value = value

    __class__ = property(lambda self: type(self.value))  # type: ignore[assignment]

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def isascii(self) -> bool:
        return True


class OddText(str):
    def __len__(self) -> int:
        raise asyncio.CancelledError

    def isascii(self) -> bool:
        return True


class TestOddResults:
    @pytest.mark.parametrize(
        ("declared", "value"),
        [("int", 5), ("string", "five"), ("int", 2**40), ("array<int>", [5]), ("a int", {"a": 1})],
    )
    def test_a_proxy_is_looked_at_as_what_it_is(self, declared: str, value: Any) -> None:
        async def call(n: int) -> Any:
            return Lies(value) if n == 1 else None

        got = run_stream(
            lambda s: s.ordered_wait(call, returnType=declared, on_error="capture", as_="got"),
            [{"n": n} for n in range(3)],
            "n int",
        )
        assert [row["got"]["error"] and row["got"]["error"]["type"] for row in got] == [None, "ResultError", None]

    def test_a_text_whose_class_says_that_it_is_ascii_is_looked_at(self) -> None:
        async def call(n: int) -> Any:
            return OddText("\ud800")

        with pytest.raises(ResultError, match="no Unicode text"):
            run_rows(call, [1], returnType="string")

    def test_a_duration_that_arrow_cannot_hold_is_the_error_of_its_row(self) -> None:
        async def call(n: int) -> Any:
            return pd.Timedelta.max.to_pytimedelta() * 1000 if n == 1 else None

        got = run_stream(
            lambda s: s.ordered_wait(call, returnType=DayTimeIntervalType(), on_error="null"),
            [{"n": 1}, {"n": 2}],
            "n int",
        )
        assert [row["call"] for row in got] == [None, None]

    def test_rows_that_cannot_be_read_fail_the_run_and_none_is_lost_silently(self) -> None:
        def rows() -> Any:
            yield 1
            yield 2
            raise asyncio.CancelledError("the source")

        async def call(n: int) -> int:
            return n

        with pytest.raises(AsyncUDFError, match="CancelledError: the source"):
            run_rows(call, rows())


class TestMicroBatches:
    @pytest.mark.parametrize("mismatch", [0, 1, 2])
    def test_side_records_leave_with_a_row_that_fits(self, mismatch: int) -> None:
        @async_pandas_udf("int", on_error="null", batch_size=3)
        async def call(values: pd.Series, context: RuntimeContext) -> pd.Series:
            context.output(SIDE, {"n": 7})
            return pd.Series(["bad" if v == mismatch else v for v in values], dtype=object)

        sides: dict[OutputTag, list[Any]] = {}
        assert run_rows(call, range(3), side_outputs=sides) == [None if n == mismatch else n for n in range(3)]
        assert sides == {SIDE: [{"n": 7}]}


def test_many_side_records_of_a_call_cost_what_they_are() -> None:
    """Each one copied all those before it: for 40,000 it took 11 s."""
    count = 100_000

    async def call(n: int, context: RuntimeContext) -> int:
        for number in range(count):
            context.output(SIDE, {"n": number})
        return n

    sides: dict[OutputTag, list[Any]] = {}
    began = time.thread_time()
    run_rows(call, [1], side_outputs=sides)
    assert len(sides[SIDE]) == count
    assert time.thread_time() - began < 5
