"""Coroutines that swallow their cancellation run on beside the calls: at most ten for each call at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncUDFError, FatalError, ResultFuture, RetryStrategy
from asyncudf.testing import run_rows
from tests.kit.engines import Engine
from tests.kit.functions import KINDS, of_kind


class Alive:
    """Counts the coroutines that run."""

    now = most = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1

    async def hang(self, _: Any = None) -> None:
        """A service that hangs, and a client that tries again whatever happens."""
        with self.counted():
            while True:
                try:
                    await asyncio.sleep(3600)
                except BaseException:
                    await asyncio.sleep(60)


def runs_on(alive: Alive) -> Any:
    """Completes its rows at once."""

    class call(AsyncFunction):  # noqa: N801
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            result_future.complete([value])
            await alive.hang()

    return call()


DEADLINE = {"timeout": 1}
ATTEMPTS = {"timeout": 1000, "attempt_timeout": 1, "retry": RetryStrategy.fixed_delay(attempts=5, delay=1)}


@pytest.mark.parametrize("capacity", [1, 20])
@pytest.mark.parametrize("options", [DEADLINE, ATTEMPTS], ids=["deadline", "attempts"])
@pytest.mark.parametrize("kind", [*KINDS, "one that runs on"])
def test_the_task_fails_before_more_than_ten_for_each_call_run_on(
    kind: str, options: dict[str, Any], capacity: int
) -> None:
    """5,000 coroutines were alive with capacity=4."""
    alive = Alive()
    function = runs_on(alive) if kind == "one that runs on" else of_kind(kind, alive.hang)
    more = {"batch_size": 1} if kind == "vectorized" else {}
    with pytest.raises(FatalError, match=rf"^{10 * capacity} coroutines of call, 10 for each call .*CancelledError"):
        run_rows(
            function, range(14 * capacity), returnType="int", capacity=capacity, on_error="null", **options, **more
        )
    assert 10 * capacity <= alive.most <= 11 * capacity


def test_coroutines_that_end_late_count_no_more() -> None:
    """Each takes a few times its timeout to clean up, and the task goes on."""
    alive = Alive()

    async def cleans_up(x: int) -> int:
        with alive.counted():
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(8.5)
        return x

    assert run_rows(cleans_up, range(300), capacity=4, timeout=1, on_error="null") == [None] * 300
    assert alive.most == 4 * 10


def test_those_that_obey_are_no_matter_however_many_time_out_at_once() -> None:
    async def obeys(x: int) -> int:
        await asyncio.sleep(3600)
        return x

    assert run_rows(obeys, range(3000), capacity=100, timeout=1, on_error="null") == [None] * 3000
    assert run_rows(obeys, range(100), capacity=1, timeout=0.001, on_error="null") == [None] * 100


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_one_that_goes_on_after_the_end_of_the_task_has_no_row_any_more(ends: str) -> None:
    """It was counted as given up and as done, and its result left behind the error of the task."""

    async def swallows(x: int) -> int:
        if x == 1 and ends == "fails":
            raise ValueError
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return x

    engine = Engine(swallows, capacity=3)
    engine.feed([0, 1])
    with pytest.raises(AsyncUDFError) if ends == "fails" else contextlib.nullcontext():
        engine.run(until=None if ends == "fails" else 1.0)
    assert engine.output == []
    (function,) = engine.counted.values()
    counts = {name: function["metrics"][name] for name in ("calls", "abandoned", "rows")}
    assert counts == {"calls": 2, "abandoned": 2, "rows": 0}
