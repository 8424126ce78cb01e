"""Too many open files are no row's fault: once no attempt is left the task fails, and says what to change."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from aiohttp import web

from asyncudf import FatalError, RetryStrategy, http
from asyncudf.testing import run_rows
from tests.kit import task_limits
from tests.kit.http_services import serving

SAID = r"ulimit -n: .*holds a socket: lower capacity=30, or raise the limit; python -m asyncudf doctor --capacity 30"


def too_many(number: int = errno.EMFILE) -> OSError:
    return OSError(number, os.strerror(number))


def caused() -> Exception:
    """As aiohttp and httpx raise it."""
    error = ConnectionError("Cannot connect to host 127.0.0.1:80 ssl:default")
    error.__cause__ = too_many()
    return error


def several() -> Exception:
    """As asyncio raises it for a host with several addresses."""
    return OSError(f"Multiple exceptions: {too_many()}, {too_many()}")


def grouped() -> Exception:
    return ExceptionGroup("two requests", [KeyError("x"), caused()])


ERRORS = [too_many, lambda: too_many(errno.ENFILE), caused, several, grouped]


@pytest.mark.parametrize("policy", ["raise", "null", "capture"])
@pytest.mark.parametrize("error", ERRORS, ids=["process", "machine", "cause", "addresses", "group"])
def test_the_task_fails_under_every_policy_and_names_capacity_limit_and_doctor(error: Any, policy: str) -> None:
    """814 of 1,200 healthy rows were NULL, and nothing said so."""
    task_limits.fails_the_task(error, policy, SAID)


def test_one_that_a_client_raises_in_its_place_counts_too() -> None:
    async def call(x: int) -> int:
        try:
            raise too_many()
        except OSError as error:
            raise LookupError(f"Error {error.errno} connecting to localhost") from None  # as redis does

    with pytest.raises(FatalError, match=SAID):
        run_rows(call, [1], on_error="null", capacity=30)


@pytest.mark.parametrize("retry_on", [OSError, http.is_retryable])
def test_it_is_tried_again_as_long_as_attempts_are_left(retry_on: Any) -> None:
    times: list[float] = []

    async def call(x: int) -> int:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3:
            raise too_many()
        return x

    assert run_rows(call, [1], retry=RetryStrategy.fixed_delay(attempts=3, delay=1, retry_on=retry_on)) == [1]
    times[:] = []
    with pytest.raises(FatalError, match=rf"in attempt 2, .*{SAID}"):
        run_rows(call, [1], retry=RetryStrategy.fixed_delay(2, 1, retry_on=retry_on), on_error="null", capacity=30)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOSPC, errno.ECONNREFUSED])
def test_another_error_of_the_system_is_its_rows(number: int) -> None:
    async def call(x: int) -> int:
        raise OSError(number, "Too many open files")

    assert run_rows(call, [1], returnType="int", on_error="null") == [None]


def test_it_is_kept_in_no_store_and_opens_no_breaker() -> None:
    task_limits.is_kept_nowhere(caused)


def test_adaptive_capacity_goes_down() -> None:
    """In a process that may open twenty files; without it 22,650 attempts failed."""
    task_limits.adaptive_capacity_goes_down(too_many)


@pytest.mark.services
@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of open files")
def test_more_calls_than_sockets(tmp_path: Any) -> None:
    """In a process of its own, whose limit is lower than its capacity."""
    program = """
        import asyncio, resource, sys
        from asyncudf import FatalError, http
        from asyncudf.testing import run_rows

        async def get(x, session):
            async with session.get("/") as response:
                return len(await response.text())

        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            run_rows(get, range(300), returnType="int", on_error="null", clock="real", capacity=200, timeout=60,
                     resources={"session": http.session(sys.argv[1])})
        except FatalError as error:
            print(error)
    """

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)  # until the other process is gone
        return web.Response(text="ok")

    with serving(slow, backlog=1000) as url:
        command = [sys.executable, "-c", textwrap.dedent(program), url]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "ulimit -n: 100" in done.stdout, done.stdout + done.stderr
    assert "capacity=200" in done.stdout
