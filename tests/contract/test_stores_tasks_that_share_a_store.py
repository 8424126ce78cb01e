"""Tasks of one host with one store: equal arguments are called once over all of them, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncUDFError, CircuitBreaker, RateLimit
from asyncudf.testing import VirtualClockLoop, run_rows
from tests.kit.engines import Engine
from tests.kit.stores import Counting, LeasedStore, SlowStore


class Tasks:
    """Tasks that run the same function over rows of their own, on one virtual clock."""

    def __init__(self, function: Any, rows: Sequence[Sequence[Any]], **options: Any) -> None:
        loop = VirtualClockLoop()
        self.engines = [Engine(function, loop=loop, version="1", **options) for _ in rows]
        for engine, given in zip(self.engines, rows, strict=True):
            engine.feed(given)
            engine.end()

    def run(self, *, cancel: float | None = None) -> list[Any]:
        """What each has emitted; a task's error is raised.

        Args:
            cancel: when the first task is cancelled.
        """
        first, *others = self.engines
        first.run(*others, until=cancel)
        return [engine.output for engine in self.engines]

    @property
    def seconds(self) -> float:
        return self.engines[0].loop.time()


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("options", [{"capacity": 1}, {"capacity": 3, "queue_size": 3}, {"capacity": 10}], ids=str)
@pytest.mark.parametrize("tasks", [1, 2, 4, 8])
@pytest.mark.parametrize("get", [0.0, 0.3], ids=["quick store", "slow store"])
def test_equal_arguments_are_called_once(tasks: int, options: Any, mode: str, get: float) -> None:
    """In whatever order the rows of each task come, also where each waits for what another is about to call."""
    chance = random.Random(tasks)
    weather, store = Counting(0.05), LeasedStore(get=get, put=get)
    rows = [chance.choices([f"city {n}" for n in range(60)], k=200) for _ in range(tasks)]
    shared = Tasks(weather.function, rows, store=store, output_mode=mode, **options)
    out = shared.run()
    for emitted, given in zip(out, rows, strict=True):
        assert (emitted if mode == "ordered" else sorted(emitted)) == (
            [row.upper() for row in given] if mode == "ordered" else sorted(row.upper() for row in given)
        )
    assert set(weather.calls.values()) == {1}
    assert not store.owners


def test_of_a_store_without_leases_rows_are_looked_up_again() -> None:
    """A row whose call begins long after its batch was looked up is not called if another task has paid for it."""
    rows = [f"city {n}" for n in range(40)]
    weather, store = Counting(1.0), SlowStore()
    Tasks(weather.function, [rows, rows[::-1]], store=store, capacity=2).run()
    assert sum(weather.calls.values()) <= len(rows) + 4
    assert max(store.sizes("get")[2:]) <= 2, "only what is about to be called"


@pytest.mark.parametrize(
    "options", [{"rate_limit": RateLimit(1, scope="task")}, {"job_capacity": 1}], ids=["rate", "all"]
)
@pytest.mark.parametrize("capacity", [1, 100])
def test_a_call_that_a_limit_holds_back_is_looked_up_when_its_turn_comes(capacity: int, options: Any) -> None:
    """Free slots do not say that calls begin soon: as many as they take were looked up, and paid twice."""
    rows = [f"city {n}" for n in range(60)]
    weather = Counting(0.5)
    Tasks(weather.function, [rows, rows[::-1]], store=SlowStore(), capacity=capacity, **options).run()
    assert sum(weather.calls.values()) <= len(rows) + 2


def test_what_a_limit_holds_back_is_not_leased_long_before_its_call() -> None:
    """Other tasks would wait for it until their patience ends, and call for it too."""
    chance = random.Random(3)
    rows = [chance.sample([f"city {n}" for n in range(100)], k=100) for _ in range(4)]
    weather, limit = Counting(0.5), RateLimit(2, per="minute", scope="task")
    Tasks(weather.function, rows, store=LeasedStore(), rate_limit=limit).run()
    assert sum(weather.calls.values()) <= 103


@pytest.mark.parametrize("calls_per_second", [10, 1000])
def test_a_limit_is_used_up_while_calls_are_looked_up(calls_per_second: int) -> None:
    rows = [f"city {n}" for n in range(3 * calls_per_second)]
    limit = RateLimit(calls_per_second, scope="task")
    shared = Tasks(Counting(0.02).function, [rows], store=LeasedStore(get=0.001), rate_limit=limit)
    shared.run()
    assert shared.seconds < 1.05 * 3 + 0.1


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_failed_call_is_made_by_the_next_task(vectorized: bool) -> None:
    calls: Counter[str] = Counter()

    async def weather(city: str) -> str:
        calls[city] += 1
        await asyncio.sleep(1)
        if calls[city] == 1 and city != "good":
            raise ConnectionError(city)
        return city.upper()

    async def weathers(cities: pd.Series) -> pd.Series:
        return pd.Series([await weather(city) for city in cities])

    function, options = (weathers, {"batch_size": 2}) if vectorized else (weather, {})
    rows = ["good", "oslo", "oslo"]
    out = Tasks(function, [rows, rows], store=LeasedStore(), on_error="null", returnType="string", **options).run()
    assert calls["oslo"] == 2
    assert sorted(map(str, out[0] + out[1])).count("OSLO") >= 2


def test_a_stored_failure_is_that_of_rows_of_other_tasks_that_wait_for_the_call() -> None:
    calls = Counter[str]()

    async def fails(city: str) -> str:
        calls[city] += 1
        await asyncio.sleep(1.0)
        raise ValueError(city)

    shared = Tasks(fails, [["oslo"], ["oslo", "oslo"]], store=LeasedStore(error_ttl=60.0), on_error="capture")
    errors = [row["error"]["type"] for emitted in shared.run() for row in emitted]
    assert (errors, calls) == (["ValueError"] * 3, {"oslo": 1})


def test_what_a_cancelled_task_was_calling_another_calls() -> None:
    weather, store = Counting(10.0), LeasedStore()
    shared = Tasks(weather.function, [["oslo"], ["oslo", "bergen"]], store=store)
    assert shared.run(cancel=5.0) == [[], ["OSLO", "BERGEN"]]
    assert weather.calls == {"oslo": 2, "bergen": 1}
    assert 15 <= shared.seconds < 15.2


@pytest.mark.parametrize(("timeout", "waits"), [(5.0, 5.0), (None, 180.0)])
def test_nobody_waits_longer_than_a_row_may(timeout: float | None, waits: float) -> None:
    """Where a lease does not end, a row is called after its own timeout, and has its whole time then."""
    weather, store = Counting(4.0), LeasedStore()
    Tasks(weather.function, [["oslo"]], store=store).run()
    [key] = store.entries
    store.entries.clear()
    store.owners[key] = "a task that hangs"
    shared = Tasks(weather.function, [["oslo", "bergen"]], store=store, timeout=timeout)
    assert shared.run() == [["OSLO", "BERGEN"]]
    assert waits + 4 <= shared.seconds < waits + 4.2


def test_a_call_that_runs_into_its_timeout_ends_its_lease() -> None:
    """The task goes on, and its lease is over all the same."""
    calls = []

    async def hangs(city: str) -> str:
        calls.append(city)
        await asyncio.sleep(1000 if len(calls) == 1 else 1)
        return city.upper()

    rows = [["oslo", "slow"], ["oslo"]]
    shared = Tasks(hangs, rows, store=LeasedStore(), timeout=10, on_error="null", capacity=1)
    assert shared.run() == [[None, "SLOW"], ["OSLO"]]
    assert calls.count("oslo") == 2


def test_batches_of_two_tasks_that_wait_for_each_other_are_called() -> None:
    """A lease is taken when a micro-batch is full, and not while it waits for rows that the other task has."""
    seen: Counter[str] = Counter()

    async def upper(cities: pd.Series) -> pd.Series:
        seen.update(cities)
        await asyncio.sleep(1)
        return cities.str.upper()

    rows = [[f"city {n}" for n in range(30)], [f"city {n}" for n in reversed(range(30))]]
    out = Tasks(upper, rows, store=LeasedStore(), returnType="string", batch_size=7, capacity=2, queue_size=14).run()
    assert [sorted(one) for one in out] == [sorted(row.upper() for row in rows[0])] * 2
    assert set(seen.values()) == {1}


def test_results_of_others_that_take_the_last_room_leave_no_row_waiting() -> None:
    """A late row waited for calls that tell of the service, and these for the room that its result held."""
    seconds = {"late": 2.0, "quick": 0.0}

    async def call(city: str) -> str:
        await asyncio.sleep(seconds.get(city, 0.01))
        return city * 10

    rows = [["late", "d", "b", "quick", "d", "quick", "late"], ["d", "late", "d", "b", "quick"]]
    options: dict[str, Any] = {"capacity": 1, "max_buffered_bytes": 60, "timeout": 1.5, "on_error": "capture"}
    store = SlowStore(get=0.3, put=0.02)
    out = Tasks(call, rows, store=store, breaker=CircuitBreaker(window=5), returnType="string", **options).run()
    assert [[row for row in given if row != "late"] for given in rows] == [
        [result["value"][: len(result["value"]) // 10] for result in emitted if result["error"] is None]
        for emitted in out
    ]


def test_a_store_that_fails_at_the_last_look_before_a_call() -> None:
    """Nothing awaits that look, and a task that was to end with such a store ends."""

    class Failing(LeasedStore):
        async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
            if self.sizes("get"):
                self.broken.add("get")
            return await super().get_many(keys)

    weather = Counting(1.0)
    with pytest.raises(AsyncUDFError, match=r"cannot be used: ConnectionError: get: the store is gone"):
        run_rows(weather.function, ["oslo"], store=Failing(), on_store_error="fail")
