"""`RateLimit(by=)`: each key has its own permits, and a key at its limit holds up no other. Virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import Budget, CircuitBreaker, RateLimit, RetryStrategy, async_pandas_udf
from asyncudf.queues import Watermark
from asyncudf.testing import MemoryStore, run_rows
from tests.kit.figures import figures
from tests.kit.limited import ThrottledError, most_within, now
from tests.kit.thorough import examples

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])
PER_TENANT = RateLimit(1, by="tenant")


async def begins(tenant: Any, x: Any = None) -> float:
    return now()


def simulated(limit: RateLimit, rows: Sequence[tuple[Any, float]]) -> list[float]:
    """When calls of these keys and costs begin if nothing but the limit holds them: GCRA, in the order of each key."""
    empty_at, clock = defaultdict[Any, float](lambda: -math.inf), defaultdict[Any, float](float)
    begun = []
    for key, cost in rows:
        saved = limit.saved * limit.interval
        since = max(empty_at[key], clock[key] - saved)
        clock[key] = max(clock[key], since + min(cost * limit.interval, saved)) if cost else clock[key]
        empty_at[key] = max(since, clock[key] - saved) + cost * limit.interval
        begun.append(clock[key])
    return begun


class TestEachKey:
    @settings(max_examples=examples(0.3), deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=1, max_size=40),
        st.sampled_from([RateLimit(2), RateLimit(10, "minute", 4), RateLimit(40, burst=3)]),
        st.sampled_from(["ordered", "unordered"]),
    )
    def test_has_the_permits_of_a_limit_of_its_own(
        self, rows: list[tuple[int, float]], limit: RateLimit, mode: Any
    ) -> None:
        begun: dict[int, float] = {}

        async def noted(tenant: int, cost: float, row: int) -> None:
            begun[row] = now()

        by_key = RateLimit(limit.permits, limit.per, limit.burst, lambda t, cost, row: cost, by="tenant")
        given = [(*row, number) for number, row in enumerate(rows)]
        run_rows(noted, given, capacity=1, output_mode=mode, rate_limit=by_key)
        assert [begun[row] for row in range(len(rows))] == pytest.approx(simulated(limit, rows))

    def test_null_is_one_and_equal_values_are_one(self) -> None:
        """As in a store: 1, 1.0 and True differ, each nan is the same, entries of a map have no order."""
        nan = float("nan")
        same = [[None, None], [nan, -nan], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [[1, None], [1, None]]]
        other = [1, 1.0, True, "1", 0.0, -0.0, {"a": 1}, [1], b"1"]
        rows = [(value,) for value in (*(one for pair in same for one in pair), *other)]
        times = run_rows(begins, rows, rate_limit=PER_TENANT)
        assert times == [0, 1] * len(same) + [0] * len(other)

    def test_may_be_made_of_several_parameters(self) -> None:
        rows = [("a", 1), ("a", 2), ("b", 1), ("a", 1)]
        assert run_rows(begins, rows, rate_limit=RateLimit(1, by=["tenant", "x"])) == [0, 0, 0, 1]


class TestRowsOfAKeyAtItsLimit:
    @MODES
    def test_hold_no_slot(self, mode: Any) -> None:
        """One tenant has most rows and comes first: the others are called at once, with a single slot."""
        begun = defaultdict[str, list[float]](list)

        async def noted(tenant: str, row: int) -> int:
            begun[tenant].append(now())
            await asyncio.sleep(0.001)
            return row

        rows = [("big", row) for row in range(60)] + [(f"small {row % 40}", row) for row in range(40)]
        got = run_rows(noted, rows, capacity=1, output_mode=mode, rate_limit=RateLimit(10, by="tenant"))
        assert begun["big"] == pytest.approx([0.1 * number for number in range(60)], abs=0.002)
        assert max(begun[f"small {number}"][0] for number in range(40)) < 0.05
        if mode == "ordered":
            assert got == [*range(60), *range(40)]

    def test_are_called_in_their_order(self) -> None:
        rows = [("a", row) for row in range(5)] + [("b", row) for row in range(5)]
        begun = []

        async def noted(tenant: str, row: int) -> None:
            begun.append((tenant, row))

        run_rows(noted, rows, output_mode="unordered", rate_limit=PER_TENANT)
        assert [row for tenant, row in begun if tenant == "a"] == [*range(5)]
        assert begun[:2] == [("a", 0), ("b", 0)]

    @pytest.mark.parametrize("size", [4, 10])
    def test_count_in_the_queue(self, size: int) -> None:
        """When it is full of them nothing is read: the tenant behind them begins as soon as one has left."""
        rows = [("big", row) for row in range(size + 2)] + [("small", 0)]
        times = run_rows(begins, rows, capacity=2, queue_size=size, rate_limit=PER_TENANT)
        assert times == [*range(size + 2), 2]

    def test_count_in_its_memory(self) -> None:
        """A row aside counts like one in back-off, or several times as many would be let in."""
        rows = [("big", row) for row in range(300)]
        found = figures(begins, rows, max_buffered_bytes=100_000, capacity=2, rate_limit=PER_TENANT)
        assert 50 < found.queued["peak"] < 100

    def test_start_no_deadline_before_their_first_attempt(self) -> None:
        assert run_rows(begins, [("a",)] * 50, timeout=2.0, rate_limit=PER_TENANT) == [*range(50)]

    def test_go_before_new_ones_when_they_are_called_again(self) -> None:
        """Their deadline runs: behind 50 rows that had no call yet they would be late."""
        failed = set()

        async def flaky(tenant: str, row: int) -> float:
            if row not in failed:
                failed.add(row)
                raise ConnectionError
            return now()

        retry = RetryStrategy.fixed_delay(2, 0.1)
        times = run_rows(flaky, [("a", row) for row in range(50)], timeout=5.0, retry=retry, rate_limit=PER_TENANT)
        assert times == [2 * row + 1 for row in range(50)]

    def test_may_be_late_from_their_first_attempt_on(self) -> None:
        async def fails(tenant: str) -> None:
            raise ConnectionError

        found = figures(
            fails,
            [("a",)],
            timeout=5.0,
            on_error="null",
            retry=RetryStrategy.fixed_delay(2, 0.1),
            rate_limit=RateLimit(1, per="minute", by="tenant"),
        )
        assert (found.seconds, found.timeouts) == (5, 1)

    def test_are_passed_by_no_marker(self) -> None:
        """Rows behind a watermark are called, and leave after those before it."""
        rows = [("a",), ("a",), Watermark(1), ("b",)]
        options: dict[str, Any] = {"output_mode": "unordered", "rate_limit": PER_TENANT}
        assert run_rows(begins, rows, **options) == [0, 1, Watermark(1), 0]
        assert run_rows(begins, [row for row in rows if row != Watermark(1)], **options) == [0, 0, 1]

    def test_wait_for_the_limit_in_the_account_of_time(self) -> None:
        rows = [("a", row) for row in range(11)] + [("b", 0)]
        limits = [PER_TENANT, RateLimit(4, burst=1)]
        found = figures(begins, rows, rate_limit=limits)
        assert found.time["limit"] == pytest.approx(10.0)
        assert found.limit_seconds == pytest.approx({'RateLimit(1, by="tenant")': 9.5, "RateLimit(4)": 0.5}, abs=0.3)
        assert sum(found.limit_seconds.values()) == pytest.approx(found.time["limit"])


class TestBesideOthers:
    def test_permits_of_all_limits_or_of_none(self) -> None:
        """A row that waits for its key takes nothing of the limit of all, which is used to the full by others."""
        rows = [("big", row) for row in range(20)] + [(f"small {row}", row) for row in range(40)]
        times = sorted(run_rows(begins, rows, rate_limit=[RateLimit(10, burst=1), PER_TENANT]))
        assert times[:41] == pytest.approx([0.1 * number for number in range(41)])
        assert most_within(1.0, times) <= 10

    def test_of_two_keys_both_hold(self) -> None:
        rows = [(row % 3, row % 2) for row in range(60)]
        begun = defaultdict[Any, list[float]](list)

        async def noted(tenant: int, account: int) -> None:
            begun["tenant", tenant].append(now())
            begun["account", account].append(now())

        limits = [RateLimit(2, burst=1, by="tenant"), RateLimit(2, burst=1, by="account")]
        run_rows(noted, rows, rate_limit=limits)
        assert all(most_within(1.0, times) <= 2 for times in begun.values())
        assert max(times[-1] for times in begun.values()) <= 1.2 * 30 / 2

    def test_what_settle_gives_back_is_for_the_key(self) -> None:
        async def answer(tenant: str) -> float:
            await asyncio.sleep(0.5)
            return now() - 0.5

        limit = RateLimit(1, burst=1, cost=4, settle=lambda tenant, result: 1, by="tenant")
        assert run_rows(answer, [("a",), ("a",), ("a",), ("b",)], rate_limit=limit) == pytest.approx(
            [0, 4, 5, 0], abs=3
        )

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_is_lost_with_refusals_retries_a_breaker_and_a_store(self, seed: int) -> None:
        rng = random.Random(seed)

        async def rough(tenant: int, row: int) -> int:
            await asyncio.sleep(rng.random())
            if 3 < now() < 30:
                raise ConnectionError("down")
            if rng.random() < 0.1:
                raise ThrottledError(2.0)
            if rng.random() < 0.1:
                raise ValueError("by chance")
            return row

        rows = [(rng.randrange(5), row // 2) for row in range(200)]
        function = async_pandas_udf(
            "long",
            store=MemoryStore(),
            version="1",
            capacity=5,
            rate_limit=[RateLimit(3, by="tenant"), RateLimit(8)],
            retry=RetryStrategy.fixed_delay(8, 0.1),
            breaker=CircuitBreaker(),
            timeout=600.0,
        )(rough)
        assert run_rows(function, rows) == [row for _, row in rows]

    def test_rows_that_a_budget_does_not_pay_for_let_those_behind_them_ask(self) -> None:
        budget = Budget(3, reserve=1)
        times = run_rows(begins, [("a",)] * 6, budget=budget, on_spent="null", rate_limit=PER_TENANT)
        assert times == [0, 1, 2, None, None, None]

    def test_a_held_row_is_decided_when_the_last_one_aside_is_late(self) -> None:
        """It waited for ever: a late row still counted as one that may show whether the service is dead."""

        async def fails(tenant: str, row: int) -> None:
            raise ConnectionError

        rows = [("a", 0), ("b", 1)]
        limits = [RateLimit(1, per="minute", by="tenant")]
        options: dict[str, Any] = {"timeout": 5.0, "on_error": "null", "retry": RetryStrategy.fixed_delay(2, 0.1)}
        assert run_rows(fails, rows, breaker=CircuitBreaker(window=10), rate_limit=limits, **options) == [None, None]

    def test_a_task_that_ends_leaves_no_row_waiting(self) -> None:
        async def fails(tenant: str, row: int) -> None:
            await asyncio.sleep(2.5)
            raise ValueError(row)

        with pytest.raises(Exception, match="fails failed"):
            run_rows(fails, [("a", row) for row in range(1000)], rate_limit=PER_TENANT)

    def test_what_a_call_gives_back_lets_the_next_of_its_key_begin(self) -> None:
        """It began only when the permits that the call had not used would have come anyway."""

        async def takes(tenant: str, row: int) -> float:
            begun = now()
            await asyncio.sleep(1.0)
            return begun

        limit = RateLimit(100, burst=5000, cost=5000, settle=lambda *_: 100, by="tenant")
        assert run_rows(takes, [("a", row) for row in range(4)], rate_limit=limit) == pytest.approx([0, 1, 2, 3])
