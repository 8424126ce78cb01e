"""Synchronous functions in threads: those that hang starve nobody, and do not keep the process from its end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from asyncudf import AsyncUDFError, RetryStrategy, async_pandas_udf
from asyncudf._engine.loop import event_loops
from asyncudf._engine.loop.event_loops import MOST_HUNG, SPARE, CallThreads
from asyncudf.testing import run_rows
from tests.kit.clocks import HandClock
from tests.kit.errors import task_fails
from tests.kit.threads import call_threads

CALLS = 3
PATIENCE = 20.0  # seconds for what is bound to happen


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What hanging threads wait for; nobody waits for them."""
    monkeypatch.setattr(event_loops, "GRACE", 0.1)
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def pool() -> Iterator[CallThreads]:
    made = CallThreads(CALLS)
    yield made
    made.shutdown(cancel_futures=True)


def hang(pool: CallThreads, release: threading.Event) -> Future[Any]:
    """A call that a thread is at."""
    started = threading.Event()

    def call() -> None:
        started.set()
        release.wait()

    future = pool.submit(call)
    assert started.wait(PATIENCE)
    return future


def test_a_thread_whose_call_was_given_up_is_replaced(pool: CallThreads, release: threading.Event) -> None:
    busy = [hang(pool, release) for _ in range(CALLS + SPARE)]
    waiting = pool.submit(int, "5")
    assert not waiting.done(), "all threads that may be are busy"
    assert not busy[0].cancel()
    assert waiting.result(PATIENCE) == 5
    assert pool.submit(int, "6").result(PATIENCE) == 6


def test_too_many_hanging_threads_are_refused_until_some_come_back(pool: CallThreads, release: threading.Event) -> None:
    first = threading.Event()
    hanging = [hang(pool, first), *[hang(pool, release) for _ in range(MOST_HUNG * CALLS - 1)]]
    for future in hanging:
        future.cancel()
    with task_fails(match=r"30 threads, 10 for each call at a time, still work for calls"):
        pool.submit(int)
    first.set()
    hanging[0].result(PATIENCE)
    assert pool.submit(int, "5").result(PATIENCE) == 5


def test_threads_are_made_when_they_are_needed(pool: CallThreads, release: threading.Event) -> None:
    before = set(call_threads())
    for _ in range(10):
        assert pool.submit(int, "5").result(PATIENCE) == 5
    assert len(set(call_threads()) - before) == 1
    hang(pool, release)
    hang(pool, release)
    assert len(set(call_threads()) - before) == 2


def test_no_row_times_out_without_having_run(release: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    clock = HandClock.of_the_kit(monkeypatch)

    def call(x: int) -> int:
        ran.append(x)
        if x < 0:
            clock.pass_time(1.0)
            release.wait()
        return x

    hanging, rows = list(range(-9, 0)), list(range(20))
    got = run_rows(call, hanging + rows, clock="real", capacity=1, timeout=0.3, on_error="null")
    assert ran == hanging + rows
    assert got == [None] * 9 + rows


def test_what_a_hanging_call_ends_with_does_not_outlive_its_task(release: threading.Event) -> None:
    """The sockets of late answers stayed open in a server of Sail, which runs many tasks in one process."""
    answers: list[weakref.ref[BaseException]] = []

    class LateError(Exception):
        pass

    def call(x: int) -> int:
        release.wait()
        answer = LateError()
        answers.append(weakref.ref(answer))
        raise answer

    assert run_rows(call, range(3), clock="real", capacity=3, timeout=0.1, on_error="null") == [None] * 3
    threads = call_threads()
    release.set()
    for thread in threads:
        thread.join(PATIENCE)
    gc.collect()
    assert [answer() for answer in answers] == [None] * 3


@pytest.mark.parametrize("on_error", ["raise", "null", "capture", "dead_letter"])
def test_too_many_hanging_threads_fail_the_task_under_every_policy(on_error: Any, release: threading.Event) -> None:
    ran: list[int] = []

    @async_pandas_udf("int")
    def call(x: int) -> int:
        ran.append(x)
        release.wait()
        return x

    retry = RetryStrategy.fixed_delay(20, 0.001)
    options: dict[str, Any] = {"capacity": 1, "attempt_timeout": 0.02, "retry": retry, "on_error": on_error}
    with pytest.raises(AsyncUDFError, match=r"call failed in attempt \d+, .*: 10 threads, 10 for each call at a time"):
        run_rows(call, range(3), clock="real", **options)
    assert len(ran) == 10


def test_calls_that_send_their_work_to_a_thread_are_not_starved_either(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    clock = HandClock.of_the_kit(monkeypatch)
    all_hang = threading.Barrier(5, action=lambda: clock.pass_time(1.0))

    def compute(x: int) -> int:
        ran.append(x)
        if x < 0:
            all_hang.wait()
            release.wait()
        return x

    async def call(x: int) -> int:
        return await asyncio.to_thread(compute, x)

    hanging, rows = list(range(-45, 0)), list(range(5))
    got = run_rows(call, hanging + rows, clock="real", capacity=5, timeout=0.3, on_error="null")
    assert sorted(ran) == hanging + rows
    assert got == [None] * 45 + rows


def test_a_hanging_thread_does_not_keep_the_process_from_its_end() -> None:
    program = """
        import time
        from asyncudf._engine.loop import event_loops
        from asyncudf.testing import run_rows

        event_loops.GRACE = 0.1

        def call(x: int) -> int:
            time.sleep(1000)
            return x

        print(run_rows(call, [1], clock="real", timeout=0.1, on_error="null"))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("[None]\n", "", 0)
