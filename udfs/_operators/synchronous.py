"""The operators of a chain that wait for nothing: they hand on what they make before they return."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from ._driver import Driver
from ._failures import Redact
from ._outputs import Output, TimestampedCollector
from ._process import ProcessContext, ProcessFunction, at_hand, row_error
from ._resources import closing, opening

__all__ = ("FilterStep", "Marker", "ProcessStep", "Source", "Step")

BURST = 200  # elements that a source pushes before timers and the mailbox get their turn
Marker = Watermark | WatermarkStatus | LatencyMarker


def emit_marker(output: Output, marker: Marker) -> None:
    """Hand a marker to the method for its kind."""
    match marker:
        case Watermark():
            output.emit_watermark(marker)
        case WatermarkStatus():
            output.emit_watermark_status(marker)
        case LatencyMarker():
            output.emit_latency_marker(marker)


class Step:
    """Passes everything on; a subclass says what it does with rows or markers."""

    def __init__(self, output: Output) -> None:
        self._output = output

    @property
    def room(self) -> int:
        return self._output.room

    def process(self, record: StreamRecord) -> None:
        self._output.collect(record)

    def process_marker(self, marker: Marker) -> None:
        emit_marker(self._output, marker)

    def end_of_input(self) -> None:
        self._output.close()

    def abort(self, error: BaseException) -> None:
        """Nothing runs here that had to be stopped."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open; at the end of the block close."""
        yield


class FilterStep(Step):
    """Keeps the rows for which a function says so; they go on untouched.

    Args:
        unseen: gives the record back that the function's view was made of.
    """

    def __init__(
        self,
        output: Output,
        keeps: Callable[[Any], Any],
        unseen: Callable[[StreamRecord], StreamRecord],
        name: str,
        partition: int,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(output)
        self._keeps = keeps
        self._unseen = unseen
        self.name = name
        self._partition = partition
        self._redact = redact

    def process(self, record: StreamRecord) -> None:
        try:
            kept = bool(at_hand(self._keeps(record.value)))
        except BaseException as error:
            failed = row_error(self.name, self._partition, record.value, error, self._redact)
            raise failed from failed.__cause__
        if kept:
            self._output.collect(self._unseen(record))


class ProcessStep(Step):
    """Runs a `ProcessFunction`."""

    def __init__(
        self,
        output: Output,
        function: ProcessFunction,
        collector: TimestampedCollector,
        context: ProcessContext,
        name: str,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(output)
        self._function = function
        self._collector = collector
        self._context = context
        self.name = name
        self._redact = redact

    def process(self, record: StreamRecord) -> None:
        self._collector.timestamp = record.timestamp
        self._context.at(record)
        try:
            at_hand(self._function.process_element(record.value, self._context, self._collector))
        except BaseException as error:
            failed = row_error(self.name, self._context.partition, record.value, error, self._redact)
            raise failed from failed.__cause__

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        function, name = self._function, self.name
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(closing(lambda *_: function.close(), f"{name}.close() failed"))
            await opening(partial(function.open, self._context), f"{name}.open() failed")
            yield


class Source(Driver):
    """Pushes the elements of a task into a chain that does not begin with an async operator."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask for elements; at the end of the block wait until all are pushed, and end the output."""
        self._want()
        with self._owning_its_end():
            yield
            await self._finished
        self._end_output()

    # _goes_on: the next burst is on its way; nobody else starts one meanwhile, or there would be two in each turn
    _goes_on = False

    def _look_at_input(self) -> None:
        self._push()

    def _push(self) -> None:
        if not self._goes_on:
            self._push_burst()

    def _push_burst(self) -> None:
        self._goes_on = False
        try:
            for _ in range(BURST):
                if self._finished.done() or not self._push_one():
                    return
        except BaseException as error:  # called from the mailbox, where an exception would only be logged
            self._fail(error)
        else:
            self._goes_on = True
            self._loop.call_soon(self._push_burst)

    def _push_one(self) -> bool:
        if self._output.room <= 0:
            self._held_back = True
            return False
        element = self._input.next()
        if isinstance(element, StreamRecord):
            self._output.collect(element)
        elif element is not None:
            emit_marker(self._output, element)
        elif self._input.is_drained:
            self._finished.set_result(None)
        return element is not None
