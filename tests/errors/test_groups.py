"""Exception groups: what is in them is told, as theirs is the message that says nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import run_rows

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


def test_the_message_of_a_failed_call_tells_what_is_in_a_group() -> None:
    with pytest.raises(AsyncUDFError) as failed:
        run_rows(call, [1])
    assert str(failed.value).endswith(f"for the input (1,): ExceptionGroup: {INSIDE}")


def test_a_captured_group_tells_what_is_in_it() -> None:
    (result,) = run_rows(call, [1], on_error="capture")
    assert (result["error"]["type"], result["error"]["message"]) == ("ExceptionGroup", INSIDE)


def test_the_message_of_a_resource_that_fails_tells_what_is_in_a_group() -> None:
    with pytest.raises(AsyncUDFError) as failed:
        run_rows(with_feed, [1], resources=feed)
    assert str(failed.value) == f"resource 'feed' of with_feed failed: ExceptionGroup: {INSIDE}"


def test_of_groups_in_groups_the_first_few_errors_are_told() -> None:
    error: Any = ExceptionGroup("inner", [ValueError(n) for n in range(2)])
    error = ExceptionGroup("outer", [KeyError("k"), error, *(ValueError(n) for n in range(2, 20))])
    shown = "; ".join(f"ValueError: {n}" for n in range(7))
    assert captured(error)["message"] == f"outer (20 sub-exceptions): KeyError: 'k'; {shown}; ..."


def test_a_deep_group_is_told() -> None:
    """Ten thousand groups, one in another, are no endless recursion."""
    error: Exception = ValueError("no")
    for _ in range(10_000):
        error = ExceptionGroup("group", [error])
    assert captured(error)["message"] == "group (1 sub-exception): ValueError: no"


def test_the_status_of_an_error_in_a_group_is_that_of_the_group() -> None:
    error = ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [NotFoundError()])])
    assert captured(error)["status"] == 404
