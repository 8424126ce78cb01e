"""The garbage collector of a worker runs by the clock; garbage does not live long, and the user's settings hold."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from asyncudf._engine.loop.collector import LOOK_GAP, collecting_by_time
from asyncudf.testing import VirtualClockLoop

THRESHOLDS = (700, 10, 10)


@pytest.fixture(autouse=True)
def own_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    gc.collect()
    yield
    gc.enable()
    gc.set_threshold(*before)


def run(main: Callable[[], Coroutine[Any, Any, Any]], worked: Callable[[], float] | None = None) -> Any:
    """Without `worked` on a thread that works all the time."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        with collecting_by_time(loop, worked or loop.time):
            return runner.run(main())


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


class Body:
    """Garbage in a cycle, with a body that may be large."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Body.alive += 1

    def __del__(self) -> None:
        Body.alive -= 1


def test_rows_that_wait_are_looked_at_once_and_not_again_and_again() -> None:
    async def main() -> tuple[int, int]:
        before = collections()
        rows = [[row] for row in range(50_000)]
        at_once = collections() - before
        await asyncio.sleep(10 * LOOK_GAP)
        assert len(rows) == 50_000
        return at_once, collections() - before

    at_once, in_all = run(main)
    assert at_once == 0
    assert in_all in (1, 2)  # another thread may have made garbage, and then a second collection tells what one takes


def test_the_pause_after_a_collection_counts_work_and_not_waiting() -> None:
    """A fortieth of its work, not of the time: a worker that mostly waits spent a twelfth of its work on them."""

    async def main() -> list[bool]:
        rows = [[row] for row in range(50_000)]
        seen = []
        for work in (LOOK_GAP, 30.0, 11.0):
            clock[0] += work
            before = collections()
            await asyncio.sleep(3600.0)
            rows += [[row] for row in range(1_000)]
            seen.append(collections() > before)
        return seen

    def collected(phase: str, _: Any) -> None:
        clock[0] += phase == "stop"  # each collection takes a second

    clock = [0.0]
    gc.callbacks.append(collected)
    try:
        assert run(main, lambda: clock[0]) == [True, False, True]
    finally:
        gc.callbacks.remove(collected)


def test_garbage_in_cycles_does_not_outlive_the_next_look() -> None:
    async def main() -> int:
        most = 0
        for _ in range(1_000):
            for _ in range(10):
                Body()
            await asyncio.sleep(LOOK_GAP / 50)
            most = max(most, Body.alive)
        return most

    assert run(main) <= 2 * THRESHOLDS[0]


def test_a_call_that_blocks_the_loop_makes_no_garbage_without_end() -> None:
    async def main() -> int:
        most = 0
        for _ in range(200_000):
            Body()
            most = max(most, Body.alive)
        return most

    assert run(main) <= 100_100  # Python 3.14 collects a few objects later


def test_a_collector_that_is_switched_off_stays_off() -> None:
    async def main() -> int:
        gc.disable()
        before = collections()
        rows = [[row] for row in range(50_000)]
        await asyncio.sleep(10 * LOOK_GAP)
        del rows
        return collections() - before

    assert run(main) == 0
    assert not gc.isenabled()


@pytest.mark.parametrize("own", [(0, 10, 10), (200_000, 5, 5)])
def test_thresholds_of_the_users_own_hold(own: tuple[int, int, int]) -> None:
    async def of_before() -> None:
        assert gc.get_threshold() == own

    async def of_the_function() -> None:
        gc.set_threshold(*own)
        await asyncio.sleep(10 * LOOK_GAP)

    gc.set_threshold(*own)
    run(of_before)
    assert gc.get_threshold() == own
    gc.set_threshold(*THRESHOLDS)
    run(of_the_function)
    assert gc.get_threshold() == own
