"""What each output does with what it is given; the classes of the table in the semantics."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncudf import Collector, OutputTag, ResultError, RuntimeContext, async_pandas_udf
from asyncudf._functions.side_outputs import SideRecord
from asyncudf._operators.async_wait import AsyncWaitOperator
from asyncudf._operators.outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    Output,
    RecordWriterOutput,
    ReportingOutput,
    SplittingOutput,
    TimestampedCollector,
)
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.testing import VirtualClockLoop
from tests.kit.outputs import Taken

TAG, OTHER = OutputTag("rejects", "int"), OutputTag("others", "int")
MARKERS = [Watermark(5), WatermarkStatus.IDLE, LatencyMarker(1.0, "source", 0)]


class Following:
    """The next operator, as an output sees it."""

    available = 7

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.ended = False

    def process(self, record: Any) -> None:
        self.all.append(record)

    process_marker = process

    def end_of_input(self) -> None:
        self.ended = True


def emit_all(output: Output) -> None:
    """Each kind of element but records."""
    output.emit_watermark(MARKERS[0])  # type: ignore[arg-type]
    output.emit_watermark_status(MARKERS[1])  # type: ignore[arg-type]
    output.emit_latency_marker(MARKERS[2])  # type: ignore[arg-type]


def passing_on(make: str, inner: Taken) -> Output:
    if make == "reporting":
        return ReportingOutput(inner)
    if make == "splitting":
        return SplittingOutput(inner)
    return (BroadcastingOutput if make == "broadcasting" else CopyingBroadcastingOutput)([inner])


@pytest.mark.parametrize("make", ["reporting", "splitting", "broadcasting", "copying"])
def test_what_passes_on_passes_on_everything_in_its_order(make: str) -> None:
    inner = Taken()
    output = passing_on(make, inner)
    output.collect(StreamRecord("a", 3))
    emit_all(output)
    output.collect(StreamRecord("b"))
    output.close()
    assert inner.all == [StreamRecord("a", 3), *MARKERS, StreamRecord("b")]
    assert (output.available, inner.closed) == (10, 1)
    assert output.get_watermark_gauge().timestamp == 5


def test_a_gauge_tells_the_last_watermark_and_none_before_the_first() -> None:
    output = ChainingOutput(Following(), lambda record: record)
    assert output.get_watermark_gauge().timestamp is None
    output.emit_watermark(Watermark(3))
    output.emit_watermark(Watermark(9))
    assert output.get_watermark_gauge().timestamp == 9


def test_reporting_tells_of_latency_markers_as_they_pass() -> None:
    passed: list[LatencyMarker] = []
    inner = Taken()
    output = ReportingOutput(inner, lambda marker: passed.append(marker) or inner.all.append("told"))  # type: ignore[func-returns-value]
    output.collect(StreamRecord(1))
    emit_all(output)
    assert passed == [MARKERS[2]]
    assert inner.all == [StreamRecord(1), *MARKERS[:2], "told", MARKERS[2]]


def test_splitting_sends_what_was_written_to_a_tag_there() -> None:
    main, rejects = Taken(), Taken(TAG)
    output = SplittingOutput(BroadcastingOutput([main, rejects]))
    output.collect(StreamRecord("kept", 1))
    output.collect(StreamRecord(SideRecord(TAG, "rejected"), 1))
    assert main.all == [StreamRecord("kept", 1)]
    assert rejects.all == [(TAG, StreamRecord("rejected", 1))]


def test_an_output_with_a_tag_takes_only_that_tags_records_and_one_without_only_the_main_ones() -> None:
    main, rejects, others = Taken(), Taken(TAG), Taken(OTHER)
    output = BroadcastingOutput([main, rejects, others])
    output.collect(StreamRecord(1))
    output.collect_tagged(TAG, StreamRecord(2))
    output.collect_tagged(OutputTag("nobody", "int"), StreamRecord(3))
    assert main.all == [StreamRecord(1)]
    assert rejects.all == [(TAG, StreamRecord(2))]
    assert others.all == []


def test_broadcasting_gives_everybody_the_same_and_has_the_room_of_the_fullest() -> None:
    one, two = Taken(available=5), Taken(available=3)
    output = BroadcastingOutput([one, two])
    value = [1]
    output.collect(StreamRecord(value))
    emit_all(output)
    assert one.all == two.all == [StreamRecord([1]), *MARKERS]
    assert one.all[0].value is value
    assert two.all[0].value is value
    assert output.available == 3


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


@pytest.mark.parametrize("output_class", [ChainingOutput, CopyingChainingOutput])
def test_chaining_shows_the_next_operator_its_projection_of_a_record(output_class: Any) -> None:
    following = Following()
    output = output_class(following, lambda record: StreamRecord(record.value["xs"], record.timestamp, record))
    record = StreamRecord({"xs": [1], "y": 2}, 4)
    output.collect(record)
    emit_all(output)
    output.close()
    seen, *markers = following.all
    assert (seen, seen.origin, markers) == (StreamRecord([1], 4), record, MARKERS)
    assert (seen.value is record.value["xs"]) == (output_class is ChainingOutput), "only the copying one copies, deeply"
    assert following.ended
    assert output.available == 7


def test_a_timestamped_collector_puts_the_input_rows_timestamp_on_each_value() -> None:
    taken = Taken()

    def fit(value: Any) -> Any:
        if value == "bad":
            raise ResultError("does not fit")
        return value

    collector: Collector = TimestampedCollector(taken, fit)
    collector.timestamp = 17  # type: ignore[attr-defined]
    collector.collect("a")
    collector.timestamp = None  # type: ignore[attr-defined]
    collector.collect("b")
    assert taken.all == [StreamRecord("a", 17), StreamRecord("b", None)]
    with pytest.raises(ResultError, match="does not fit"):
        collector.collect("bad")


def test_a_record_writer_writes_full_batches_then_after_its_linger_then_the_rest() -> None:
    loop = VirtualClockLoop()
    written: list[tuple[float, list[Any], list[Any]]] = []

    async def main() -> None:
        output = RecordWriterOutput(lambda *batch: written.append((loop.time(), *batch)), 2, 0.5, loop)  # type: ignore[arg-type]
        for number in range(3):
            output.collect(StreamRecord(number, None, f"origin {number}"))
        await asyncio.sleep(1)
        output.collect(StreamRecord(3, None, "origin 3"))
        output.close()

    loop.run_until_complete(main())
    loop.close()
    assert written == [
        (0.0, [0, 1], ["origin 0", "origin 1"]),
        (0.5, [2], ["origin 2"]),
        (1.0, [3], ["origin 3"]),
    ]


@pytest.mark.parametrize("together", [False, True])
def test_the_timer_of_a_batch_that_was_full_does_not_cut_the_next_one_short(together: bool) -> None:
    loop = VirtualClockLoop()
    written: list[tuple[float, list[Any]]] = []

    async def main() -> None:
        output = RecordWriterOutput(lambda values, _: written.append((loop.time(), [*values])), 2, 0.5, loop)
        if together:
            output.collect(StreamRecord(0))
            output.collect_results([StreamRecord(None)], [1])
        else:
            output.collect(StreamRecord(0))
            output.collect(StreamRecord(1))
        await asyncio.sleep(0.3)
        output.collect(StreamRecord(2))
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    assert written == [(0.0, [0, 1]), (0.8, [2])]


def writer(written: list[Any], rows: int, loop: Any, max_bytes: int) -> RecordWriterOutput:
    def write(values: Any, origins: Any) -> None:
        written.append(values)

    return RecordWriterOutput(
        write, rows, 0.5, loop, weigh=lambda values, _: sum(map(len, values)), max_bytes=max_bytes
    )


def test_a_record_writer_writes_a_batch_that_weighs_too_much_though_it_has_few_rows() -> None:
    loop = VirtualClockLoop()
    written: list[list[str]] = []

    async def main() -> None:
        output = writer(written, 4, loop, max_bytes=10)
        for text in ("1234", "123456", "1"):
            output.collect(StreamRecord(text))
        output.collect_results([("", None, None)] * 2, ["12345678", "9"])
        output.collect_results([("", None, None)] * 5, list("abcde"))
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    assert written == [["1234", "123456"], ["1", "12345678", "9"], list("abcd"), ["e"]]


def test_results_that_come_together_leave_in_batches_of_the_same_weight() -> None:
    loop = VirtualClockLoop()
    written: list[list[str]] = []

    async def main() -> None:
        output = writer(written, 100, loop, max_bytes=6)
        output.collect_results([("", None, None)] * 7, ["12", "34", "56", "78", "1234567", "", "9"])
        output.close()

    loop.run_until_complete(main())
    loop.close()
    assert written == [["12", "34", "56"], ["78", "1234567"], ["", "9"]]


def test_a_record_writer_with_a_tag_writes_that_tags_records() -> None:
    loop = VirtualClockLoop()
    written: list[Any] = []

    async def main() -> None:
        output = RecordWriterOutput(lambda values, origins: written.extend(values), 10, 0.5, loop, TAG)
        output.collect_tagged(TAG, StreamRecord(1))
        output.collect_tagged(OTHER, StreamRecord(2))
        output.close()

    loop.run_until_complete(main())
    loop.close()
    assert written == [1]


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
