"""Where records go next: collectors and outputs, named after Flink's, and the writer at the end of a chain."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from ..._errors.exceptions import UnreadableError
from ..._functions.process_function import Collector, WatermarkGauge
from ..._functions.side_outputs import OutputTag, SideRecord
from ..calls.arguments import copied
from ..stored.elements import RowsAsColumns

UNLIMITED = sys.maxsize  # rows that an output at the end of a chain can take


class OpenBatch(NamedTuple):
    """The results that an output gathers for a batch. A queue may append all but the first and the last one."""

    values: list[Any]
    origins: list[Any]  # of the values, one each
    rows: int  # that fill it


class Weight:
    """The bytes of the results in an open batch, which is full at `most`; who appends a result adds its bytes."""

    __slots__ = ("bytes", "most", "size_of")

    def __init__(self, size_of: Callable[[Any], int] | None, most: int) -> None:
        self.size_of = size_of
        self.most = most
        self.bytes = 0


class StreamOutput(Collector):
    """Takes records, side records, and the markers between them, each at its place.

    An output with a tag takes only that tag's records; one without takes only the main stream's.
    """

    # Back-pressure is not enforced: `collect` never blocks and never refuses. The operator that sends asks for
    # `available` before, and goes on when its `resume` is called.

    def __init__(self, tag: OutputTag | None = None) -> None:
        self.tag = tag
        self._gauge = WatermarkGauge()
        self.leaves_chain = True  # whether no code of the user's runs further down
        self.open_batch: OpenBatch | None = None  # if nothing else is done for a result
        self.weighed_batch: tuple[OpenBatch, Weight] | None = None  # if a result is weighed besides

    @property
    def available(self) -> int:
        """How many records the output can take now. At 0 the sender has to wait; more are taken all the same."""
        return UNLIMITED

    def collect_result(self, record: Any, result: Any) -> None:
        """Take the only result of a record, or of a plain tuple with the same fields."""
        _, timestamp, origin = record
        self.collect(StreamRecord(result, timestamp, origin))

    def collect_results(self, records: Sequence[Any], results: Sequence[Any]) -> None:
        """Take one result for each of these records, in their order."""
        for record, result in zip(records, results, strict=True):
            self.collect_result(record, result)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        """Take a record for a side output (Flink's `collect(tag, record)`); without a reader it is dropped."""

    def emit_watermark(self, watermark: Watermark) -> None:
        self._gauge.timestamp = watermark.timestamp

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take a status at its place among the records."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker at its place among the records."""

    def get_watermark_gauge(self) -> WatermarkGauge:
        """The last watermark that passed."""
        return self._gauge


class OperatorOutput(StreamOutput):
    """What an operator writes to: passes everything on, and reports when latency markers leave.

    `splits`: results of a row come with what its function wrote to side outputs, and are separated here.
    """

    # Both come in one list, so that a side record leaves at its row's place, with its attempt's results or not at all.

    def __init__(
        self,
        output: StreamOutput,
        report: Callable[[LatencyMarker], None] = lambda marker: None,
        *,
        splits: bool = False,
    ) -> None:
        super().__init__()
        self._output = output
        self._report = report
        self._gauge = output.get_watermark_gauge()
        self.leaves_chain = output.leaves_chain
        if not splits:  # records pass here without a step of their own
            self.collect, self.collect_result = output.collect, output.collect_result  # type: ignore[method-assign]
            self.collect_results = output.collect_results  # type: ignore[method-assign]
            self.open_batch, self.weighed_batch = output.open_batch, output.weighed_batch

    @property
    def available(self) -> int:
        return self._output.available

    def collect(self, record: StreamRecord) -> None:
        value = record.value
        if type(value) is SideRecord:
            self._output.collect_tagged(value.tag, record.with_value(value.value))
        else:
            self._output.collect(record)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        self._output.collect_tagged(tag, record)

    def emit_watermark(self, watermark: Watermark) -> None:
        self._output.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self._output.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self._report(marker)
        self._output.emit_latency_marker(marker)

    def close(self) -> None:
        self._output.close()


class Following(Protocol):
    """The next operator of a chain; see `ChainedOperator`."""

    @property
    def available(self) -> int: ...
    def process(self, record: StreamRecord, /) -> None: ...
    def process_marker(self, marker: Watermark | WatermarkStatus | LatencyMarker, /) -> None: ...
    def end_of_input(self) -> None: ...


class ChainingOutput(StreamOutput):
    """Passes a record straight to the next operator of the same chain, which sees its projection.

    `unreadable` makes the projection of a record with a value that cannot be read, or raises the error.
    """

    def __init__(
        self,
        following: Following,
        project: Callable[[StreamRecord], StreamRecord],
        unreadable: Callable[[StreamRecord, UnreadableError], StreamRecord],
    ) -> None:
        super().__init__()
        self._following = following
        self.leaves_chain = False
        self._project, self._unreadable = project, unreadable

    @property
    def available(self) -> int:
        return self._following.available

    def collect(self, record: StreamRecord) -> None:
        try:
            seen = self._project(record)
        except UnreadableError as error:
            seen = self._unreadable(record, error)
        self._following.process(seen)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        self._following.process_marker(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self._following.process_marker(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self._following.process_marker(marker)

    def close(self) -> None:
        self._following.end_of_input()


class CopyingChainingOutput(ChainingOutput):
    """A `ChainingOutput` that passes deep copies, so that neighbours cannot see each other's edits."""

    def collect(self, record: StreamRecord) -> None:
        try:
            seen = self._project(record)
        except UnreadableError as error:
            seen = self._unreadable(record, error)
        self._following.process(seen.with_value(copied(seen.value)))


class BroadcastingOutput(StreamOutput):
    """Passes a record to several outputs, a side record to the outputs of its tag, a marker to all outputs."""

    def __init__(self, outputs: Sequence[StreamOutput]) -> None:
        super().__init__()
        self._outputs = outputs
        self.leaves_chain = all(output.leaves_chain for output in outputs)
        self._main = [output for output in outputs if output.tag is None]
        self._tagged = [output for output in outputs if output.tag is not None]

    @property
    def available(self) -> int:
        return min((output.available for output in self._outputs), default=UNLIMITED)

    def collect(self, record: StreamRecord) -> None:
        for output in self._main:
            output.collect(record)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        for output in self._tagged:
            output.collect_tagged(tag, record)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        for output in self._outputs:
            output.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        for output in self._outputs:
            output.emit_watermark_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        for output in self._outputs:
            output.emit_latency_marker(marker)

    def close(self) -> None:
        for output in self._outputs:
            output.close()


class CopyingBroadcastingOutput(BroadcastingOutput):
    """A `BroadcastingOutput` that passes shallow copies to all outputs but the last."""

    # Shallow, for the row itself: its values are copied by the `CopyingChainingOutput` of operators that may edit them.

    def collect(self, record: StreamRecord) -> None:
        for output in self._main[:-1]:
            output.collect(record.with_value(copy.copy(record.value)))
        for output in self._main[-1:]:
            output.collect(record)


class TimestampedCollector(Collector):
    """Takes plain values and puts the input row's timestamp on each.

    `failed` is called when a record could not be passed on, whether or not the caller handles the exception.
    """

    def __init__(
        self,
        output: StreamOutput,
        validate: Callable[[Any], Any],
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._output = output
        self._validate = validate
        self._failed = failed or (lambda error: None)
        self.timestamp: int | None = None  # of the row at hand

    def collect(self, record: Any) -> None:
        """Emit a value; ResultError if it does not fit the declared type."""
        made = StreamRecord(self._validate(record), self.timestamp)
        try:
            self._output.collect(made)
        except BaseException as error:  # of an operator further down: a catch-all here must not lose its row
            self._failed(error)
            raise


OUTPUT_LINGER = 0.05  # seconds that a finished row waits for company
OUTPUT_BYTES = 64 * 2**20  # of results that are written together, whatever their number

_origin_of = itemgetter(2)  # of records, and of plain tuples of the same


class RecordWriterOutput(StreamOutput):
    """Leaves the chain: gathers results and passes them to `write` in batches.

    A batch goes out when it is full, `linger` seconds after its first row, and at the end, so that a slow
    service does not keep finished rows from Spark. It is full at so many rows, or when its results weigh too much.

    Args:
        write: takes the values and their origins.
        rows: how many rows make a full batch.
        weigh: how many bytes values and their origins bring to the batch; None where that does not matter.
        size_of: the same for one value, in place of `weigh`, where origins bring nothing.
        max_bytes: about how many bytes make a full batch.
    """

    # Two bounds and a timer: `rows`, so that Spark's batches keep their size; `max_bytes`, as large results of so many
    # rows would not fit into memory, nor into one Arrow array; `linger`, as a slow service fills no batch for minutes.
    #
    # len(_values) == len(_origins) < rows between two calls; both lists are the same ones as long as the output lives

    def __init__(
        self,
        write: Callable[[Sequence[Any], Sequence[Any]], None],
        rows: int,
        linger: float,
        loop: asyncio.AbstractEventLoop,
        tag: OutputTag | None = None,
        weigh: Callable[[Sequence[Any], Sequence[Any]], int] | None = None,
        max_bytes: int = UNLIMITED,
        size_of: Callable[[Any], int] | None = None,
    ) -> None:
        super().__init__(tag)
        self._write = write
        self._rows = rows
        self._linger = linger
        self._loop = loop
        self._weigh = weigh if size_of is None else lambda values, _: sum(map(size_of, values))
        self._weight = Weight(size_of, max_bytes)  # of the values, if they are weighed
        self._timer: asyncio.TimerHandle | None = None  # set while there are rows
        self._failure: Exception | None = None  # the timer's error, for the next caller
        self._values: list[Any] = []
        self._origins: list[Any] = []
        batch = OpenBatch(self._values, self._origins, rows)
        if self._weigh is None:
            self.open_batch = batch
        elif size_of is not None:
            self.weighed_batch = batch, self._weight

    def collect(self, record: StreamRecord) -> None:
        self.collect_result(record, record.value)

    def collect_result(self, record: Any, result: Any) -> None:
        # No record of the result is made: thousands of live tuples would keep the garbage collector busy.
        values = self._values
        if not values:
            self._timer = self._loop.call_later(self._linger, self._flush_in_time)
        values.append(result)
        self._origins.append(record[2])
        if len(values) >= self._rows:
            self.flush()
        elif self._weigh is not None:
            self._weight.bytes += self._weigh((result,), (record[2],))
            if self._weight.bytes >= self._weight.most:
                self.flush()

    def collect_results(self, records: Sequence[Any], results: Sequence[Any]) -> None:
        origins = records.origins if isinstance(records, RowsAsColumns) else [*map(_origin_of, records)]
        if self._weigh is not None:
            more = self._weigh(results, origins)
            if self._weight.bytes + more >= self._weight.most:  # full somewhere among them: one by one finds where
                super().collect_results(records, results)
                return
            self._weight.bytes += more
        if not self._values:
            self._timer = self._loop.call_later(self._linger, self._flush_in_time)
        self._values += results
        self._origins += origins
        if len(self._values) >= self._rows:
            self._write_full_batches()

    def _write_full_batches(self) -> None:
        # The rest is kept before anything is written: whatever `write` raises, no row is written twice.
        rows, values, origins = self._rows, [*self._values], [*self._origins]
        full = len(values) - len(values) % rows
        del self._values[:full], self._origins[:full]
        for start in range(0, full, rows):
            self._write(values[start : start + rows], origins[start : start + rows])
        if self._weigh is not None:
            self._weight.bytes = self._weigh(self._values, self._origins)
        if not self._values:
            self.flush()  # ends the timer

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        if tag == self.tag:
            self.collect(record)

    def _flush_in_time(self) -> None:
        try:
            self.flush()
        except Exception as error:  # a timer's exception would only be logged: the next call raises it
            self._failure = error

    def flush(self) -> None:
        """Write what is held."""
        if self._failure is not None:
            raise self._failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._values:
            held = [*self._values], [*self._origins]
            self._values.clear()
            self._origins.clear()
            self._weight.bytes = 0
            self._write(*held)

    def close(self) -> None:
        self.flush()
