"""What outputs do with all that they are given, when batches leave, and what ends an operator's output."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import OutputTag, RuntimeContext, WatermarkStrategy, async_pandas_udf
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf._engine.operators.outputs import (
    BroadcastingOutput,
    CopyingBroadcastingOutput,
    OperatorOutput,
    RecordWriterOutput,
    StreamOutput,
)
from asyncudf._engine.operators.synchronous import WatermarkOperator
from asyncudf._functions.watermarks import WatermarkGenerator
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.testing import VirtualClockLoop
from tests.kit.outputs import Taken

TAG, OTHER = OutputTag("rejects", "int"), OutputTag("others", "int")
MARKERS: list[Any] = [Watermark(5), WatermarkStatus.IDLE, LatencyMarker(1.0, "source", 0)]


def emit_all(output: StreamOutput) -> None:
    """Each kind of element but records."""
    watermark, status, marker = MARKERS
    output.emit_watermark(watermark)
    output.emit_watermark_status(status)
    output.emit_latency_marker(marker)


PASSING_ON: dict[str, Callable[[Taken], StreamOutput]] = {
    "plain": OperatorOutput,
    "splitting": lambda inner: OperatorOutput(inner, splits=True),
    "broadcasting": lambda inner: BroadcastingOutput([inner]),
    "copying": lambda inner: CopyingBroadcastingOutput([inner]),
}


@pytest.mark.parametrize("make", PASSING_ON.values(), ids=PASSING_ON)
def test_what_passes_on_passes_on_everything_in_its_order(make: Callable[[Taken], StreamOutput]) -> None:
    inner = Taken()
    output = make(inner)
    assert output.get_watermark_gauge().timestamp is None
    output.collect(StreamRecord("a", 3))
    emit_all(output)
    output.collect(StreamRecord("b"))
    output.close()
    assert inner.all == [StreamRecord("a", 3), *MARKERS, StreamRecord("b")]
    assert (output.available, inner.closed, output.get_watermark_gauge().timestamp) == (10, 1, 5)


def test_broadcasting_gives_everybody_the_same_and_has_the_room_of_the_fullest() -> None:
    one, two, rejects = Taken(available=5), Taken(available=3), Taken(TAG)
    output, value = BroadcastingOutput([one, two, rejects]), [1]
    output.collect(StreamRecord(value))
    output.collect_tagged(TAG, StreamRecord(2))
    output.collect_tagged(OTHER, StreamRecord(3))
    emit_all(output)
    assert one.all == two.all == [StreamRecord([1]), *MARKERS]
    assert one.all[0].value is two.all[0].value is value
    assert (rejects.all, output.available) == ([(TAG, StreamRecord(2)), *MARKERS], 3)


def test_copying_broadcasting_copies_for_all_but_the_last() -> None:
    one, two = Taken(), Taken()
    value = {"xs": [1]}
    CopyingBroadcastingOutput([one, two]).collect(StreamRecord(value, 4, "origin"))
    copied = one.all[0]
    assert copied == StreamRecord(value, 4)
    assert copied.origin == "origin"
    assert copied.value is not value, "a copy"
    assert copied.value["xs"] is value["xs"], "a shallow one"
    assert two.all[0].value is value


def written(work: Callable[[RecordWriterOutput], Any], rows: int, **options: Any) -> list[tuple[float, list[Any]]]:
    """When a writer of so many rows writes which batches."""
    loop, batches = VirtualClockLoop(), list[tuple[float, list[Any]]]()
    output = RecordWriterOutput(
        lambda values, origins: batches.append((loop.time(), [*values])), rows, 0.5, loop, **options
    )
    loop.run_until_complete(work(output))
    loop.close()
    return batches


def test_a_record_writer_writes_full_batches_then_after_its_linger_then_the_rest() -> None:
    async def work(output: RecordWriterOutput) -> None:
        for number in range(3):
            output.collect(StreamRecord(number))
        await asyncio.sleep(1)
        output.collect(StreamRecord(3))
        output.close()

    assert written(work, 2) == [(0.0, [0, 1]), (0.5, [2]), (1.0, [3])]


@pytest.mark.parametrize("together", [False, True])
def test_the_timer_of_a_batch_that_was_full_does_not_cut_the_next_one_short(together: bool) -> None:
    async def work(output: RecordWriterOutput) -> None:
        output.collect(StreamRecord(0))
        if together:
            output.collect_results([StreamRecord(None)], [1])
        else:
            output.collect(StreamRecord(1))
        await asyncio.sleep(0.3)
        output.collect(StreamRecord(2))
        await asyncio.sleep(1)

    assert written(work, 2) == [(0.0, [0, 1]), (0.8, [2])]


def test_a_batch_that_weighs_too_much_is_written_though_it_has_few_rows() -> None:
    async def work(output: RecordWriterOutput) -> None:
        for text in ("1234", "123456", "1"):
            output.collect(StreamRecord(text))
        output.collect_results([("", None, None)] * 2, ["12345678", "9"])
        output.collect_results([("", None, None)] * 5, list("abcde"))
        await asyncio.sleep(1)

    async def together(output: RecordWriterOutput) -> None:
        output.collect_results([("", None, None)] * 7, ["12", "34", "56", "78", "1234567", "", "9"])
        output.close()

    def texts(work: Any, rows: int, max_bytes: int) -> list[list[str]]:
        weigh = lambda values, _: sum(map(len, values))  # noqa: E731
        return [batch for _, batch in written(work, rows, weigh=weigh, max_bytes=max_bytes)]

    assert texts(work, 4, 10) == [["1234", "123456"], ["1", "12345678", "9"], list("abcd"), ["e"]]
    assert texts(together, 100, 6) == [["12", "34", "56"], ["78", "1234567"], ["", "9"]]


@pytest.mark.parametrize("from_upstream", [False, True])
def test_an_operator_ends_its_output_with_one_last_watermark(from_upstream: bool) -> None:
    loop, taken = VirtualClockLoop(), Taken()

    async def echo(x: int) -> int:
        return x

    async def main() -> None:
        udf = async_pandas_udf(echo)
        operator = AsyncWaitOperator(
            udf.spec, udf.options, taken, RuntimeContext("echo", loop.time), loop=loop, rng=random.Random(0)
        )
        async with operator.running():
            operator.process(StreamRecord((1,)))
            if from_upstream:
                operator.process_marker(Watermark.MAX)
            operator.end_of_input()

    loop.run_until_complete(main())
    loop.close()
    assert taken.all == [StreamRecord(1), Watermark.MAX]
    assert taken.closed == 1


def test_an_error_behind_the_timer_of_an_idle_input_ends_the_chain() -> None:
    """It was only logged, and the operators behind never learned that the input is idle."""

    class Fails(Taken):
        def emit_watermark_status(self, status: WatermarkStatus) -> None:
            raise ZeroDivisionError(status)

    loop, errors = VirtualClockLoop(), list[BaseException]()
    generator = WatermarkGenerator(WatermarkStrategy.for_monotonous_timestamps("n"))
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
