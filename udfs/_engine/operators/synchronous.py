"""The operators of a chain that wait for nothing: filters, process functions, watermarks, unions."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.queues._queues import emit_marker

from ..._errors.checks import optional, seconds
from ..._errors.exceptions import AsyncUDFError
from ..._errors.records import Redact, shown_input, task_error
from ..._functions.process_function import ProcessContext, ProcessFunction, checked_result
from ..._functions.watermarks import WatermarkGenerator
from ..._observe.waits import Wait
from ..calls.resources import Opening, closing
from .operator import ChainedOperator, Marker
from .outputs import StreamOutput, TimestampedCollector


@dataclasses.dataclass(eq=False, repr=False)
class SynchronousOperator(ChainedOperator):
    """Passes everything on; a subclass changes what becomes of rows or markers."""

    # It holds nothing: how many rows are available is what its output can take, and there is nothing to resume.

    output: StreamOutput

    @property
    def available(self) -> int:
        return self.output.available

    def process(self, record: StreamRecord) -> None:
        self.output.collect(record)

    def process_marker(self, marker: Marker) -> None:
        emit_marker(self.output, marker)

    def end_of_input(self) -> None:
        self.output.close()

    def abort(self, error: BaseException) -> None:
        """Nothing runs here, so there is nothing to stop."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


def row_error(
    name: str, partition: int, value: Any, error: BaseException, redact: Redact | None = None
) -> AsyncUDFError:
    """The error of a row in a plain function; an error from further down the chain stays as it is."""
    if issubclass(type(error), AsyncUDFError) and error.is_located:  # type: ignore[attr-defined]
        return error  # type: ignore[return-value]
    where = f"{name} failed, partition {partition}, for the input {shown_input([value], redact)}"
    failed = task_error(error, where, redacted=redact is not None)
    failed.__cause__ = error  # also for a type mismatch: its traceback leads to the line that gave the result
    return failed


@dataclasses.dataclass(eq=False, repr=False)
class FilterOperator(SynchronousOperator):
    """Passes on the rows for which a function is true of their projection, untouched."""

    keeps: Callable[[Any], Any]
    unprojected: Callable[[StreamRecord], StreamRecord]
    name: str
    partition: int
    redact: Redact | None = None

    def process(self, record: StreamRecord) -> None:
        try:
            kept = bool(checked_result(self.keeps(record.value)))
        except BaseException as error:
            failed = row_error(self.name, self.partition, record.value, error, self.redact)
            raise failed from failed.__cause__
        if kept:
            self.output.collect(self.unprojected(record))


@dataclasses.dataclass(eq=False, repr=False)
class ProcessOperator(SynchronousOperator):
    function: ProcessFunction
    collector: TimestampedCollector
    context: ProcessContext
    name: str
    redact: Redact | None = None

    def __post_init__(self) -> None:
        self._opening = Opening(self.name, optional(seconds)(self.function.open_timeout, "open_timeout"))

    def process(self, record: StreamRecord) -> None:
        self.collector.timestamp = record.timestamp
        self.context.at(record)
        try:
            checked_result(self.function.process_element(record.value, self.context, self.collector))
        except BaseException as error:
            failed = row_error(self.name, self.context.partition, record.value, error, self.redact)
            raise failed from failed.__cause__

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        function, name = self.function, self.name
        async with self._opening.closed_at_its_end() as stack:
            stack.push_async_exit(closing(lambda *_: function.close(), f"{name}.close() failed"))
            await self._opening.step("open()", partial(function.open, self.context), f"{name}.open() failed")
            yield

    def waits(self) -> Iterator[Wait]:
        return self._opening.waits()


@dataclasses.dataclass(eq=False, repr=False)
class WatermarkOperator(SynchronousOperator):
    """Gives rows their event time and puts watermarks between them, inside a chain.

    Args:
        mark: returns what the strategy reads of a row: microseconds or a flag.
        idleness: seconds without a row after which the input is idle, until the next row.
    """

    # One timer, which looks at the time of the last row when it fires: to set it anew for each row would cost a push to
    # the loop's heap and a cancellation.

    generator: WatermarkGenerator
    mark: Callable[[StreamRecord], Any]
    batch: Callable[[StreamRecord], Any]
    unprojected: Callable[[StreamRecord], StreamRecord]
    idleness: float | None
    loop: asyncio.AbstractEventLoop
    fail: Callable[[BaseException], None]
    _current: Any = dataclasses.field(default=None, init=False)  # the batch of the last row
    _is_idle = False
    _last = 0.0  # when the last row came, or the operator was opened
    # Set while there is an idleness, the input is active and has not ended.
    _timer: asyncio.TimerHandle | None = dataclasses.field(default=None, init=False)

    def process(self, record: StreamRecord) -> None:
        if self.idleness is not None:
            self._note_row()
        mark, batch = self.mark(record), self.batch(record)
        if self._current is not None and batch is not self._current:
            self._emit(self.generator.end_of_batch())
        self._current = batch
        self._emit(self.generator.before(mark))
        self.output.collect(self.unprojected(record)._replace(timestamp=self.generator.timestamp(mark)))
        self._emit(self.generator.after(mark))

    def process_marker(self, marker: Marker) -> None:
        if not isinstance(marker, Watermark) or marker == Watermark.MAX:  # this operator makes its own
            super().process_marker(marker)

    def end_of_input(self) -> None:
        self._stop_timer()
        super().end_of_input()

    def _emit(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            self.output.emit_watermark(watermark)

    def _note_row(self) -> None:
        """A row has come: the input is active, and its idle time starts anew."""
        self._last = self.loop.time()
        if self._is_idle:
            self._is_idle = False
            self._watch()
            self.output.emit_watermark_status(WatermarkStatus.ACTIVE)

    def _watch(self) -> None:
        assert self.idleness is not None
        self._timer = self.loop.call_at(self._last + self.idleness, self._look, self._last)

    def _look(self, last: float) -> None:
        """The input is idle if no row has come since this look was planned."""
        if self._last > last:
            self._watch()
            return
        self._is_idle = True
        try:
            self.output.emit_watermark_status(WatermarkStatus.IDLE)
        except BaseException as error:  # a timer's exception would only be logged
            self.fail(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self.idleness is not None:  # an input without any row is idle too
            self._last = self.loop.time()
            self._watch()
        try:
            yield
        finally:
            self._stop_timer()


class WatermarkColumnOperator(SynchronousOperator):
    """Adds the watermark in force to each row."""

    def process(self, record: StreamRecord) -> None:
        self.output.collect(record.with_value(self.output.get_watermark_gauge().timestamp))


class UnionOperator(SynchronousOperator):
    """Passes on rows of several inputs as they come; the watermark is the lowest of all active inputs, as in Flink."""

    # An input without a watermark yet holds the others back, as its rows could come too late otherwise; an idle input
    # promises not to. When it becomes active it may be behind: the watermark stands still until it has caught up.
    #
    # _last never decreases; the output has ended when all inputs have

    def __init__(self, output: StreamOutput) -> None:
        super().__init__(output)
        self._watermarks: list[int | None] = []  # of each input, by its number
        self._idle: list[bool] = []  # the same
        self._open = 0  # inputs that have not ended
        self._last: int | None = None

    def input(self) -> UnionInput:
        self._watermarks.append(None)
        self._idle.append(False)
        self._open += 1
        return UnionInput(self, len(self._idle) - 1)

    def process_input_marker(self, number: int, marker: Marker) -> None:
        match marker:
            case Watermark():
                self._watermarks[number] = marker.timestamp
                self._advance()
            case WatermarkStatus():
                was_idle = all(self._idle)
                self._idle[number] = marker is WatermarkStatus.IDLE
                if all(self._idle) != was_idle:
                    self.output.emit_watermark_status(marker)
                self._advance()
            case LatencyMarker():
                self.output.emit_latency_marker(marker)

    def _advance(self) -> None:
        active = [mark for mark, idle in zip(self._watermarks, self._idle, strict=True) if not idle]
        known = [mark for mark in active if mark is not None]
        if known and len(known) == len(active) and (self._last is None or min(known) > self._last):
            self._last = min(known)
            self.output.emit_watermark(Watermark(self._last))

    def end_of_input(self) -> None:
        self._open -= 1
        if not self._open:
            super().end_of_input()


class UnionInput(SynchronousOperator):
    def __init__(self, union: UnionOperator, number: int) -> None:
        super().__init__(union.output)
        self._union = union
        self._number = number

    def process_marker(self, marker: Marker) -> None:
        self._union.process_input_marker(self._number, marker)

    def end_of_input(self) -> None:
        self._union.end_of_input()
