"""Equal rows of a function with a store have one call: who calls, who waits for whom, and who needs no slot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from asyncudf import RetryStrategy, async_pandas_udf
from asyncudf.testing import ManualFunction, MemoryStore, OperatorHarness, run_rows, run_stream

from ..kit.figures import figures
from ..kit.stores import Counting, SlowStore

CITIES = ["oslo", "bergen", "oslo", "tromso", "bergen", "oslo"]
UPPER = [city.upper() for city in CITIES]
MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


class TestPaidOnce:
    @MODES
    def test_equal_rows_share_a_call_and_the_next_run_makes_none(self, mode: Any) -> None:
        weather, store = Counting(), MemoryStore()
        first = run_rows(weather.function, CITIES, store=store, output_mode=mode)
        assert sorted(first) == sorted(UPPER)
        assert weather.calls == {"oslo": 1, "bergen": 1, "tromso": 1}
        assert run_rows(weather.function, CITIES, store=store, output_mode=mode) == UPPER
        assert sum(weather.calls.values()) == 3

    def test_results_belong_to_one_function_one_version_and_one_type(self) -> None:
        store, calls = MemoryStore(), []

        async def temperature(city: str) -> int:
            calls.append(city)
            return 12

        async def humidity(city: str) -> int:
            calls.append(city)
            return 80

        options: list[dict[str, Any]] = [{}, {"version": "2"}, {"returnType": "double"}, {"version": "1"}]
        for _ in range(2):
            assert run_rows(humidity, ["oslo"], store=store) == [80]
            assert [run_rows(temperature, ["oslo"], store=store, **one) for one in options] == [[12]] * 4
        assert len(calls) == 4, "without a version it is 1"

    def test_a_key_function_stands_for_the_arguments(self) -> None:
        calls: list[tuple[str, int]] = []

        async def weather(city: str, day: int) -> str:
            calls.append((city, day))
            return city

        store = MemoryStore(key=lambda city, day: city)
        assert run_rows(weather, [("oslo", 1), ("oslo", 2), ("bergen", 1)], store=store) == ["oslo", "oslo", "bergen"]
        assert calls == [("oslo", 1), ("bergen", 1)]

    def test_results_age(self) -> None:
        weather, store = Counting(), MemoryStore(ttl=60)
        run_rows(weather.function, ["oslo"], store=store)
        store.advance(59)
        run_rows(weather.function, ["oslo"], store=store)
        assert weather.calls["oslo"] == 1
        store.advance(1)
        run_rows(weather.function, ["oslo"], store=store)
        assert weather.calls["oslo"] == 2

    def test_a_null_and_a_missing_result_are_different(self) -> None:
        calls = []

        async def nothing(city: str) -> str | None:
            calls.append(city)
            return None

        store = MemoryStore()
        assert run_rows(nothing, ["oslo", "oslo"], store=store) == [None, None]
        assert run_rows(nothing, ["oslo"], store=store) == [None]
        assert calls == ["oslo"]


class TestWhatNeedsNoSlot:
    def test_a_hit_passes_while_all_slots_are_held(self) -> None:
        weather = ManualFunction()
        with OperatorHarness(weather, store=MemoryStore(), capacity=1, output_mode="unordered") as harness:
            harness.put("a")
            harness.complete("a", "A")
            harness.advance(1)
            harness.put("b", "a", "a")
            assert harness.output == ["A", "A", "A"]
            harness.complete("b", "B")
            harness.advance(1)
            assert harness.output == ["A", "A", "A", "B"]

    def test_a_deadline_begins_with_the_call(self) -> None:
        weather, store = Counting(0.9), SlowStore(get=0.7, put=0.7)
        assert run_rows(weather.function, ["oslo", "bergen"], store=store, timeout=1.0) == ["OSLO", "BERGEN"]
        assert run_rows(weather.function, ["oslo", "bergen"], store=store, timeout=0.1) == ["OSLO", "BERGEN"]

    def test_a_full_queue_lets_no_hit_in(self) -> None:
        store = MemoryStore()
        with OperatorHarness(ManualFunction(), store=store, capacity=2, queue_size=2) as harness:
            harness.put("a", "b")
            harness.complete("b", "B")
            harness.advance(1)
            harness.put("b", "b")
            assert harness.output == []
            assert len(harness.snapshot()) == 4
            harness.complete("a", "A")
            harness.advance(1)
            assert harness.output == ["A", "B", "B", "B"]

    def test_hits_are_not_counted_as_calls(self) -> None:
        weather, store = Counting(), MemoryStore()
        run_rows(weather.function, ["oslo"], store=store)
        counted = figures(async_pandas_udf(weather.function, store=store), ["oslo", "bergen", "bergen", "oslo"])
        assert (counted.rows, counted.results, counted.calls, counted.attempts) == (4, 4, 1, 1)
        assert (counted.store_hits, counted.store_misses, counted.shared_flights) == (2, 2, 1)


class TestSingleFlight:
    def test_a_failed_leader_is_followed_by_another_call(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, store=MemoryStore(), on_error="null") as harness:
            harness.put("a", "a", "a")
            harness.fail("a", ValueError("bad"))
            assert harness.output == [None]
            assert function.calls == ["a", "a"]
            harness.complete("a", "A")
            harness.advance(1)
            assert harness.output == [None, "A", "A"]

    def test_an_heir_has_attempts_of_its_own(self) -> None:
        function = ManualFunction()
        retry = RetryStrategy.fixed_delay(attempts=2, delay=1.0)
        with OperatorHarness(function, store=MemoryStore(), retry=retry, on_error="capture") as harness:
            harness.put("a", "a")
            for _ in range(3):
                harness.fail("a", ConnectionError())
                harness.advance(1)
            assert len(function.calls) == 4
            harness.complete("a", "A")
            harness.advance(1)
            failed, done = harness.output
            assert failed["error"]["attempts"] == 2
            assert done["value"] == "A"

    def test_a_follower_has_its_own_deadline(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, store=MemoryStore(), timeout=10, on_error="null") as harness:
            harness.put("a")
            harness.advance(4)
            harness.put("a")
            harness.advance(6)  # the leader's deadline
            assert harness.output == [None]
            assert function.calls == ["a", "a"]
            harness.advance(4)  # the follower's, which is not begun anew by its call
            assert harness.output == [None, None]

    def test_what_stands_in_for_a_late_result_is_not_shared_and_not_kept(self) -> None:
        function, store = ManualFunction(), MemoryStore()
        with OperatorHarness(function, store=store, timeout=10, on_timeout="late") as harness:
            harness.put("a")
            harness.advance(5)
            harness.put("a")
            harness.advance(5)
            assert harness.output == ["late"]
            harness.complete("a", "A")
            harness.advance(1)
            assert harness.output == ["late", "A"]
        assert asyncio.run(store.info())["entries"] == 1

    def test_a_result_that_was_not_good_enough_is_not_kept(self) -> None:
        function, store = ManualFunction(), MemoryStore()
        retry = RetryStrategy.fixed_delay(attempts=1, delay=1.0, retry_if_result=lambda result: result == "pending")
        with OperatorHarness(function, store=store, retry=retry) as harness:
            harness.put("a", "a")
            harness.complete("a", "pending")
            assert harness.output == ["pending"]
            harness.complete("a", "done")
            harness.advance(1)
            assert harness.output == ["pending", "done"]
        assert asyncio.run(store.info())["entries"] == 1

    def test_followers_cannot_edit_what_others_see(self) -> None:
        def spoil(row: Mapping[str, Any]) -> dict[str, Any]:
            row["tags"].append("x")
            return {"n": len(row["tags"])}

        async def tags(city: str) -> list[str]:
            await asyncio.sleep(1)
            return [city]

        rows = [{"city": "oslo"}] * 3
        out = run_stream(
            lambda stream: stream.ordered_wait(tags, "city", store=MemoryStore()).map(spoil, "n int"),
            rows,
            "city string",
            object_reuse=True,
        )
        assert [row["n"] for row in out] == [2, 2, 2]
