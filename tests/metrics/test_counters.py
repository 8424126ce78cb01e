"""What the engine counts: calls, rows, errors, and where the time went, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    RateLimit,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
    http,
)
from asyncudf.testing import MemoryStore
from tests.kit.costs import python_calls
from tests.kit.engines import Engine
from tests.kit.figures import figures, figures_so_far

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


async def slow(x: int) -> int:
    await asyncio.sleep(0.05)
    return x


async def instant(x: int) -> int:
    return x


def block(seconds: float) -> None:
    loop: Any = asyncio.get_running_loop()
    loop.block(seconds)


@MODES
def test_calls_that_wait_and_calls_that_return_at_once(mode: str) -> None:
    """Rows, results, calls, attempts, how long they took, how many were in flight."""
    found = figures(slow, range(1000), capacity=20, output_mode=mode)
    assert (found.rows, found.results, found.calls, found.attempts, found.retries) == (1000, 1000, 1000, 1000, 0)
    assert found.latency["p50"] == pytest.approx(0.05, rel=0.01)
    assert (found.in_flight["peak"], found.in_flight["mean"]) == (20, pytest.approx(20))
    assert found.time["calls_busy"] == found.seconds == pytest.approx(2.5)
    found = figures(instant, range(1001), capacity=20, output_mode=mode)
    assert (found.rows, found.results, found.calls, found.attempts, found.latency["count"]) == (1001,) * 5
    assert found.in_flight["peak"] == 1


def test_calls_that_return_late_without_waiting_are_told_apart() -> None:
    """Of calls that block each has its own latency, though they are taken in bursts."""

    async def blocking(x: int) -> int:
        block(0.001 * (x % 10))
        return x

    found = figures(blocking, range(1000))
    assert found.latency["p50"] == pytest.approx(0.0045, rel=0.15)
    assert found.latency["max"] == pytest.approx(0.009)
    assert found.latency["mean"] * found.latency["count"] == pytest.approx(4.5)


def test_errors_retries_and_dead_rows() -> None:
    """Each attempt that failed counts, with its type and one message; a row only when it has failed for good."""

    async def flaky(x: int, context: RuntimeContext) -> int:
        await asyncio.sleep(0.01)
        if x % 4 == 0 and context.attempt_number < 3:
            raise ConnectionError(f"https://user:secret@example.com/{x}?key=secret")
        if x % 4 == 1:
            raise KeyError("never")
        return x

    retry = RetryStrategy.fixed_delay(3, 0.1)
    found = figures(flaky, range(100), on_error="null", retry=retry)
    assert (found.rows, found.results, found.calls) == (100, 100, 100)
    assert (found.attempts, found.retries) == (100 + 2 * 25 + 2 * 25, 100)
    assert found.errors == {"ConnectionError": 50, "KeyError": 75}
    assert found.failures == 25
    assert "secret" not in found.examples["ConnectionError"]
    assert found.waited == pytest.approx(10)
    assert found.in_flight["mean"] == pytest.approx(200 * 0.01 / found.seconds)


def test_the_last_error_has_its_status() -> None:
    """2,245 errors did not say which."""

    async def fails(x: int) -> int:
        raise http.PermanentError(400 + x) if x < 5 else ConnectionError(x)

    assert figures(fails, range(4), capacity=1, on_error="null").last_error == {"type": "PermanentError", "status": 403}
    assert figures(fails, range(9), capacity=1, on_error="null").last_error == {
        "type": "ConnectionError", "status": None,
    }  # fmt: skip
    assert figures(fails, [], on_error="null").last_error is None


def test_what_waits_for_a_slot_after_its_back_off_is_not_in_flight() -> None:
    """However many rows wait for their next attempt: never more calls than slots are in flight."""
    loop_time: list[float] = []

    async def down_at_first(x: int) -> int:
        await asyncio.sleep(0.1)
        loop_time.append(asyncio.get_running_loop().time())
        if loop_time[-1] < 5:
            raise ConnectionError
        return x

    retry = RetryStrategy.fixed_delay(50, 6.0)
    found = figures(down_at_first, range(600), capacity=10, retry=retry, timeout=1000.0)
    assert found.retries > 300
    assert found.in_flight["mean"] == pytest.approx(0.1 * found.attempts / found.seconds, rel=0.01)
    assert found.in_flight["mean"] <= 10


def test_a_call_whose_deadline_comes_while_it_waits_is_not_in_flight_either() -> None:
    """Its back-off, as far as it came, was no time of the service's."""

    async def fails(x: int) -> int:
        await asyncio.sleep(0.1)
        if x:
            raise ConnectionError
        await asyncio.sleep(1.9)
        return x

    retry = RetryStrategy.fixed_delay(2, 0.9)
    found = figures(fails, range(20), capacity=2, retry=retry, timeout=2.0, on_error="null")
    assert found.in_flight["mean"] <= 2


def test_a_redacted_input_is_in_no_example() -> None:
    """With `redact` a result that does not fit is told without the value."""

    async def wrong(x: int) -> int:
        return "4111 1111"  # type: ignore[return-value]

    found = figures(async_pandas_udf("int", on_error="null", redact=True)(wrong), [1])
    assert "4111" not in found.examples["ResultError"]
    assert (found.failures, found.results) == (1, 1)


def test_rows_and_attempts_that_take_too_long() -> None:
    async def hangs(x: int) -> int:
        await asyncio.sleep(100)
        return x

    found = figures(hangs, range(10), timeout=1.0, on_error="null")
    assert (found.timeouts, found.failures, found.errors) == (10, 10, {"AsyncTimeoutError": 10})
    found = figures(hangs, range(10), timeout=1.0, on_timeout=0)
    assert (found.timeouts, found.failures, found.errors) == (10, 0, {})
    found = figures(hangs, range(10), attempt_timeout=1.0, on_error="null", retry=RetryStrategy.fixed_delay(2, 0.1))
    assert (found.timeouts, found.attempts, found.failures) == (20, 20, 10)
    assert found.latency["mean"] * found.latency["count"] == pytest.approx(21)


def test_micro_batches_are_calls_of_many_rows() -> None:
    async def vectorized(xs: pd.Series) -> pd.Series:
        await asyncio.sleep(0.1)
        return xs

    late = async_pandas_udf("long", batch_size=100, timeout=0.05, on_error="null")(vectorized)
    found = figures(late, range(950))
    assert (found.timeouts, found.errors, found.failures) == (10, {"AsyncTimeoutError": 10}, 950)
    found = figures(async_pandas_udf("long", batch_size=100)(vectorized), range(950))
    assert (found.calls, found.attempts, found.rows, found.results) == (10, 10, 950, 950)
    assert found.latency["count"] == 10


def test_results_are_counted_and_not_rows_where_a_row_may_have_none_or_many() -> None:
    """Of an `AsyncFunction` a row is done when its future is, though the coroutine runs on."""

    class Late(AsyncFunction):
        async def async_invoke(self, row: Any, result: ResultFuture) -> None:
            result.complete([row, row])
            await asyncio.sleep(1)

    async def repeated(x: int) -> AsyncIterator[int]:
        await asyncio.sleep(0.1)
        for _ in range(x):
            yield x

    for function, results in ((Late(), 8), (repeated, 6)):
        found = figures(async_pandas_udf("long")(function), [0, 1, 2, 3])
        assert (found.rows, found.calls, found.results, found.abandoned) == (4, 4, results, 0)


def test_each_call_of_a_task_that_fails_counts_once() -> None:
    begun = 0

    async def one_fails(x: int) -> int:
        nonlocal begun
        begun += 1
        try:
            await asyncio.sleep(0.5 if x == 5 else 100)
        finally:
            if x != 5:
                await asyncio.sleep(3)
        raise ValueError(x)

    for limits in ({"timeout": 1.0}, {"timeout": 1.0, "attempt_timeout": 1.0}):
        begun = 0
        engine = Engine(one_fails, capacity=10, **limits)
        engine.feed(range(100))
        with pytest.raises(AsyncUDFError, match="5"):
            engine.run()
        found = figures_so_far(engine)
        assert (found.calls, found.attempts, found.abandoned, found.timeouts) == (begun, begun, begun, 0)
        assert found.in_flight["mean"] == pytest.approx(begun * 0.5 / found.seconds, rel=0.01)


@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
def test_no_limit_comes_once_a_task_is_cancelled(limit: str) -> None:
    """Its calls, and the rows that follow them, were abandoned; some take a while to clean up."""

    async def cleans_up(x: int) -> int:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)
        return x

    shared: dict[str, Any] = {"store": MemoryStore(), "version": "1"}
    for rows, sharing in ([1, 2, 3], {}), ([1, 1, 1], shared):
        engine = Engine(cleans_up, on_error="null", output_mode="unordered", **{limit: 1.0}, **sharing)
        engine.feed(rows)
        engine.run(until=0.5)
        found = figures_so_far(engine)
        assert (found.timeouts, found.abandoned, engine.output) == (0, len(set(rows)), [])


def test_where_the_time_goes() -> None:
    async def with_a_slow_one(x: int) -> int:
        await asyncio.sleep(5 if x == 300 else 0.05)
        return x

    found = figures(with_a_slow_one, range(1000), capacity=20, queue_size=40)
    assert found.time["head_of_line"] == pytest.approx(4.9, abs=0.1)
    assert found.queued["peak"] == 40
    found = figures(slow, range(20), capacity=20, batches=[(1.0, range(20)), (2.0, range(20))])
    assert found.time["input"] == pytest.approx(1.9)
    assert found.time["calls_busy"] == pytest.approx(0.15)
    found = figures(with_a_slow_one, range(301), capacity=20)
    assert found.time["start_and_end"] == pytest.approx(5, abs=0.1)


def test_a_blocked_loop() -> None:
    async def blocks(x: int) -> int:
        block(0.06)
        return x

    async def blocks_later(x: int) -> int:
        await asyncio.sleep(0.01)
        block(0.06)
        return x

    for function in (blocks, blocks_later):
        found = figures(function, range(100))
        assert found.time["blocked_loop"] == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize("options", [{}, {"rate_limit": RateLimit(10**9)}], ids=["no limit", "a limit"])
def test_a_row_takes_the_same_way_whether_or_not_its_call_is_looked_at(options: dict[str, Any]) -> None:
    """Each look at 1,000 calls in flight made a `Call` for each of them, which then ended as a retried call does."""

    def calls_made(looks: int) -> int:
        engine = Engine(async_pandas_udf("long", capacity=1000, **options)(slow))
        engine.feed(range(1000))
        engine.end()
        for number in range(looks):
            engine.loop.call_at(0.01 * (number + 1), engine.look)
        return python_calls(engine.run)

    assert calls_made(looks=1) < calls_made(looks=0) + 1500  # was 46,000 more


@st.composite
def jobs(draw: Any) -> dict[str, Any]:
    """A function's ways, and its options."""
    capacity = draw(st.integers(1, 8))
    return {
        "ways": draw(st.lists(st.tuples(st.sampled_from("iwbfh"), st.floats(0, 2)), min_size=1, max_size=60)),
        "batches": sorted(draw(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 9)), max_size=4))),
        "options": {
            "capacity": capacity,
            "queue_size": draw(st.integers(capacity, 30)),
            "output_mode": draw(st.sampled_from(["ordered", "unordered"])),
            "timeout": draw(st.sampled_from([0.5, 3.0, 180.0])),
            "retry": draw(st.sampled_from([None, RetryStrategy.fixed_delay(3, 0.2)])),
            "on_error": draw(st.sampled_from(["null", "capture"])),
        },
    }


@given(jobs())
def test_whatever_a_job_does_its_account_adds_up(job: dict[str, Any]) -> None:
    """Over random jobs: all time is accounted for to the millisecond, all rows and calls are counted, bounds hold."""
    ways, begun = job["ways"], 0

    async def varied(x: int) -> int:
        nonlocal begun
        begun += 1
        how, seconds = ways[x % len(ways)]
        if how == "w":
            await asyncio.sleep(seconds)
        if how == "b":
            block(seconds / 10)
        if how == "f":
            await asyncio.sleep(seconds / 10)
            raise ValueError(x)
        if how == "h":
            await asyncio.sleep(1000)
        return x

    batches = [(when, range(count)) for when, count in job["batches"]]
    found = figures(async_pandas_udf("long", **job["options"])(varied), range(len(ways)), batches=batches)
    rows = len(ways) + sum(count for _, count in job["batches"])
    assert (found.rows, found.results, found.calls) == (rows, rows, rows)
    assert found.attempts == begun
    assert sum(found.time.values()) == pytest.approx(found.seconds, abs=1e-3)
    assert min(found.time.values()) >= -1e-9
    assert found.in_flight["peak"] <= job["options"]["capacity"]
    assert found.queued["peak"] <= job["options"]["queue_size"]
    assert found.latency["count"] == rows
