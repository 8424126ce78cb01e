"""The operators of a chain that wait for nothing: they hand on what they make before they return."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from asyncudf.queues import StreamRecord

from .._calls.resources import closing, opening
from .._errors.exceptions import AsyncUDFError
from .._errors.records import Redact, shown_input, task_error
from .._functions.process_function import ProcessContext, ProcessFunction, checked_result
from .operator import ChainedOperator, Marker, emit_marker
from .outputs import Output, TimestampedCollector

__all__ = ("FilterOperator", "ProcessOperator", "SynchronousOperator")


class SynchronousOperator(ChainedOperator):
    """Passes everything on; a subclass says what it does with rows or markers."""

    # It holds nothing, so it has no room of its own to give and nothing to resume: both are those of its output.

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


def row_error(
    name: str, partition: int, value: Any, error: BaseException, redact: Redact | None = None
) -> AsyncUDFError:
    """The error of a row in a plain function; one that came from further down the chain stays what it is."""
    if issubclass(type(error), AsyncUDFError) and error.is_located:  # type: ignore[attr-defined]
        return error  # type: ignore[return-value]
    where = f"{name} failed, partition {partition}, for the input {shown_input([value], redact)}"
    failed = task_error(error, where, redact)
    failed.__cause__ = error  # also of a result that does not fit: its traceback leads to the line that gave it
    return failed


class FilterOperator(SynchronousOperator):
    """Keeps the rows for which a function says so; they go on untouched.

    Args:
        unprojected: gives the record back of which the function sees a projection.
    """

    def __init__(
        self,
        output: Output,
        keeps: Callable[[Any], Any],
        unprojected: Callable[[StreamRecord], StreamRecord],
        name: str,
        partition: int,
        redact: Redact | None = None,
    ) -> None:
        super().__init__(output)
        self._keeps = keeps
        self._unprojected = unprojected
        self.name = name
        self._partition = partition
        self._redact = redact

    def process(self, record: StreamRecord) -> None:
        try:
            kept = bool(checked_result(self._keeps(record.value)))
        except BaseException as error:
            failed = row_error(self.name, self._partition, record.value, error, self._redact)
            raise failed from failed.__cause__
        if kept:
            self._output.collect(self._unprojected(record))


class ProcessOperator(SynchronousOperator):
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
            checked_result(self._function.process_element(record.value, self._context, self._collector))
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
