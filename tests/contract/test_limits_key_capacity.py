"""`KeyCapacity`: so many calls of each key are in flight, and a key at its bound holds up no other. Virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncudf import (
    AsyncStream,
    Budget,
    CircuitBreaker,
    KeyCapacity,
    OptionError,
    RateLimit,
    RetryStrategy,
    async_pandas_udf,
)
from asyncudf.testing import MemoryStore, run_rows, run_stream
from tests.kit.limited import ThrottledError, most_within, now

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])
FOUR = KeyCapacity(4, by="tenant")


class Tenants:
    """A service that counts the calls of each tenant, and how many were in flight at most."""

    def __init__(self, seconds: Callable[[], float] = lambda: 1.0) -> None:
        self._seconds = seconds
        self._in_flight = defaultdict[Any, int](int)
        self.most = defaultdict[Any, int](int)
        self.begun = defaultdict[Any, list[float]](list)

    async def call(self, tenant: Any, row: int) -> int:
        self.begun[tenant].append(now())
        self._in_flight[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self._in_flight[tenant])
        try:
            await asyncio.sleep(self._seconds())
        finally:
            self._in_flight[tenant] -= 1
        return row


def of_fifty(rows: int, rng: random.Random) -> list[tuple[int, int]]:
    """One of fifty tenants has 60% of the rows."""
    return [(0 if rng.random() < 0.6 else rng.randrange(1, 50), row) for row in range(rows)]


def ideal(rows: Sequence[tuple[int, int]], seconds: float, rate: float = math.inf) -> float:
    """How long the tenant with the most rows takes with four calls in flight, and at this rate."""
    most = max(sum(tenant == one for tenant, _ in rows) for one in {tenant for tenant, _ in rows})
    return most * max(seconds / 4, 1 / rate)


class TestEachKey:
    @MODES
    def test_has_its_calls_in_flight_and_no_more(self, mode: Any) -> None:
        service, rows = Tenants(), of_fifty(400, random.Random(1))
        ended: list[float] = []

        async def noted(tenant: int, row: int) -> int:
            got = await service.call(tenant, row)
            ended.append(now())
            return got

        got = run_rows(noted, rows, capacity=300, output_mode=mode, job_capacity=FOUR)
        assert sorted(got) == [*range(400)]
        assert (got == [*range(400)]) or mode == "unordered"
        assert max(service.most.values()) == 4
        assert max(ended) <= ideal(rows, 1.0) + 1.0

    @MODES
    @pytest.mark.parametrize(("seconds", "rate"), [(0.1, 20.0), (0.2, 20.0), (0.5, 20.0)])
    def test_that_has_a_rate_too_wastes_neither(self, mode: Any, seconds: float, rate: float) -> None:
        """A semaphore in the function would take the permit before it waits: then one bound wastes the other."""
        rng = random.Random(2)
        service, rows = Tenants(lambda: seconds * rng.uniform(0.8, 1.2)), of_fifty(600, rng)
        limit = RateLimit(rate, burst=1, by="tenant")
        run_rows(service.call, rows, capacity=300, output_mode=mode, rate_limit=limit, job_capacity=FOUR)
        assert max(service.most.values()) <= 4
        assert max(most_within(1.0, times) for times in service.begun.values()) <= rate * 1.02 + 1
        assert service.begun[0][-1] <= 1.1 * ideal(rows, seconds, rate)

    def test_null_is_one(self) -> None:
        service = Tenants()
        run_rows(service.call, [(None, 0), (None, 1), ("a", 2)], job_capacity=KeyCapacity(1, by="tenant"))
        assert service.begun == {None: [0, 1], "a": [0]}

    def test_may_be_made_of_several_parameters(self) -> None:
        begun = []

        async def begins(tenant: str, model: int) -> None:
            begun.append(now())
            await asyncio.sleep(1)

        rows = [("a", 1), ("a", 2), ("b", 1), ("a", 1)]
        run_rows(begins, rows, job_capacity=KeyCapacity(1, by=["tenant", "model"]))
        assert begun == [0, 0, 0, 1]


class TestRowsOfAKeyAtItsBound:
    @MODES
    def test_hold_no_slot(self, mode: Any) -> None:
        service, rows = Tenants(), [*(("big", row) for row in range(20)), *((f"small {row}", row) for row in range(4))]
        run_rows(service.call, rows, capacity=2, output_mode=mode, job_capacity=KeyCapacity(1, by="tenant"))
        assert max(service.begun[f"small {row}"][0] for row in range(4)) <= 4
        assert service.begun["big"] == [*range(20)]

    def test_are_called_in_their_order(self) -> None:
        begun = list[int]()

        async def noted(tenant: str, row: int) -> None:
            begun.append(row)
            await asyncio.sleep(random.Random(row).random())

        run_rows(noted, [("a", row) for row in range(20)], output_mode="unordered", job_capacity=FOUR)
        assert begun == [*range(20)]

    def test_that_are_late_leave_the_line(self) -> None:
        """A row that is called again waits behind its key; its deadline ends it, and the key goes on."""
        calls = list[int]()

        async def busy(tenant: str, row: int) -> int:
            calls.append(row)
            await asyncio.sleep(3.0 if row else 0.1)
            if not row:
                raise ConnectionError
            return row

        retry = RetryStrategy.fixed_delay(5, 0.1)
        got = run_rows(
            busy, [("a", row) for row in range(3)], retry=retry, timeout=3.5, on_error="null",
            job_capacity=KeyCapacity(1, by="tenant"),
        )  # fmt: skip
        assert got == [None, 1, 2]

    @MODES
    @pytest.mark.parametrize("by", ["tenant", None])
    def test_follow_one_that_is_late_while_it_waits_for_a_permit(self, mode: Any, by: Any) -> None:
        """It had the only place of its key, and no call of the key was in flight that could end."""
        begun = list[tuple[int, float]]()

        async def fails_once(tenant: str, row: int) -> int:
            begun.append((row, now()))
            await asyncio.sleep(1)
            if not row:
                raise ConnectionError
            return row

        got = run_rows(
            fails_once, [("a", row) for row in range(4)], output_mode=mode, on_error="null", timeout=15,
            retry=RetryStrategy.fixed_delay(2, 0.1), rate_limit=RateLimit(1, per=10, burst=1, by=by),
            job_capacity=KeyCapacity(1, by="tenant"),
        )  # fmt: skip
        assert sorted(got, key=str) == [1, 2, 3, None]
        assert begun == [(0, 0), (1, 10), (2, 20), (3, 30)]

    def test_reserve_nothing_of_a_budget(self) -> None:
        service = Tenants()
        rows = [("a", 0), ("a", 1), ("b", 2)]
        budget = Budget(2, "calls", by="tenant")
        got = run_rows(service.call, rows, job_capacity=KeyCapacity(1, by="tenant"), budget=budget, on_spent="null")
        assert got == [0, 1, 2]
        assert service.begun == {"a": [0, 1], "b": [0]}

    def test_go_on_when_one_that_waits_for_its_rate_is_late(self) -> None:
        """It has the place of a call, and no call of it ends: rows behind it with another rate waited for ever."""
        begun = list[tuple[int, float]]()

        async def fails_once(tenant: str, model: str, row: int) -> int:
            begun.append((row, now()))
            if not row:
                raise ConnectionError
            await asyncio.sleep(0.5)
            return row

        got = run_rows(
            fails_once, [("a", "slow", 0), ("a", "fast", 1), ("a", "fast", 2)], retry=RetryStrategy.fixed_delay(5, 0.1),
            timeout=5.0, on_error="null", job_capacity=KeyCapacity(1, by="tenant"),
            rate_limit=RateLimit(1, 60.0, 1, lambda tenant, model, row: float(model == "slow"), by="model"),
        )  # fmt: skip
        assert got == [None, 1, 2]
        assert begun == [(0, 0), (1, 0), (2, pytest.approx(5.0, abs=1.5))]


class TestACallThatEnds:
    @pytest.mark.parametrize("how", ["raises", "is late", "is refused"])
    def test_gives_its_place_back(self, how: str) -> None:
        first = {"a"}
        begun = list[float]()

        async def ends(tenant: str, row: int) -> int:
            begun.append(now())
            if row == 0 and first:
                first.clear()
                if how == "is late":
                    await asyncio.sleep(60)
                raise ThrottledError if how == "is refused" else ValueError
            return row

        got = run_rows(
            ends, [("a", row) for row in range(3)], on_error="null", attempt_timeout=1.0, timeout=5.0,
            job_capacity=KeyCapacity(1, by="tenant"),
        )  # fmt: skip
        assert got == ([0, 1, 2] if how == "is refused" else [None, 1, 2])

    def test_of_a_service_that_is_down_lets_one_probe(self) -> None:
        async def down(tenant: int, row: int) -> int:
            await asyncio.sleep(0.1)
            if now() < 5:
                raise ConnectionError
            return row

        rows = [(row % 5, row) for row in range(100)]
        got = run_rows(
            down, rows, on_error="null", breaker=CircuitBreaker(window=5, open_for=1.0),
            job_capacity=KeyCapacity(2, by="tenant"),
        )  # fmt: skip
        assert got == [*range(100)]


def test_a_stored_result_needs_no_call() -> None:
    service, store = Tenants(), MemoryStore()
    rows = [("a", 0), ("a", 1)]
    for _ in range(2):
        run_rows(service.call, rows, store=store, job_capacity=KeyCapacity(1, by="tenant"))
    assert service.begun == {"a": [0, 1]}


@pytest.mark.parametrize("by", ["tenant", ["tenant", "row"]])
def test_a_function_that_is_used_twice_shares_them(by: Any) -> None:
    service, limit = Tenants(), KeyCapacity(1, by=by)

    def build(stream: AsyncStream) -> AsyncStream:
        first = stream.ordered_wait(service.call, "tenant", "row", as_="x", job_capacity=limit)
        return first.ordered_wait(service.call, "tenant", "row", as_="y", job_capacity=limit)

    rows = [{"tenant": "a", "row": row} for row in range(4)]
    assert run_stream(build, rows, "tenant string, row long") == [
        {**row, "x": row["row"], "y": row["row"]} for row in rows
    ]
    assert service.most["a"] == (1 if by == "tenant" else 4)


def test_a_report_names_it() -> None:
    function = async_pandas_udf("long", job_capacity=FOUR)(Tenants().call)
    assert function.options.to_plain()["job_capacity"] == 'KeyCapacity(4, by="tenant")'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: KeyCapacity(0, by="tenant"), "calls must be at least 1, not 0"),
        (lambda: KeyCapacity(4, by=None), "by must be the name of a parameter"),  # type: ignore[arg-type]
        (lambda: KeyCapacity(4, by=["a", "a"]), "by has 'a' twice"),
        (lambda: run_rows(lambda x: x, [1], job_capacity=KeyCapacity(4, by="tenant")), "tenant"),
        (lambda: async_pandas_udf(job_capacity=[FOUR]), "job_capacity must be a whole number, or one KeyCapacity"),
        (lambda: async_pandas_udf(job_capacity="4"), "job_capacity must be a whole .* not .4."),  # type: ignore[call-overload]
        (lambda: async_pandas_udf(job_capacity=True), "job_capacity must be a whole number, not True"),
        (lambda: async_pandas_udf(capacity=FOUR), "KeyCapacity.4, by=.tenant.. as job_capacity="),  # type: ignore[call-overload]
    ],
)
def test_a_mistake_is_named_when_it_is_made(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        wrong()
