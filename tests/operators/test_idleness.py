"""The idle time of an input: one timer, whatever the number of rows, whose errors end the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncudf import WatermarkStrategy
from asyncudf._operators.synchronous import WatermarkOperator
from asyncudf._policies.watermarks import WatermarkGenerator
from asyncudf.queues import StreamRecord, WatermarkStatus
from asyncudf.testing import VirtualClockLoop
from tests.kit.outputs import Taken

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


class TimersLoop(VirtualClockLoop):
    """Counts the timers that are set."""

    timers = 0

    def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **kwargs)


class Timed(Taken):
    """Notes when each status came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.all.append((self.loop.time(), status))

    @property
    def statuses(self) -> list[Any]:
        return [one for one in self.all if isinstance(one, tuple) and not isinstance(one, StreamRecord)]


def run(
    rows_at: list[float],
    until: float,
    output_of: Callable[[asyncio.AbstractEventLoop], Timed] = Timed,
) -> tuple[Timed, list[BaseException], TimersLoop]:
    """Rows that come at these seconds, with an idle time of 5 s; the output, the errors, and the loop."""
    loop, errors = TimersLoop(), list[BaseException]()
    output = output_of(loop)
    generator = WatermarkGenerator.of(WatermarkStrategy.for_monotonous_timestamps("n"))
    operator = WatermarkOperator(
        output, generator, lambda record: record.value, lambda record: None, lambda record: record, 5.0, loop,
        errors.append,
    )  # fmt: skip

    async def main() -> None:
        async with operator.running():
            for when in rows_at:
                await asyncio.sleep(when - loop.time())
                operator.process(StreamRecord(1))
            await asyncio.sleep(until - loop.time())

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return output, errors, loop


def test_an_input_is_idle_five_seconds_after_its_last_row_until_the_next() -> None:
    output, _, _ = run([1.0, 4.0, 8.9, 20.0, 21.0], 40.0)
    assert output.statuses == [(13.9, IDLE), (20.0, ACTIVE), (26.0, IDLE)]


def test_an_input_without_rows_is_idle_too() -> None:
    output, _, _ = run([], 40.0)
    assert output.statuses == [(5.0, IDLE)]


def test_rows_set_no_timer() -> None:
    """A timer was set and cancelled for each row."""
    at_once = [1.0] * 1000
    assert run([*at_once, 100.0, *[100.0] * 1000], 200.0)[2].timers < 20


def test_an_error_behind_the_timer_ends_the_chain() -> None:
    """It was only logged, and the operators behind never learned that the input is idle."""

    class Fails(Timed):
        def emit_watermark_status(self, status: WatermarkStatus) -> None:
            raise ZeroDivisionError(status)

    _, errors, _ = run([1.0], 10.0, Fails)
    assert [type(error) for error in errors] == [ZeroDivisionError]
