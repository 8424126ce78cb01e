"""The base classes of operators, and the operator that pushes a task's elements into a chain."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.queues._queues import emit_marker

from ..._errors.records import as_exception
from ..._observe.waits import Wait
from ..stored.elements import Inlet
from .input import InputBuffer, InputElement
from .outputs import StreamOutput

Marker = Watermark | WatermarkStatus | LatencyMarker


class Operator(ABC):
    """What a chain opens, runs and ends."""

    @abstractmethod
    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Open; at the end of the block wait until the input has ended and everything is emitted, and close."""

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """End with an error; the first one counts."""

    def waits(self) -> Iterator[Wait]:
        """What the operator waits for now, except for input and output, which the chain knows."""
        return iter(())


class ChainedOperator(Operator):
    """An operator that gets its rows from another one."""

    # A row passes from operator to operator by plain calls, on one stack, without a queue or a task between them. Only
    # an async operator keeps the row, and returns at once.

    @property
    @abstractmethod
    def available(self) -> int:
        """How many rows the operator can take now."""

    @abstractmethod
    def process(self, record: StreamRecord, /) -> None:
        """Take a row."""

    @abstractmethod
    def process_marker(self, marker: Marker, /) -> None:
        """Take a marker at its place among the rows."""

    @abstractmethod
    def end_of_input(self) -> None:
        """Nothing follows."""

    def input(self) -> ChainedOperator:
        """The input into which an operator before this one passes its rows."""
        return self  # a union has one input for each of them


class BufferedOperator(Operator):
    """Takes elements in, and pushes their results to an output while the output can take more.

    `fail` is called with the error that ends the operator, to end its chain; its own `abort` unless given.
    """

    # Back-pressure ends here. Operators that wait for nothing pass a row on before they return, so only an operator
    # that holds elements can stop when the output is full; the output calls `resume` when it can take more.
    #
    # _finished is set once: everything is emitted, or an error has ended the operator

    def __init__(
        self,
        output: StreamOutput,
        loop: asyncio.AbstractEventLoop,
        request_rows: Callable[[], None],
        fail: Callable[[BaseException], None] | None,
    ) -> None:
        self._output = output
        self.loop = loop
        self._request_rows = request_rows
        self._fail = fail or self.abort
        self._buffer = InputBuffer(request_rows)  # elements are taken from it
        self._inlet: Inlet = self._buffer  # elements are fed to it; another object where rows are prepared
        self._held_back = False  # something could leave, but the output could take nothing when it was last asked
        self._own_context = contextvars.copy_context()  # without the variables of any call, for callbacks
        self._finished: asyncio.Future[None] = loop.create_future()

    @abstractmethod
    def pump(self) -> None:
        """Something has changed: let go on what can. May be called at any time, and any number of times."""

    async def run(self) -> None:
        """Open, run and close an operator that is not part of a chain."""
        async with self.running():
            pass

    @property
    def has_finished(self) -> bool:
        return self._finished.done()

    @property
    def lacks_input(self) -> bool:
        """Whether it could go on if there were rows."""
        return not (self._buffer.may_have_more or self._buffer.has_ended or self._held_back or self.has_finished)

    def feed(self, elements: Iterable[InputElement]) -> None:
        self._inlet.feed(elements)
        self.pump()

    def insert(self, marker: LatencyMarker) -> None:
        if not self.has_finished:
            self._buffer.insert(marker)
            self.pump()

    def end_of_input(self) -> None:
        self._inlet.end()
        self.pump()

    def resume(self) -> None:
        """The output can take more again."""
        if self._held_back:
            self._held_back = False
            self.loop.call_soon(self.pump, context=self._own_context.copy())  # not in that of a later row

    def fail(self, error: BaseException) -> None:
        self._fail(error)

    def abort(self, error: BaseException) -> None:
        if not self._finished.done():
            self._finished.set_exception(as_exception(error))

    @contextlib.contextmanager
    def _owning_its_end(self) -> Iterator[None]:
        """Around the wait for `_finished`: its error counts as retrieved, also when a neighbour's error is raised.

        The error wins over a cancellation, which may have the same cause: a row waited for a task of a task group.
        """
        try:
            yield
        except asyncio.CancelledError:
            if self._finished.done() and not self._finished.cancelled():
                self._finished.result()
            raise
        finally:
            if self._finished.done() and not self._finished.cancelled():
                self._finished.exception()

    def _end_output(self) -> None:
        if self._output.get_watermark_gauge().timestamp != Watermark.MAX.timestamp:  # it may come from upstream
            self._output.emit_watermark(Watermark.MAX)
        self._output.close()


BURST = 200  # elements that a source pushes before timers and the mailbox get their turn


class SourceOperator(BufferedOperator):
    """Pushes the elements of a task into a chain that does not begin with an async operator."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ask for elements; at the end of the block wait until all are pushed, and end the output."""
        self._request_rows()
        with self._owning_its_end():
            yield
            await self._finished
        self._end_output()

    # In bursts: to yield to the loop after each row would cost a turn of the loop per row, and without a yield no timer
    # would fire while a whole batch is pushed.
    _goes_on = False  # the next burst is scheduled, and `pump` starts no other

    def pump(self) -> None:
        if not self._goes_on:
            self._push_burst()

    def _push_burst(self) -> None:
        self._goes_on = False
        try:
            for _ in range(BURST):
                if self._finished.done() or not self._push_one():
                    return
        except BaseException as error:  # called from the mailbox, where an exception would only be logged
            self.fail(error)
        else:
            self._goes_on = True
            self.loop.call_soon(self._push_burst)

    def _push_one(self) -> bool:
        if self._output.available <= 0:
            self._held_back = True
            return False
        element = self._buffer.take()
        if type(element) is tuple:
            self._output.collect(StreamRecord._make(element))
        elif isinstance(element, StreamRecord):
            self._output.collect(element)
        elif element is not None:
            emit_marker(self._output, element)  # type: ignore[arg-type]
        elif self._buffer.is_drained:
            self._finished.set_result(None)
        return element is not None
