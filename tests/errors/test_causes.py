"""A message says why, also where a client hides it in the exception that its own was raised from."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest

from asyncudf import AsyncUDFError, RetryStrategy, http
from asyncudf.testing import run_rows


class ConnectError(Exception): ...


class ReadTimeout(Exception): ...  # noqa: N818 - httpx's name


class WrapperError(Exception):
    """Names what it wraps as its only argument, and not as its cause: Qdrant's client does."""

    def __init__(self, source: Exception) -> None:
        self.source = source


def raised_from(message: str, *causes: BaseException) -> Exception:
    """Each one raised from the next."""
    error = last = LookupError(message)
    for cause in causes:
        last.__cause__ = cause
        last = cause  # type: ignore[assignment]
    return error


def in_a_circle() -> Exception:
    error = LookupError("lost")
    error.__cause__ = ConnectError("no way")
    error.__cause__.__cause__ = error
    return error


MESSAGES = {
    "no host": (
        raised_from("Connection error.", ConnectError("no such host")),
        "Connection error. (from ConnectError: no such host)",
    ),
    "no text": (raised_from("Request timed out.", ReadTimeout()), "Request timed out. (from ReadTimeout)"),
    "further down": (raised_from("down", ReadTimeout(), OSError("reset")), "down (from OSError: reset)"),
    "no text of its own": (raised_from("", ConnectError("no such host")), "(from ConnectError: no such host)"),
    "wrapped": (WrapperError(ReadTimeout()), "(from ReadTimeout)"),
    "wrapped, which says it": (WrapperError(ConnectError("no such host")), "no such host"),
    "said already": (raised_from("lost: no such host", ConnectError("no such host")), "lost: no such host"),
    "a timeout of asyncio": (TimeoutError(), ""),
    "a circle": (in_a_circle(), "lost (from ConnectError: no way)"),
    "a group": (
        raised_from("lost", ExceptionGroup("two", [ConnectError("no such host"), ReadTimeout()])),
        "lost (from ExceptionGroup: two (2 sub-exceptions): ConnectError: no such host; ReadTimeout:)",
    ),
    "a long text": (raised_from("lost", ConnectError("x" * 10_000)), f"lost (from ConnectError: {'x' * 297}...)"),
    "several lines": (raised_from("lost", ConnectError("no\nsuch\thost")), "lost (from ConnectError: no such host)"),
    "a secret": (
        raised_from("lost", ConnectError("GET https://me:secret@example.com/?key=secret")),
        "lost (from ConnectError: GET https://***@example.com/?***)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "message"), MESSAGES.values(), ids=MESSAGES)
def test_a_captured_error_says_why(error: Exception, message: str) -> None:
    """`APIConnectionError: Connection error.` was all that a thousand dead letters said of a misspelt host."""

    async def call(x: int) -> int:
        raise error

    (row,) = run_rows(call, [1], on_error="capture")
    assert row["error"]["message"] == message


@pytest.mark.parametrize("policy", ["null", "capture", "raise"])
@pytest.mark.parametrize("is_group", [True, False])
def test_a_row_may_be_in_the_group_that_its_error_was_raised_from(policy: Any, is_group: bool) -> None:
    """`raise group.exceptions[0] from group` failed the task under every policy, with a RecursionError."""

    async def failing() -> None:
        raise ConnectError("no such host")

    async def call(x: int) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
        except ExceptionGroup as both:
            if not is_group:
                raise both.exceptions[0] from both
            both.exceptions[0].__cause__ = both
            raise
        return x

    one = "ConnectError: no such host"
    group = f"unhandled errors in a TaskGroup (1 sub-exception): {one}"
    own = f"{group} (from ExceptionGroup: {group})" if is_group else f"no such host (from ExceptionGroup: {group})"
    if policy == "raise":
        with pytest.raises(AsyncUDFError, match=re.escape(own)):
            run_rows(call, [1])
    else:
        (row,) = run_rows(call, [1], returnType="int", on_error=policy)
        assert row is None if policy == "null" else row["error"]["message"] == own


def test_groups_that_were_raised_from_groups_are_told_once() -> None:
    """Each level told all of those below it again, for each of its exceptions."""
    error: Exception = ConnectError("no such host")
    for _ in range(400):
        last: Exception = LookupError("lost")
        last.__cause__ = error
        error = ExceptionGroup("two", [last, last])

    async def call(x: int) -> int:
        raise error

    (row,) = run_rows(call, [1], on_error="capture")
    assert len(row["error"]["message"]) < 1_000


async def lost(x: str) -> str:
    try:
        raise ConnectError("no such host")
    except ConnectError as error:
        raise LookupError("Connection error.") from error


def test_so_does_the_error_of_the_task() -> None:
    with pytest.raises(AsyncUDFError, match=r"LookupError: Connection error\. \(from ConnectError: no such host\)"):
        run_rows(lost, ["a"])


@pytest.mark.parametrize("redact", [True, lambda value: value[:1]])
def test_where_inputs_are_hidden_it_names_the_type_alone(redact: Any) -> None:
    (row,) = run_rows(lost, ["a"], on_error="capture", redact=redact)
    assert row["error"]["message"] == "Connection error. (from ConnectError)"


def test_what_is_wrapped_counts_for_retries() -> None:
    """Each lost connection of Qdrant's client failed its row at once."""
    attempts: list[int] = []

    async def call(x: int) -> int:
        attempts.append(x)
        try:
            raise ReadTimeout()
        except ReadTimeout as error:
            if len(attempts) < 3:
                raise WrapperError(error)  # noqa: B904 - as the client does it
        return x

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1, retry_on=http.is_retryable)
    assert run_rows(call, [1], retry=retry) == [1]
    assert not http.is_retryable(WrapperError(KeyError("name")))


class ResourceExhaustedResponse(Exception):  # noqa: N818 - Qdrant's name
    retry_after_s = 7


def test_qdrants_refusal_is_waited_for_and_uses_no_attempt() -> None:
    attempts: list[float] = []

    async def call(x: int) -> int:
        attempts.append(asyncio.get_running_loop().time())
        if len(attempts) < 4:
            raise ResourceExhaustedResponse("Rate limiting exceeded")
        return x

    assert run_rows(call, [1]) == [1]
    assert [round(later - earlier) for earlier, later in itertools.pairwise(attempts)] == [7, 7, 7]
