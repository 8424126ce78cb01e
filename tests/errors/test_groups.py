"""Exception groups: what is in them is told, as theirs is the message that says nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError, CircuitBreaker, RetryStrategy, RuntimeContext, http
from asyncudf.testing import MemoryStore, run_rows
from tests.kit.errors import facts_of

INSIDE = "unhandled errors in a TaskGroup (1 sub-exception): ValueError: no such city"


class NotFoundError(Exception):
    status = 404


async def fails() -> None:
    raise ValueError("no such city")


async def call(x: int) -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
    return x


@contextlib.asynccontextmanager
async def feed() -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        yield


async def with_feed(x: int, feed: None) -> None:
    await asyncio.sleep(60)


def captured(error: Exception) -> dict[str, Any]:
    """What is captured of a call that raises it."""

    async def raises(x: int) -> None:
        raise error

    (result,) = run_rows(raises, [1], on_error="capture", returnType="int")
    found: dict[str, Any] = result["error"]
    return found


def test_the_message_of_a_call_or_a_resource_that_failed_tells_what_is_in_a_group() -> None:
    with pytest.raises(AsyncUDFError) as failed:
        run_rows(call, [1])
    assert str(failed.value).endswith(f"for the input (1,): ExceptionGroup: {INSIDE}")
    (result,) = run_rows(call, [1], on_error="capture")
    assert (result["error"]["type"], result["error"]["message"]) == ("ExceptionGroup", INSIDE)
    with pytest.raises(AsyncUDFError) as failed:
        run_rows(with_feed, [1], resources=feed)
    assert str(failed.value) == f"resource 'feed' of with_feed failed: ExceptionGroup: {INSIDE}"


def test_of_groups_in_groups_the_first_few_errors_are_told() -> None:
    error: Any = ExceptionGroup("inner", [ValueError(n) for n in range(2)])
    error = ExceptionGroup("outer", [KeyError("k"), error, *(ValueError(n) for n in range(2, 20))])
    shown = "; ".join(f"ValueError: {n}" for n in range(7))
    assert captured(error)["message"] == f"outer (20 sub-exceptions): KeyError: 'k'; {shown}; ..."


def test_a_deep_group_is_told() -> None:
    """Thousands of groups, one in another, are no endless recursion."""
    error: Exception = ValueError("no")
    for _ in range(2_000):
        error = ExceptionGroup("group", [error])
    assert captured(error)["message"] == "group (1 sub-exception): ValueError: no"


def test_the_status_of_an_error_in_a_group_is_that_of_the_group() -> None:
    error = ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [NotFoundError()])])
    assert captured(error)["status"] == 404


class RefusedError(Exception):
    """A 429 that says how long to wait."""

    status = 429

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after


def group_of(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", errors)


async def succeeds() -> None:
    await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "retry_on",
    [ConnectionError, (ConnectionError, TimeoutError), ExceptionGroup, http.is_retryable],
    ids=["a type", "types", "groups", "is_retryable"],
)
def test_a_task_group_whose_parts_may_be_tried_again_is_tried_again(retry_on: Any) -> None:
    """Types did not look into the group: the row failed in its first attempt, with retry_on=ConnectionError."""

    async def part(context: RuntimeContext) -> None:
        await asyncio.sleep(0.1)
        if context.attempt_number < 3:
            raise ConnectionResetError("reset")

    async def two_requests(x: int, context: RuntimeContext) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(succeeds())
            group.create_task(part(context))
        return context.attempt_number

    retry = RetryStrategy.fixed_delay(attempts=5, delay=1, retry_on=retry_on)
    assert run_rows(two_requests, [1], retry=retry) == [3]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (group_of(ConnectionError(), TimeoutError()), 3),
        (group_of(group_of(TimeoutError()), group_of(group_of(ConnectionError()))), 3),
        (group_of(ConnectionError(), ValueError("bad row")), 1),
        (group_of(ConnectionError(), group_of(ConnectionError(), group_of(ValueError("bad row")))), 1),
    ],
    ids=["all", "all, nested", "one does not", "one does not, nested"],
)
def test_a_group_is_tried_again_when_all_in_it_match(error: Exception, attempts: int) -> None:
    async def fails_always(x: int) -> int:
        raise error

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1, retry_on=(ConnectionError, TimeoutError))
    (result,) = run_rows(fails_always, [1], returnType="int", retry=retry, on_error="capture")
    assert result["error"]["attempts"] == attempts


@pytest.mark.parametrize(
    "error",
    [group_of(NotFoundError(), RefusedError(7), RefusedError(3)), group_of(RefusedError(3), group_of(RefusedError(7)))],
    ids=["beside a 404", "nested"],
)
def test_a_refusal_in_a_group_lets_the_row_wait_for_the_longest_wait_and_uses_no_attempt(error: Exception) -> None:
    """Beside a 404 the refusal was seen only when it came first, and the first wait counted."""
    times = []

    async def refused_once(x: int, context: RuntimeContext) -> int:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise error
        return x

    assert run_rows(refused_once, [1]) == [1]
    assert times == [0.0, 7.0]


def test_the_longest_wait_in_a_group_counts_for_retries_too() -> None:
    assert facts_of(group_of(RefusedError(3), RefusedError(7))).retry_after == 7.0


@pytest.mark.parametrize(
    ("inside", "outcome"),
    [
        ([NotFoundError(), RefusedError(1), TimeoutError()], "throttled"),
        ([NotFoundError(), TimeoutError(), KeyError()], "down"),
        ([KeyError(), NotFoundError()], "answered"),
        ([KeyError(), ValueError()], "nothing"),
    ],
)
def test_the_worst_in_a_group_says_how_the_service_is(inside: list[Exception], outcome: str) -> None:
    """A 404 before a timeout counted as an answer, a timeout before a 404 as a failure."""
    assert {facts_of(group_of(*inside)).outcome, facts_of(group_of(*reversed(inside))).outcome} == {outcome}


def test_one_type_of_failure_on_in_a_group_counts_for_the_breaker() -> None:
    breaker = CircuitBreaker(window=2, open_for=5.0, failure_on=(RefusedError, OSError))
    times = []

    async def call(x: int) -> int:
        times.append(asyncio.get_running_loop().time())
        if len(times) <= 2:
            raise group_of(ValueError(), group_of(OSError("gone")))
        return x

    assert run_rows(call, [1, 2], capacity=1, breaker=breaker) == [1, 2]
    assert times[2] == 5.0


@pytest.mark.parametrize("policy", ["null", "capture"])
@pytest.mark.parametrize("fatal", [SystemExit("stop"), KeyboardInterrupt("stop")])
def test_what_ends_the_process_fails_the_task_in_a_group_too(policy: str, fatal: BaseException) -> None:
    calls = []

    async def ends(x: int) -> int:
        calls.append(x)
        raise group_of(ValueError(), group_of(fatal))

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1)
    with pytest.raises(AsyncUDFError, match=rf"BaseExceptionGroup: .*{type(fatal).__name__}: stop"):
        run_rows(ends, [1], returnType="int", on_error=policy, retry=retry)
    assert calls == [1]


def test_a_cancellation_in_a_group_is_the_error_of_its_row() -> None:
    """A CancelledError alone was, a group with one failed the task."""

    async def cancels(x: int) -> int:
        if x == 1:
            raise group_of(asyncio.CancelledError("mine"), ValueError("no"))
        return x

    assert run_rows(cancels, [0, 1, 2], on_error="null") == [0, None, 2]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (group_of(KeyError("no such city")), 1),
        (group_of(KeyError("no such city"), MemoryError()), 2),
        (group_of(NotFoundError(), TimeoutError()), 2),
    ],
    ids=["lasting", "not enough memory", "a timeout"],
)
def test_a_group_is_kept_in_the_store_if_all_in_it_would_fail_again(error: Exception, calls: int) -> None:
    store, called = MemoryStore(error_ttl=60), []

    async def fails_always(x: int) -> int:
        called.append(x)
        raise error

    for _ in range(2):
        assert run_rows(fails_always, [1], returnType="int", store=store, on_error="null") == [None]
    assert len(called) == calls
