"""Whatever a task waits for is in the log: what, for how long, for how long at most, and what changes it. Once."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    Budget,
    CircuitBreaker,
    FatalError,
    KeyCapacity,
    OptionError,
    ProcessFunction,
    RateLimit,
    ResultFuture,
    RetryStrategy,
)
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._engine.calls.resources import CLOSE_LIMIT
from asyncudf._functions.options import LONGEST_PATIENCE, SHORTEST_PATIENCE, Options
from asyncudf._limits.coordinator.client import MOST_AWAY, Coordinator
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._observe.time_account import SparkThread
from asyncudf._observe.waits import LONG, TaskWaits, Wait, Waiting
from asyncudf._spark.planner import plan_function_offline
from asyncudf.testing import MemoryStore, _runs, run_rows, run_stream
from tests.kit.engines import Engine
from tests.kit.functions import hang, swallow
from tests.kit.limited import ThrottledError
from tests.kit.stores import SlowStore

Told = list[str]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], Told]:
    """The lines about waits."""
    caplog.set_level(logging.WARNING, "asyncudf")
    return lambda: [text for text in caplog.messages if " waited for " in text]


async def quick(x: int) -> int:
    return x


def client(opens: Any) -> Any:
    class Client:
        async def __aenter__(self) -> None:
            await opens()

        async def __aexit__(self, *error: object) -> None: ...

    return Client


async def with_client(x: int, client: Any) -> int:
    return x


def minute() -> Any:
    return asyncio.sleep(60)


class Opens(AsyncFunction):
    async def open(self, context: Any) -> None:
        await asyncio.sleep(59)

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([value["x"]])


class OpensSlowly(ProcessFunction):
    open_timeout = timedelta(minutes=2)

    async def open(self, context: Any) -> None:
        await minute()

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect(value)


class TestOpening:
    def test_it_is_named_after_ten_seconds_and_fails_after_the_option(self, told: Callable[[], Told]) -> None:
        """It took ten minutes, and nothing said so."""
        with pytest.raises(AsyncUDFError, match=r"resource 'client' of with_client could not be opened: .* 60 s"):
            run_rows(with_client, [1], resources={"client": client(hang)})
        assert [re.sub(", without.*|, for 1 min at most.*", "", text) for text in told()] == [
            f"with_client has waited for {age} for resource 'client' to open" for age in ("10 s", "20 s", "40 s")
        ]
        assert "for 1 min at most; to change it: open_timeout= " in told()[0]

    @pytest.mark.parametrize("limit", [5, 5.0, timedelta(seconds=5)])
    def test_the_option_is_the_limit_of_each(self, limit: Any) -> None:
        opened: list[str] = []

        class First:
            async def __aenter__(self) -> None:
                opened.append("first")

            async def __aexit__(self, *error: object) -> None:
                opened.append("closed")

        async def call(x: int, first: Any, second: Any) -> int:
            return x

        with pytest.raises(AsyncUDFError, match=r"'second' of call .* not done within 5 s \(open_timeout\)$"):
            run_rows(call, [1], resources={"first": First, "second": client(hang)}, open_timeout=limit)
        assert opened == ["first", "closed"]

    def test_one_that_swallows_its_cancellation_is_left(self) -> None:
        with pytest.raises(AsyncUDFError, match=r"within 5 s \(open_timeout\), and not ended when it was cancelled"):
            run_rows(with_client, [1], resources={"client": client(swallow)}, open_timeout=5)

    def test_without_a_limit_it_may_take_any_time(self) -> None:
        slow = client(lambda: asyncio.sleep(3600))
        assert run_rows(with_client, [1], resources={"client": slow}, open_timeout=None) == [1]

    def test_without_a_limit_a_deadlock_is_still_found(self) -> None:
        with pytest.raises(AsyncUDFError, match="deadlock"):
            run_rows(with_client, [1], resources={"client": client(asyncio.Event().wait)}, open_timeout=None)

    def test_each_function_of_a_chain_is_named(self, told: Callable[[], Told]) -> None:
        rows = [{"x": 1}]
        got = run_stream(
            lambda stream: stream.process(OpensSlowly(), "x int").ordered_wait(Opens(), returnType="int"), rows, "x int"
        )
        assert [one["x"] for one in got] == [1]
        assert {text.partition(" has")[0] for text in told()} == {"Opens", "OpensSlowly"}
        assert all("for open() to open" in text for text in told())

    def test_a_process_function_has_a_limit_of_its_own(self) -> None:
        class Quicker(OpensSlowly):
            open_timeout = timedelta(seconds=59)

        with pytest.raises(AsyncUDFError, match=r"Quicker\.open\(\) failed: .* within 59 s \(open_timeout\)"):
            run_stream(lambda stream: stream.process(Quicker(), "x int"), [{"x": 1}], "x int")

    @pytest.mark.parametrize("limit", [0, "1 s", math.nan])
    def test_that_limit_is_checked_when_planned(self, limit: Any) -> None:
        class Wrong(OpensSlowly):
            open_timeout = limit

        with pytest.raises(OptionError, match="open_timeout of Wrong must be"):
            run_stream(lambda stream: stream.process(Wrong(), "x int"), [{"x": 1}], "x int")


def slow_call() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(70)
        return x

    run_rows(slow, [1, 2], timeout=None)


def no_permit() -> None:
    run_rows(quick, [1, 2], rate_limit=RateLimit(1, per="minute", burst=1, scope="task"), timeout=None)


def no_permit_of_a_key() -> None:
    limit = RateLimit(1, per="minute", burst=1, by="x", scope="task")
    run_rows(quick, [1, 1], rate_limit=limit, timeout=None)


async def second(x: int) -> int:
    await asyncio.sleep(1)
    return x


def no_permit_of_one_key() -> None:
    """Calls of other keys go on."""
    limit = RateLimit(1, per="minute", burst=1, by="x", scope="task")
    run_rows(second, [0, 0, *range(1, 200)], rate_limit=limit, capacity=1, timeout=None)


def budget_of_one_key() -> None:
    async def paid(x: int) -> int:
        await asyncio.sleep(70 if x == 0 else 1)
        return x

    rows = [0, 0, *range(1, 200)]
    run_rows(paid, rows, capacity=2, budget=Budget(1, by="x", reserve=0.9, settle=lambda x, result: 0.1))


def budget_that_is_reserved() -> None:
    async def paid(x: int) -> int:
        await asyncio.sleep(70)
        return x

    run_rows(paid, [1, 2], budget=Budget(1, reserve=0.9, settle=lambda x, result: 0.1))


def refusals() -> None:
    async def refusing(x: int) -> int:
        await asyncio.sleep(0.01)
        raise ThrottledError(20)

    with pytest.raises(FatalError, match="has refused all calls for 180 s"):
        run_rows(refusing, range(30), capacity=30)


def open_breaker() -> None:
    async def dead(x: int) -> int:
        await asyncio.sleep(0.01)
        raise ConnectionError("refused")

    with pytest.raises(FatalError, match="has given no answer for 100 s"):
        run_rows(dead, range(100), capacity=10, breaker=CircuitBreaker(max_open=100), on_error="null")


def back_off() -> None:
    async def failing(x: int) -> int:
        raise ConnectionError("no")

    run_rows(failing, [1], retry=RetryStrategy.fixed_delay(attempts=2, delay=70), on_error="null")


def lease_of_another_task() -> None:
    class Held(MemoryStore):
        """Another task calls for its keys, and does not end."""

        class leases:  # noqa: N801
            take = staticmethod(lambda key: False)
            give_back = staticmethod(lambda key: None)
            close = staticmethod(lambda: None)

    assert run_rows(quick, [1], store=Held(), version="1", timeout=70) == [1]


def slow_store() -> None:
    run_rows(quick, [1], store=SlowStore(get=70), version="1", store_timeout=100)


def no_input() -> None:
    engine = Engine(quick)
    engine.loop.call_later(70, lambda: (engine.feed([1]), engine.end()))
    engine.run()
    assert engine.output[0] == 1


def spark_that_does_not_read() -> None:
    threads: list[SparkThread] = []

    def environment(loop: Any, *about: Any, **more: Any) -> TaskEnvironment:
        threads.append(SparkThread(loop.time))
        return TaskEnvironment(loop, *about, spark_thread=threads[0], **more)

    with mock.patch.object(_runs, "TaskEnvironment", environment):
        engine = Engine(quick)
    engine.feed([1])
    engine.loop.call_later(1, threads[0].away.start)
    engine.loop.call_later(70, lambda: (threads[0].away.stop(), engine.end()))
    engine.run()


def coordinator_gone() -> None:
    class Gone(Coordinator):
        def __init__(self, *about: Any, **more: Any) -> None:
            super().__init__(*about, **more)

            async def unreachable(**call: Any) -> None:
                raise RedisConnectionError("no route")

            self._redis.register_script = lambda script: unreachable  # type: ignore[method-assign,assignment,return-value]

    config = CoordinatorConfig("redis://127.0.0.1:1", "space", "of_the_job")
    environment = partial(TaskEnvironment, query="query")
    plan = lambda *about: dataclasses.replace(plan_function_offline(*about), coordinator=config)  # noqa: E731
    with mock.patch.multiple(_runs, TaskEnvironment=environment, plan_function_offline=plan):
        engine = Engine(quick, job_capacity=2)
    engine.feed([1])
    engine.end()
    with (
        mock.patch("asyncudf._limits.coordinator.client.Coordinator", Gone),
        pytest.raises(FatalError, match="has not answered for 30 s"),
    ):
        engine.run()


def slow_to_close() -> None:
    class Client:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: object) -> None:
            await asyncio.sleep(20)

    async def call(x: int, a: Any, b: Any, c: Any, d: Any) -> int:
        return x

    run_rows(call, [1], resources=dict.fromkeys("abcd", Client))


OF_KEY = 'for a permit under the limit RateLimit(1, per="minute", scope="task", by="x") for one of its keys, for '


class ClosesSlowly(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect(value)

    async def close(self) -> None:
        await asyncio.sleep(25)


class TestClosing:
    def test_a_process_function_is_named(self, told: Callable[[], Told]) -> None:
        run_stream(lambda stream: stream.process(ClosesSlowly(), "x int"), [{"x": 1}], "x int")
        assert [text.partition(";")[0] for text in told()] == [
            f"ClosesSlowly has waited for {age} s for resources to close, for 30 s at most" for age in (10, 20)
        ]

    @pytest.mark.parametrize("ends", ["a row fails", "another one does not open"])
    def test_so_is_what_closes_after_an_error(self, ends: str, told: Callable[[], Told]) -> None:
        """A task that was to fail stood still for the limit of each of its resources, and said nothing."""

        class Slow:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, *error: object) -> None:
                await asyncio.sleep(25)

        async def failing(x: int, slow: Any, other: Any) -> int:
            raise ValueError(ends)

        async def opens() -> None:
            if ends != "a row fails":
                raise ValueError(ends)

        with pytest.raises(AsyncUDFError, match=ends):
            run_rows(failing, [1], resources={"slow": Slow, "other": client(opens)})
        assert [text.partition(";")[0] for text in told()] == [
            f"failing has waited for {age} s for resources to close, for 1 min at most" for age in (10, 20)
        ]


CALL = "for a call that does not return, with no time limit; to change it: attempt_timeout= or timeout="
# What holds a task up, for how long it has by the first line, and what that line says.
NAMED: dict[Callable[[], None], tuple[Waiting, str, str]] = {
    slow_call: (Waiting.CALL, "30 s", CALL),
    no_permit: (
        Waiting.PERMIT, "30 s",
        'for a permit under the limit RateLimit(1, per="minute", scope="task"), for 1 min at most; ',
    ),
    no_permit_of_a_key: (Waiting.PERMIT, "30 s", f"{OF_KEY}1 min at most; "),
    no_permit_of_one_key: (Waiting.PERMIT, "30 s", f"{OF_KEY}59 s at most; "),
    budget_that_is_reserved: (Waiting.PERMIT, "30 s", "for a permit under the limit 1 USD, with no time limit; "),
    budget_of_one_key: (Waiting.PERMIT, "30 s", 'for a permit under the limit 1 USD by "x" for one of its keys, with'),
    refusals: (Waiting.REFUSAL, "30 s", "for the service, which refuses calls, for 3 min at most; to change it: time"),
    open_breaker: (Waiting.BREAKER, "30 s", "for the circuit breaker to close, for 1 min 40 s at most; to change it: "),
    back_off: (Waiting.BACK_OFF, "30 s", "for the next attempt of rows that failed, for 3 min at most; to change it: "),
    lease_of_another_task: (Waiting.LEASE, "30 s", "for the calls of other tasks for equal rows, for 1 min 10 s at mo"),
    slow_store: (Waiting.STORE, "30 s", "for the result store, for 2 min 10 s at most; to change it: store_timeout="),
    no_input: (Waiting.INPUT, "30 s", "for input: what comes before in the query has given no row, with no time limit"),
    spark_that_does_not_read: (Waiting.SPARK, "30 s", "for Spark to read results: what comes behind in the query is"),
    coordinator_gone: (Waiting.COORDINATOR, "10 s", "for an answer of the coordinator, for 30 s at most"),
    slow_to_close: (Waiting.CLOSING, "10 s", "for resources to close, for 2 min at most"),
}  # fmt: skip


@pytest.mark.parametrize("holds_up", NAMED, ids=lambda one: one.__name__)
def test_what_holds_a_task_up_is_told(holds_up: Callable[[], None], told: Callable[[], Told]) -> None:
    """Each of these stood still, for hours even, with nothing in the log."""
    holds_up()
    _, after, text = NAMED[holds_up]
    lines = [line for line in told() if text in line]
    assert len(lines) in (1, 2, 3)
    assert f" has waited for {after} {text}" in lines[0]


def test_each_wait_is_tested() -> None:
    elsewhere = {Waiting.OPENING, Waiting.EVENT_LOOP}  # above, and in tests/loop/test_blocked_loop.py
    assert {kind for kind, *_ in NAMED.values()} | elsewhere == {*Waiting}


def test_the_page_shows_this_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hangs.md").read_text()
    table = page.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    rows = (kind.value for kind in Waiting)
    assert table == [f"| {row.what.format('...')} | {row.most} | {row.option} |" for row in rows]


def test_its_times_are_those_of_the_options() -> None:
    usual = Options()
    times = {
        Waiting.OPENING: f"{usual.open_timeout:g} s",
        **dict.fromkeys((Waiting.CALL, Waiting.BACK_OFF, Waiting.LEASE), f"{usual.timeout:g} s"),
        Waiting.REFUSAL: f"at least {SHORTEST_PATIENCE / 60:g} and at most {LONGEST_PATIENCE / 60:g} minutes",
        Waiting.BREAKER: f"{CircuitBreaker().times[1] / 60:g} minutes",
        Waiting.STORE: f"{usual.store_timeout:g} s",
        Waiting.COORDINATOR: f"{MOST_AWAY:g} s",
        Waiting.CLOSING: f"{CLOSE_LIMIT:g} s",
    }
    assert {kind for kind, time in times.items() if time not in kind.value.most} == set()
    assert {kind for kind in Waiting if kind not in times} == {
        kind for kind in Waiting if "no limit" in kind.value.most
    }


def test_a_job_that_goes_on_says_nothing(told: Callable[[], Told]) -> None:
    """However long it takes, and though it always waits for something."""
    limit, by_key = (RateLimit(2, burst=1, scope="task", by=by) for by in (None, "x"))
    assert run_rows(second, range(300), capacity=2) == [*range(300)]
    assert run_rows(second, range(300), rate_limit=limit, capacity=5) == [*range(300)]
    assert run_rows(second, [1] * 300, rate_limit=by_key, capacity=5) == [1] * 300  # all but one aside, for minutes
    assert told() == []


def test_rows_behind_slow_calls_of_their_key_wait_for_these_calls_alone(told: Callable[[], Told]) -> None:
    """They were told a second time, as if the limit held them back, and with no time limit."""

    async def slow(x: int) -> int:
        await asyncio.sleep(40)
        return x

    run_rows(slow, [1, 1], job_capacity=KeyCapacity(1, by="x"))
    assert {"for a call that does not return" in line for line in told()} == {True}


def test_input_that_comes_slowly_is_no_standstill(told: Callable[[], Told]) -> None:
    engine = Engine(quick)
    for number in range(10):
        engine.loop.call_later(25 * number, engine.feed, [number])
    engine.loop.call_later(250, engine.end)
    engine.run()
    assert told() == []


def test_a_service_whose_calls_are_long_is_told_seldom(told: Callable[[], Told]) -> None:
    """Not one line for each call: the pauses between lines double."""

    async def long(x: int) -> int:
        await asyncio.sleep(60)
        return x

    run_rows(long, range(100), capacity=1)
    assert 2 <= len(told()) <= math.log2(100 * 60 / LONG) + 1


def test_a_hang_is_told_in_a_task_that_has_had_many_long_waits() -> None:
    """The pauses between lines had doubled to hours, for which a call that hangs was not told."""
    now = 0.0
    lines: list[str] = []
    waits = TaskWaits(lambda: now, lines.append)
    for second in range(1000 * 40):
        now = float(second)
        waits.look([Wait(Waiting.CALL, "f", since=now - second % 40)])
    before, begun = len(lines), now
    assert before <= math.log2(1000 * 40 / LONG) + 1
    while len(lines) == before:
        now += 1
        waits.look([Wait(Waiting.CALL, "f", since=begun)])
    assert now - begun <= 2 * 40


def test_what_is_dated_by_looks_begins_anew_when_something_went_on() -> None:
    now = 0.0
    lines: list[str] = []
    waits = TaskWaits(lambda: now, lines.append)
    for second in range(200):
        now = float(second)
        waits.look([Wait(Waiting.INPUT, "f", mark=second // 40), Wait(Waiting.CALL, "g", since=150.0)])
    assert [line.partition(" for ")[0] + line[len(line.partition(" for ")[0]) :][:9] for line in lines] == [
        "f has waited for 30 s", "f has waited for 30 s", "f has waited for 30 s", "g has waited for 30 s",
    ]  # fmt: skip
    waits.look([])
    assert (waits.now, waits.lines(), waits.long()) == ((), [], [])
