"""The beginning of a chain: how its rows are pushed on, and what becomes of an error behind a timer."""

from __future__ import annotations

import asyncio

from asyncudf import WatermarkStrategy
from asyncudf._operators.operator import BURST, SourceOperator
from asyncudf._operators.outputs import UNLIMITED
from asyncudf._operators.synchronous import WatermarkOperator
from asyncudf._policies.watermarks import WatermarkGenerator
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.testing import VirtualClockLoop
from tests.kit.outputs import Taken


def test_a_source_pushes_nothing_where_there_is_no_room_and_goes_on_when_there_is() -> None:
    loop, output = VirtualClockLoop(), Taken(available=0)
    rows = [StreamRecord("a"), StreamRecord("b")]

    async def main() -> None:
        source = SourceOperator(output, loop, lambda: None, None)
        async with source.running():
            source.feed(rows)
            source.end_of_input()
            await asyncio.sleep(1)
            assert output.all == []
            output.available = 1
            source.resume()

    loop.run_until_complete(main())
    loop.close()
    assert output.all == [*rows, Watermark.MAX]


def test_a_source_pushes_one_burst_in_a_turn_of_the_loop_however_often_it_is_fed() -> None:
    loop, output = VirtualClockLoop(), Taken(available=UNLIMITED)
    rows, pushed = [StreamRecord(n) for n in range(5 * BURST)], []

    async def main() -> None:
        source = SourceOperator(output, loop, lambda: None, None)
        async with source.running():
            for _ in range(4):
                source.feed(rows)
            while len(output.all) < 4 * len(rows):
                before = len(output.all)
                source.insert(LatencyMarker(0, "source", 0))
                await asyncio.sleep(0)
                pushed.append(len(output.all) - before)
            source.end_of_input()

    loop.run_until_complete(main())
    loop.close()
    assert set(pushed[:19]) == {BURST}


def test_an_error_behind_the_timer_of_an_idle_input_ends_the_chain() -> None:
    """It was only logged, and the operators behind never learned that the input is idle."""

    class Fails(Taken):
        def emit_watermark_status(self, status: WatermarkStatus) -> None:
            raise ZeroDivisionError(status)

    loop, errors = VirtualClockLoop(), list[BaseException]()
    generator = WatermarkGenerator.of(WatermarkStrategy.for_monotonous_timestamps("n"))
    operator = WatermarkOperator(
        Fails(), generator, lambda record: record.value, lambda record: None, lambda record: record, 5.0, loop,
        errors.append,
    )  # fmt: skip

    async def main() -> None:
        async with operator.running():
            await asyncio.sleep(10.0)

    loop.run_until_complete(main())
    loop.close()
    assert [type(error) for error in errors] == [ZeroDivisionError]
