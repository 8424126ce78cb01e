"""A pool of a client with fewer connections than calls is no row's fault: the task fails, and says what to change."""

from __future__ import annotations

import types
from typing import Any

import httpx
import pytest
import redis.exceptions

from asyncudf import FatalError, RetryStrategy, http
from asyncudf.testing import run_rows
from tests.kit import task_limits

SAID = r"raise the limit of the pool, as in httpx.Limits\(max_connections=\.\.\.\), or lower capacity=30"


def of_package(package: str, name: str, text: str) -> Exception:
    kind = types.new_class(name, (Exception,), exec_body=lambda names: names.update(__module__=f"{package}.errors"))
    return kind(text)


def wrapped() -> Exception:
    """As openai raises it."""
    error = ConnectionError("Request timed out.")
    error.__cause__ = httpx.PoolTimeout("")
    return error


class WrapperError(Exception):
    """Names what it wraps as its only argument, and not as its cause: Qdrant's client does."""


ERRORS = {
    "a client that wraps httpx": lambda: WrapperError(httpx.PoolTimeout("")),
    "httpx": lambda: httpx.PoolTimeout(""),
    "a client of httpx": wrapped,
    "httpcore": lambda: of_package("httpcore", "PoolTimeout", ""),
    "redis": lambda: redis.exceptions.MaxConnectionsError(),
    "redis, which waits": lambda: redis.exceptions.ConnectionError("No connection available."),
    "redis, earlier": lambda: redis.exceptions.ConnectionError("Too many connections"),
    "psycopg": lambda: of_package("psycopg_pool", "PoolTimeout", "couldn't get a connection after 30.00 sec"),
    "psycopg, a long queue": lambda: of_package("psycopg_pool", "TooManyRequests", "the pool has 9 requests waiting"),
    "pymongo": lambda: of_package("pymongo", "WaitQueueTimeoutError", "Timed out while checking out a connection"),
    "sqlalchemy": lambda: of_package("sqlalchemy", "TimeoutError", "QueuePool limit of size 5 overflow 10 reached"),
}
OTHERS = {
    "a service's limit": lambda: redis.exceptions.ConnectionError("max number of clients reached"),
    "a row's own": lambda: of_package("carpool", "PoolTimeout", "nobody goes to Oslo"),
    "another timeout": lambda: of_package("sqlalchemy", "TimeoutError", "the statement took too long"),
    "no text": lambda: redis.exceptions.ConnectionError(),
}


@pytest.mark.parametrize("policy", ["raise", "null", "capture"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_the_task_fails_under_every_policy_and_names_the_pool_and_the_capacity(error: Any, policy: str) -> None:
    """With 12 calls and 2 connections 10 healthy rows were NULL, and the message was empty."""
    task_limits.fails_the_task(error, policy, SAID)


def test_the_advice_follows_the_message_as_a_sentence_of_its_own() -> None:
    async def call(x: int) -> int:
        raise redis.exceptions.ConnectionError("No connection available.")

    with pytest.raises(FatalError, match=r"No connection available\. More requests"):
        run_rows(call, [1])


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_another_error_is_its_rows(error: Any) -> None:
    async def call(x: int) -> int:
        raise error()

    assert run_rows(call, [1], returnType="int", on_error="null") == [None]


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_it_is_tried_again_as_long_as_attempts_are_left(error: Any) -> None:
    async def call(x: int) -> int:
        attempts.append(x)
        if len(attempts) < 3:
            raise error()
        return x

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1, retry_on=http.is_retryable)
    attempts: list[int] = []
    assert run_rows(call, [1], retry=retry) == [1]


def test_it_is_kept_in_no_store_and_opens_no_breaker() -> None:
    """A service was taken for dead by calls that had never reached it."""
    task_limits.is_kept_nowhere(lambda: httpx.PoolTimeout(""))


def test_adaptive_capacity_goes_down() -> None:
    task_limits.adaptive_capacity_goes_down(lambda: httpx.PoolTimeout(""))
