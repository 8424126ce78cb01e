"""All deadlines of one delay have one timer; those that run when it fires, and those that moved, have their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import RetryStrategy
from asyncudf._engine.calls.deadlines import Deadlines
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf.testing import VirtualClockLoop, run_rows

Expire = Callable[["Run", str], None]


class Run:
    """Things that run until they end or expire, if each deadline is 10 s after its start."""

    def __init__(self, expire: Expire = lambda run, one: None) -> None:
        self.running: dict[str, float] = {}
        self.came: list[tuple[float, str]] = []
        self.timers = 0
        self._on_expiry = expire

    def start(self, one: str) -> None:
        when = self.deadlines.start(self.loop.time())
        assert when is not None
        self.running[one] = when

    def end(self, one: str) -> None:
        self.running.pop(one, None)
        self.deadlines.stop(one)

    def move(self, one: str, when: float) -> None:
        self.running[one] = when
        self.deadlines.move(one, when)

    def _expire(self, one: str) -> None:
        self.came.append((self.loop.time(), one))
        self.end(one)
        self._on_expiry(self, one)

    async def of(self, program: list[tuple[float, Callable[[Run], Any]]]) -> None:
        self.loop = asyncio.get_running_loop()
        self.deadlines = Deadlines[str](self.loop, self.loop.time, 10.0, lambda: [*self.running.items()], self._expire)
        call_at = self.loop.call_at

        def counted(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            self.timers += 1
            return call_at(*args, **kwargs)

        for when, step in program:
            call_at(when, step, self)
        self.loop.call_at = counted  # type: ignore[method-assign]
        await asyncio.sleep(100)
        self.timers -= 1  # that of the sleep
        self.deadlines.close()


def watched(*program: tuple[float, Callable[[Run], Any]], expire: Expire = lambda run, one: None) -> Run:
    run = Run(expire)
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(run.of([*program]))
    return run


def test_those_that_run_expire_at_their_times_and_those_that_moved_at_their_new_ones() -> None:
    run = watched(
        (0, lambda run: run.start("a")),
        (1, lambda run: run.start("b")),
        (2, lambda run: run.start("c")),
        (3, lambda run: run.start("d")),
        (4, lambda run: run.move("a", 12.5)),
        (4, lambda run: run.move("b", 6.0)),
        (4, lambda run: run.move("d", 40.0)),
        (5, lambda run: run.end("d")),
        (11, lambda run: run.start("e")),
    )
    assert run.came == [(6.0, "b"), (12.0, "c"), (12.5, "a"), (21.0, "e")]


def test_what_ends_in_time_has_no_timer_but_the_one_that_all_share() -> None:
    program: list[tuple[float, Callable[[Run], Any]]] = []
    for number in range(900):  # one at a time, for 90 s
        program.append((number / 10, lambda run, one=str(number): run.start(one)))  # type: ignore[misc]
        program.append((number / 10 + 0.05, lambda run, one=str(number): run.end(one)))  # type: ignore[misc]
    run = watched(*program)
    assert not run.came
    assert run.timers <= 9 + 9  # each 10 s one, and one for what runs when that fires


def test_those_that_are_due_together_expire_in_their_order() -> None:
    run = watched(*((0.0, lambda run, one=one: run.start(one)) for one in "abcdefgh"))  # type: ignore[misc]
    assert run.came == [(10.0, one) for one in "abcdefgh"]


def test_one_that_expires_may_end_others_that_are_due_and_start_anew() -> None:
    def expire(run: Run, one: str) -> None:
        run.end("b")
        if len(run.came) == 1:
            run.move(one, 25.0)

    run = watched((0, lambda run: run.start("a")), (0, lambda run: run.start("b")), expire=expire)
    assert run.came == [(10.0, "a"), (25.0, "a")]


def test_the_clock_decides_where_the_time_of_the_loop_is_coarser() -> None:
    lag, came = 0.0, list[float]()

    async def main() -> None:
        nonlocal lag
        loop = asyncio.get_running_loop()

        def clock() -> float:
            nonlocal lag
            lag = max(0.0, lag - 0.0001)  # time passes, less than the loop can tell
            return loop.time() - lag

        deadlines = Deadlines[str](loop, clock, 10.0, lambda: [("a", 10.0)], lambda one: came.append(loop.time() - lag))
        deadlines.start(0.0)
        lag = 0.0005
        await asyncio.sleep(20)

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    assert came == [10.0]


def test_limits_of_attempts_cost_nothing_for_rows_that_have_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times a second all rows behind one in back-off were looked at: a third of the time of 300,000 rows."""
    looked_at, rows_under_way = 0, AsyncWaitOperator.rows_under_way

    def counted(operator: AsyncWaitOperator) -> list[Any]:
        nonlocal looked_at
        looked_at += len(operator._queue)
        return rows_under_way(operator)

    monkeypatch.setattr(AsyncWaitOperator, "rows_under_way", counted)

    async def call(x: int) -> int:
        if x == 0:
            raise ConnectionError
        return await asyncio.sleep(0.02, x)

    retry = RetryStrategy.fixed_delay(attempts=2, delay=40)
    options: Any = {"retry": retry, "on_error": "null", "attempt_timeout": 0.1}
    assert run_rows(call, range(2_000), timeout=180, **options) == [None, *range(1, 2_000)]
    assert looked_at == 0
