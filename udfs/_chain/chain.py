"""Several operators fused into one chain that runs on one event loop: rows pass between them one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Protocol

from asyncudf.queues import LatencyMarker, StreamRecord

from .._operators.async_wait import AsyncWaitOperator
from .._operators.buffered import BufferedOperator
from .._operators.input_buffer import InputElement
from .._operators.operator import Operator
from .._operators.outputs import Output
from .plan import StreamNode
from .sampler import Sampler

__all__ = ("Chain", "Sinks")


class Sinks(Protocol):
    """Where the rows leave a chain."""

    def outputs(self, node: StreamNode) -> Iterable[Output]:
        """The outputs for what is read of a node's rows and of its operator's side rows."""
        ...

    def latencies(self, node: StreamNode) -> list[Output]:
        """Where the latencies up to a node's operator are read."""
        ...

    def close(self) -> None:
        """All operators have ended."""


class Chain:
    """The loop task of a Spark task: fed with elements, runs until all operators have ended.

    Operators open from the tail to the head and close from the head to the tail. One that fails ends all.
    """

    # The nesting of the operators' `running` blocks is the order of opening and closing: each block ends when its own
    # operator has emitted everything, so by then whoever it emits to is still open.
    # Failing goes beside it: an error may come from deep in a call or a timer, with no block around it to raise in.
    # So `fail` tells every operator to end with it, and each raises it where it waits for its end.

    def __init__(self, loop: asyncio.AbstractEventLoop, partition: int, interval: float | None) -> None:
        self._loop = loop
        self._partition = partition
        self._interval = interval  # seconds between two latency markers
        self._due = 0.0  # when the last latency marker was
        self._timer: asyncio.TimerHandle | None = None
        self.head: BufferedOperator  # is fed
        self.operators: Sequence[Operator] = ()  # from the tail to the head
        self.upstream: Mapping[BufferedOperator, Sequence[BufferedOperator]] = {}  # each with who pushes to it
        self.at_end: Callable[[], None] = lambda: None  # once all operators have ended
        self.counted: Mapping[str, AsyncWaitOperator] = {}  # those that make calls, from the head to the tail
        self.sampler: Sampler

    def feed(self, elements: Iterable[InputElement]) -> None:
        """Hand over a batch."""
        if self._interval is not None and self._timer is None:
            elements = self._marked(elements)
        self.head.feed(elements)

    def end_of_input(self) -> None:
        """Say that nothing follows."""
        self.head.end_of_input()

    async def run(self) -> None:
        """Open all operators, work until everything is emitted, close them.

        Raises:
            AsyncUDFError: a row failed, or an operator could not be opened or closed.
        """
        self.sampler.operators = [*self.counted.values()]
        self.sampler.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for operator in self.operators:
                    await stack.enter_async_context(operator.running())
            self.at_end()
        finally:
            self.sampler.stop()
            if self._timer is not None:
                self._timer.cancel()

    def fail(self, error: BaseException) -> None:
        """End all operators with an error; the first one counts."""
        for operator in self.operators:
            operator.abort(error)

    def _marked(self, elements: Iterable[InputElement]) -> Iterator[InputElement]:
        """With the first latency marker behind the first row: before it there is nothing to wait for."""
        self._due = self._loop.time()
        first = self._marker()
        rest = iter(elements)
        return chain(islice(rest, 1), [first], rest)

    def _marker(self) -> LatencyMarker:
        """The marker that is due. The next one comes an interval later, however long the loop is held up."""
        due = min(self._due, self._loop.time())  # a timer may fire a hair before its time
        marker = LatencyMarker(due, "source", self._partition)
        assert self._interval is not None
        self._due += self._interval
        call_at = getattr(self._loop, "call_beside", self._loop.call_at)  # on the virtual clock
        self._timer = call_at(self._due, self._mark_latency)
        return marker

    def _mark_latency(self) -> None:
        """Put the next marker in, in front of what waits there: it measures how long a row would take from now on."""
        # Where the head has handed on its last row those behind it may have long to go: they get the marker themselves.
        marker = self._marker()
        for operator, before in self.upstream.items():
            if all(one.has_finished for one in before):
                operator.insert(marker)

    def report_latency(self, operator: str, outputs: list[Output], marker: LatencyMarker) -> None:
        """A marker has left an operator."""
        for output in outputs:
            latency = self._loop.time() - marker.marked_time
            output.collect(StreamRecord({"operator": operator, "partition": marker.subtask, "latency": latency}))
