"""A row that is bad, or a service that is dead: the circuit breaker tells them apart. Virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncudf import AdaptiveCapacity, CircuitBreaker, RetryStrategy, async_pandas_udf
from asyncudf.testing import MemoryStore, run_rows
from tests.kit.engines import Engine
from tests.kit.errors import task_fails
from tests.kit.figures import figures_so_far
from tests.kit.limited import Service, now
from tests.kit.stores import LeasedStore, SlowStore

BREAKER = CircuitBreaker(window=10, open_for=5.0, max_open=100.0)
RETRIES = pytest.mark.parametrize("retry", [None, RetryStrategy.fixed_delay(3, 0.5)], ids=["once", "three times"])


async def hangs(x: int) -> int:
    await asyncio.sleep(1000.0 if 1 < now() < 60 else 0.1)
    return x


@RETRIES
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("capacity", [5, 10, 50])
def test_bad_rows_that_lie_together_do_not_end_the_job(capacity: int, mode: Any, retry: Any) -> None:
    """The breaker opens, for they look like an outage; a row behind them tells that the service is there."""
    service = Service(0.1, bad=range(100, 115))
    options: dict[str, Any] = {"capacity": capacity, "output_mode": mode, "retry": retry, "timeout": 60.0}
    got = run_rows(service, range(500), on_error="null", breaker=BREAKER, **options)
    assert got.count(None) == 15
    assert max(service.rows) == 499
    assert service.times[-1] < 100


@pytest.mark.parametrize("capacity", [1, 2, 50])
@pytest.mark.parametrize("make", [MemoryStore, partial(SlowStore, put=0.5), partial(LeasedStore, get=0.3)])
def test_rows_that_wait_for_a_store_are_rows_that_come(make: Callable[[], Any], capacity: int) -> None:
    """While all slots were free for a lookup or a write, failed rows were given up: no call seemed to follow."""
    service = Service(0.1, down=(1, 60))
    options: dict[str, Any] = {"store": make(), "version": "1", "on_error": "null"}
    assert None not in run_rows(service, range(700), capacity=capacity, breaker=BREAKER, **options)


@pytest.mark.parametrize("failing", [0.6, 0.8])
def test_a_service_that_fails_now_and_then_costs_no_row_while_there_are_others(failing: float) -> None:
    """Nor do rows that were excused and fail again: others tell whether the service does."""
    rng = random.Random(5)

    async def service(x: int) -> int:
        await asyncio.sleep(0.1)
        if 1 < now() < 60 and rng.random() < failing:
            raise ConnectionError("down")
        return x

    got = run_rows(service, range(1500), capacity=20, on_error="null", breaker=CircuitBreaker())
    assert got == list(range(1500))


def test_one_row_that_is_tried_for_ever_is_given_up() -> None:
    """Its back-off is over each time that the service may be tried."""
    service = Service(0.1, bad=[1])
    options: dict[str, Any] = {"retry": RetryStrategy.fixed_delay(3, 12.0), "breaker": CircuitBreaker(window=3)}
    with task_fails(match="the service of Service has given no answer for 300 s"):
        run_rows(service, [1], on_error="null", timeout=1000.0, **options)
    assert service.times[-1] < 400


def test_nothing_but_bad_rows_is_a_dead_service() -> None:
    """Nobody could tell."""
    service = Service(0.1, bad=range(20, 60))
    with task_fails(match="the service of Service has given no answer for 100 s"):
        run_rows(service, range(60), capacity=5, on_error="null", breaker=BREAKER)


def test_an_answer_that_stands_in_for_a_late_one_is_for_no_row_of_an_outage() -> None:
    """`on_timeout` is for rows whose call is slow, not for those that met a dead service."""

    got = run_rows(hangs, range(300), capacity=10, timeout=5.0, on_timeout=-1, on_error="null", breaker=BREAKER)
    assert got == list(range(300))


def test_what_a_row_of_an_outage_gets_in_the_end_is_kept() -> None:
    """20 rows whose calls hung until their timeout were called again, paid for, and left out of the store."""

    store = MemoryStore()
    options: dict[str, Any] = {"store": store, "version": "1", "timeout": 5.0, "breaker": BREAKER}
    assert run_rows(hangs, range(500), capacity=20, **options) == list(range(500))
    assert run_rows(hangs, range(500), max_calls=1, **options) == list(range(500))


def test_so_is_what_a_row_gets_that_had_waited_for_the_call_of_an_equal_one() -> None:
    """It had no call in the outage; the result of its first was paid for, and left out of the store."""
    answered = []

    async def hangs(x: int) -> int:
        await asyncio.sleep(1000.0 if now() < 20 else 1.0)
        answered.append(x)
        return x

    store = SlowStore()
    options: dict[str, Any] = {"store": store, "version": "1", "capacity": 1, "timeout": 3.0}
    breaker = CircuitBreaker(window=5, open_for=2)
    assert run_rows(hangs, [0, 0, 1, 2, 3, 4], breaker=breaker, **options) == [0, 0, 1, 2, 3, 4]
    assert sum(store.sizes("put")) == len(answered)


def test_no_row_of_an_outage_is_called_twice_at_once() -> None:
    """Three rows that had followed the call of an equal one were: each was twice among the calls that could begin."""
    running: list[int] = []

    async def hangs(x: int, city: int) -> int:
        assert x not in running
        running.append(x)
        try:
            await asyncio.sleep(1000.0 if 1 < now() < 60 else 0.1)
        finally:
            running.remove(x)
        return x

    rows = [(x, x // 5) for x in range(600)]
    store = MemoryStore(key=lambda x, city: city)
    options: dict[str, Any] = {"timeout": 5.0, "breaker": CircuitBreaker(window=20, open_for=5), "version": "1"}
    assert len(run_rows(hangs, rows, capacity=10, store=store, **options)) == 600


def test_a_task_that_is_cancelled_in_an_outage_ends_its_calls() -> None:
    """Also where equal rows have waited for a call that hung: each was twice in the line of those to be called next."""
    ended = []

    async def hangs(x: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(now())

    shared: dict[str, Any] = {"store": MemoryStore(), "version": "1", "breaker": CircuitBreaker(window=3, open_for=3.0)}
    engine = Engine(hangs, returnType="int", capacity=3, timeout=2.0, **shared)
    engine.feed([1, 1, 1, 2, 2, 3])
    engine.run(until=6.0)
    assert ended == [2.0, 2.0, 2.0, 6.0]
    found = figures_so_far(engine)
    assert (found.attempts, found.abandoned) == (4, 3)


def test_equal_rows_have_the_time_of_the_one_that_is_called() -> None:
    """With a store they wait for its call; while the service is dead their time does not run either."""

    answered: list[int] = []

    async def service(x: int) -> int:
        await asyncio.sleep(0.1)
        if 1 < now() < 25:
            raise ConnectionError("down")
        if now() > 25:
            answered.append(x)
            await asyncio.sleep(8.0 if len(answered) > 1 else 0.0)
        return x

    looked_up = async_pandas_udf(service, "long", store=MemoryStore(), version="1", timeout=30.0)
    options: dict[str, Any] = {"capacity": 10, "on_error": "null", "breaker": CircuitBreaker(open_for=2)}
    assert run_rows(looked_up, [row // 2 for row in range(600)], **options) == [row // 2 for row in range(600)]


@pytest.mark.parametrize("capacity", [1, AdaptiveCapacity(1, 1), 2])
def test_one_call_at_a_time_is_enough_to_tell_a_dead_service(capacity: Any) -> None:
    """Between two calls nothing is under way, but there are rows that will tell: nobody is to blame yet."""

    async def hangs_at_first(x: int) -> int:
        await asyncio.sleep(100.0 if now() < 20 else 0.1)
        return x

    options: dict[str, Any] = {"capacity": capacity, "attempt_timeout": 1.5, "on_error": "null", "breaker": BREAKER}
    assert run_rows(hangs_at_first, range(50), **options) == list(range(50))
