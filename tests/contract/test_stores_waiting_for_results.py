"""Rows that wait: for the call of an equal row, for a batch to fill, for a write, behind those that have a slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pandas as pd
import pytest

from asyncudf import AdaptiveCapacity, AsyncUDFError, async_pandas_udf
from asyncudf.testing import MemoryStore, OperatorHarness, run_rows

from ..kit.clocks import TickingClock
from ..kit.engines import Engine
from ..kit.limited import ThrottledError, now
from ..kit.stores import Counting, SlowStore


@async_pandas_udf("string", batch_size=10)
async def upper(city: pd.Series) -> pd.Series:
    await asyncio.sleep(1)
    return city.str.upper()


async def each(city: str) -> AsyncIterator[str]:
    await asyncio.sleep(0 if city.islower() else 100)
    yield city


class TestDeadlines:
    def test_a_follower_has_the_time_of_the_call_it_waits_for(self) -> None:
        """It is not late because its result is still to be written."""
        weather = Counting(0.96)
        assert run_rows(weather.function, ["a", "a", "b"], timeout=1, store=MemoryStore()) == ["A", "A", "B"]
        store = SlowStore(put=0.9)
        assert run_rows(Counting(0.5).function, ["a", "a"], timeout=1, store=store) == ["A", "A"]

    def test_a_follower_gets_back_what_all_calls_were_paused(self) -> None:
        """As the call that it waits for does: it was late while that one had its result."""

        async def service(x: int) -> int:
            await asyncio.sleep(0.01)
            if now() < 9:
                raise ThrottledError(3)
            return x

        rows = [*range(30), 0]
        assert run_rows(service, rows, capacity=50, timeout=5, on_error="null", store=MemoryStore()) == rows


class TestBatchesOfVectorizedFunctions:
    def test_a_batch_that_a_full_queue_keeps_from_filling_is_called(self) -> None:
        """Its places may have been taken by rows that need no call."""
        store = MemoryStore()
        run_rows(upper, ["kept"], store=store)
        with OperatorHarness(
            upper, store=store, batch_size=5, capacity=2, queue_size=5, output_mode="unordered"
        ) as harness:
            harness.put("a", "b")
            harness.advance(0.5)
            harness.put(*["a"] * 3)
            harness.advance(5)
            assert sorted(harness.output) == ["A", "A", "A", "A", "B"]


class TestResultsThatAreWritten:
    def test_they_count_as_results_that_wait(self) -> None:
        """A slow store does not let more of them into memory than `max_buffered_bytes` allows."""
        called = 0

        async def large(number: int) -> str:
            nonlocal called
            called += 1
            await asyncio.sleep(0.01)
            return str(number % 10) * 100_000

        options: Any = {"max_buffered_bytes": 1_000_000, "capacity": 10, "queue_size": 1000, "store_timeout": 20}
        with OperatorHarness(large, store=SlowStore(put=10), returnType="string", **options) as harness:
            harness.put(*range(1000))
            harness.advance(5)
            assert 10 <= called <= 20

    def test_nobody_is_told_of_them_after_the_task_has_failed(self) -> None:
        async def fails(number: int) -> int:
            await asyncio.sleep(0.1 if number else 0.3)
            if not number:
                raise KeyError(number)
            return number

        harness = OperatorHarness(fails, store=SlowStore(put=0.5), output_mode="unordered", returnType="bigint")
        with pytest.raises(AsyncUDFError, match="KeyError: 0"), harness:  # noqa: PT012
            harness.put(0, 1, 2, 3)
            harness.advance(0.4)
            harness.advance(5)
        assert harness.output == []

    def test_one_that_landed_long_ago_is_too_old(self) -> None:
        weather = Counting(100)
        store = MemoryStore(ttl=5)
        with OperatorHarness(weather.function, store=store, capacity=1) as harness:
            harness.put("a", "b", "c", "a")
            for _ in range(5):
                harness.advance(100)
                store.advance(100)
            assert harness.output == ["A", "B", "C", "A"]
        assert weather.calls == {"a": 2, "b": 1, "c": 1}

    def test_one_that_ends_while_a_row_is_taken_for_it_leaves_no_row_without_a_call(self) -> None:
        """The row had a place in the queue and no call: the job waited for ever."""

        async def brief(x: int) -> int:
            await asyncio.sleep(0.05)
            return x

        for milliseconds in range(50, 100):
            store = SlowStore()
            store.ttl = milliseconds / 1000
            engine = Engine(brief, loop=TickingClock(), store=store, version="1", capacity=1)
            engine.feed([0, 1, 2, 0])
            engine.end()
            engine.run()
            assert engine.output == [0, 1, 2, 0]


class TestKeys:
    def test_it_cannot_edit_the_arguments(self) -> None:
        async def first(numbers: list[int]) -> int:
            return numbers[0]

        store = MemoryStore(key=lambda numbers: numbers.sort() or numbers)
        assert run_rows(first, [[3, 1, 2]], store=store) == [3]


@pytest.mark.parametrize("seconds", [None, 0.01, 1.0], ids=["at once", "in a moment", "for long"])
@pytest.mark.parametrize("capacity", [1, AdaptiveCapacity(1, 10)], ids=["one slot", "one slot at first"])
@pytest.mark.parametrize("queue_size", [20, 10_000])
def test_thousands_of_equal_rows_are_done_with_the_one_that_is_called(
    seconds: float | None, capacity: Any, queue_size: int
) -> None:
    """Each that leaves makes place for the next: one after the other, and not one within the other."""
    calls = []

    async def call(city: str) -> str:
        calls.append(city)
        if seconds is not None:
            await asyncio.sleep(seconds)
        return city

    options = {"capacity": capacity, "queue_size": queue_size, "store": MemoryStore(), "timeout": 100}
    assert run_rows(call, ["a", "b"] * 1_500, returnType="string", **options) == ["a", "b"] * 1_500
    assert sorted(calls) == ["a", "b"]


class TestWrites:
    def test_what_comes_while_results_are_written_is_written_together(self) -> None:
        """A service's answers come faster than a store takes them, and a process that is killed loses what waits."""
        store = SlowStore(put=0.1)
        rows = [f"{n}" for n in range(4_000)]
        assert run_rows(upper, rows, capacity=8, batch_size=500, store=store) == rows
        assert max(store.sizes("put")) == 1_000
        assert len(store.sizes("put")) <= 5

    def test_large_results_are_not_all_one_write(self) -> None:
        """A store has a second for each, and Redis gets it in one request."""

        async def page(n: int) -> bytes:
            return bytes(2**20)

        store = SlowStore(put=0.1)
        assert len(run_rows(page, [*range(100)], store=store, capacity=100)) == 100
        assert max(store.sizes("put")) == 16
