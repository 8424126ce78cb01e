"""A deadline may move: all come in their order, each at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncudf._engine.calls.deadlines import Deadlines
from asyncudf.testing import VirtualClockLoop


def watched(program: Callable[[Deadlines[str]], None], *, until: float = 100.0) -> list[tuple[float, str]]:
    """What expires, and when, if each deadline is 10 s after its start."""
    came: list[tuple[float, str]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines[str](loop, loop.time, 10.0, lambda one: came.append((loop.time(), one)))
        program(deadlines)
        await asyncio.sleep(until)
        deadlines.close()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    return came


def test_deadlines_come_in_their_order_those_that_moved_at_their_new_times() -> None:
    def program(deadlines: Deadlines[str]) -> None:
        for start, one in enumerate("abcd"):
            deadlines.start(one, float(start))
        deadlines.move("a", 12.5)
        deadlines.move("b", 5.0)
        deadlines.move("b", 6.0)  # later than the timer was set for
        deadlines.move("d", 40.0)
        assert deadlines.stop("d") == 40.0
        assert deadlines.stop("d") is None

    assert watched(program) == [(6.0, "b"), (12.0, "c"), (12.5, "a")]


def test_one_that_expires_may_stop_others_that_are_due_and_start_anew() -> None:
    came: list[tuple[float, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def expire(one: str) -> None:
            came.append((loop.time(), one))
            deadlines.stop("b")
            if len(came) == 1:
                deadlines.move(one, 25.0)

        deadlines = Deadlines[str](loop, loop.time, 10.0, expire)
        deadlines.start("a", 0.0)
        deadlines.start("b", 0.0)
        await asyncio.sleep(100)

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    assert came == [(10.0, "a"), (25.0, "a")]
