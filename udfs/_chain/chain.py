"""Several operators fused into one chain that runs on one event loop: rows pass between them one by one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from asyncudf.queues import LatencyMarker, StreamRecord

from ._driver import Driver
from ._errors import FunctionError
from ._input import Fed
from ._node import Node
from ._options import EventLoop
from ._outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    CountingOutput,
    Output,
    SplittingOutput,
)
from ._specs import AssignSpec, Site, WaitSpec, wait_operator
from ._steps import Source
from ._task import Work
from ._vectors import Codec
from ._watermark_steps import UnionStep

__all__ = ("Chain", "Plan", "Sinks", "build_chain", "chain_of_one")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A chain that does not run yet.

    Args:
        nodes: all streams that are needed, the source first, each after those that it reads.
        is_source_read: whether somebody outside the chain reads the source's own rows.
        object_reuse: whether operators may see one another's objects instead of copies.
        latency_interval: seconds between two latency markers; None: none are made.
    """

    nodes: tuple[Node, ...]
    is_source_read: bool = False
    object_reuse: bool = False
    latency_interval: float | None = None

    def __post_init__(self) -> None:
        self.loop  # noqa: B018 - raises where the chain is planned, not on an executor

    @property
    def threads(self) -> int:
        """How many calls may want a thread at the same time."""
        return max(1, sum(node.spec.threads for node in self.nodes if node.spec is not None))

    @property
    def loop(self) -> EventLoop:
        """The event loop that the operators ask for.

        Raises:
            FunctionError: one asks for uvloop and another for asyncio.
        """
        asked = {node.spec.loop for node in self.nodes if node.spec is not None} - {EventLoop.AUTO}
        if len(asked) > 1:
            raise FunctionError("the operators of a chain share one event loop; give all of them the same loop=")
        return asked.pop() if asked else EventLoop.AUTO

    def readers_of(self, node: Node) -> list[Node]:
        """The streams made of a stream; one that reads it twice is there twice."""
        return [child for child in self.nodes for parent in child.parents if parent is node]

    @property
    def start(self) -> Node:
        """The first stream of which rows pass one by one: the source, or the source with its watermarks."""
        readers = self.readers_of(self.nodes[0])
        if len(readers) == 1 and not self.is_source_read:
            spec = readers[0].spec
            if isinstance(spec, AssignSpec) and spec.strategy.idleness is None:
                return readers[0]
        return self.nodes[0]

    @property
    def head(self) -> Node | None:
        """The async operator that can be fed with whole batches, if the chain begins with one and nothing else."""
        readers = self.readers_of(self.start)
        is_read = self.is_source_read and self.start is self.nodes[0]
        return readers[0] if len(readers) == 1 and not is_read and isinstance(readers[0].spec, WaitSpec) else None


class Sinks(Protocol):
    """Where the rows leave a chain."""

    def outputs(self, node: Node) -> Iterable[Output]:
        """The outputs for what is read of a node's rows and of its operator's side rows."""
        ...

    def latencies(self, node: Node) -> list[Output]:
        """Where the latencies up to a node's operator are read."""
        ...

    def close(self) -> None:
        """All operators have ended."""


class Chain:
    """The stage of a task: fed with elements, runs until all operators have ended.

    Operators open from the tail to the head and close from the head to the tail. One that fails ends all.
    """

    def __init__(self, site: Site, interval: float | None) -> None:
        site.failed = self._fail
        self._site = site
        self._interval = interval
        self._due = 0.0  # when the last latency marker was
        self._timer: asyncio.TimerHandle | None = None
        self.head: Any = None  # the operator that is fed
        self.operators: list[Any] = []  # from the tail to the head
        self.drivers: Mapping[Driver, Sequence[Driver]] = {}  # each with those that push rows to it
        self.at_end: Callable[[], None] = lambda: None

    def feed(self, elements: Iterable[Fed]) -> None:
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
        try:
            async with contextlib.AsyncExitStack() as stack:
                for operator in self.operators:
                    await stack.enter_async_context(operator.running())
            self.at_end()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _fail(self, error: BaseException) -> None:
        for operator in self.operators:
            operator.abort(error)

    def _marked(self, elements: Iterable[Fed]) -> Iterator[Fed]:
        """With the first latency marker behind the first row: before it there is nothing to wait for."""
        self._due = self._site.loop.time()
        first = self._marker()
        rest = iter(elements)
        return chain(islice(rest, 1), [first], rest)

    def _marker(self) -> LatencyMarker:
        """The marker that is due. The next one comes an interval later, however long the loop is held up."""
        due = min(self._due, self._site.loop.time())  # a timer may fire a hair before its time
        marker = LatencyMarker(due, "source", self._site.partition)
        assert self._interval is not None
        self._due += self._interval
        call_at = getattr(self._site.loop, "call_beside", self._site.loop.call_at)  # on the virtual clock
        self._timer = call_at(self._due, self._mark_latency)
        return marker

    def _mark_latency(self) -> None:
        # Where the head has handed on its last row those behind it may have long to go: they get the marker themselves.
        marker = self._marker()
        for driver, before in self.drivers.items():
            if all(one.has_finished for one in before):
                driver.insert(marker)

    def report_latency(self, operator: str, outputs: list[Output], marker: LatencyMarker) -> None:
        """A marker has left an operator."""
        latency = self._site.loop.time() - marker.marked_time
        for output in outputs:
            output.collect(StreamRecord({"operator": operator, "partition": marker.subtask, "latency": latency}))


def chain_of_one(
    work: Work, site: Site, output: Output, codec: Codec | None, want: Callable[[], None], *, may_edit: bool
) -> Chain:
    """The chain of a function without a plan: a column, a table function."""
    chain = Chain(site, None)
    chain.head = wait_operator(work, site, CountingOutput(output), codec, want, may_edit=may_edit)
    chain.operators = [chain.head]
    return chain


def build_chain(plan: Plan, site: Site, sinks: Sinks, want: Callable[[], None]) -> Chain:
    """Make the operators of a plan, from the tail to the head, each with its output to those made before it."""
    return _Builder(plan, site, sinks, want).chain


def _names(plan: Plan) -> dict[Node, str]:
    """A name for each operator; one that is there again has a number."""
    names: dict[Node, str] = {}
    for node in plan.nodes:
        name = "source" if node.spec is None else node.spec.name
        again = sum(other.spec is not None and other.spec.name == name for other in names)
        names[node] = f"{name} {again + 1}" if again else name
    return names


class _Builder:
    def __init__(self, plan: Plan, site: Site, sinks: Sinks, want: Callable[[], None]) -> None:
        self._plan = plan
        self._site = site
        self._sinks = sinks
        self._operators: dict[Node, Any] = {}
        self.chain = Chain(site, plan.latency_interval)
        self.chain.at_end = sinks.close
        self._names = _names(plan)
        self._functions: set[int] = set()
        start, head = plan.start, plan.head
        for node in reversed(plan.nodes[plan.nodes.index(start) + 1 :]):
            self._add(node, want if node is head else partial(self._resume, node))
        if head is None:
            self._operators[start] = Source(self._output(start), site.loop, want, self.chain._fail)
        self.chain.operators = list(self._operators.values())
        drivers = {node: made for node, made in self._operators.items() if isinstance(made, Driver)}
        self.chain.drivers = {driver: list(self._drivers(node)) for node, driver in drivers.items()}
        self.chain.head = self._operators[head or start]

    def _add(self, node: Node, want: Callable[[], None]) -> None:
        spec = node.spec
        assert spec is not None
        if id(spec.instance) in self._functions:  # the same object twice in a chain: each operator has its own
            spec = spec.with_own_instance()
        self._functions.add(id(spec.instance))
        self._operators[node] = spec.build(self._site, self._output(node), node.parents[0].layout, want)

    def _output(self, node: Node) -> Output:
        outputs = [self._link(node, child) for child in self._plan.readers_of(node)]
        outputs += self._sinks.outputs(node)
        if len(outputs) == 1 and outputs[0].tag is None:
            output = outputs[0]
        else:
            output = (BroadcastingOutput if self._plan.object_reuse else CopyingBroadcastingOutput)(outputs)
        if node.spec is not None and node.spec.mixes_sides:
            output = SplittingOutput(output)
        told = partial(self.chain.report_latency, self._names[node], self._sinks.latencies(node))
        return CountingOutput(output, told)

    def _link(self, node: Node, child: Node) -> Output:
        spec, operator = child.spec, self._operators[child]
        assert spec is not None
        following = operator.input() if isinstance(operator, UnionStep) else operator
        copies = spec.may_edit(node.layout) and not self._plan.object_reuse
        return (CopyingChainingOutput if copies else ChainingOutput)(following, spec.view(node.layout))

    def _resume(self, node: Node) -> None:
        """An operator has room again: let those that push to it go on."""
        for driver in self._drivers(node):
            driver.resume()

    def _drivers(self, node: Node) -> Iterator[Driver]:
        for parent in node.parents:
            operator = self._operators.get(parent)
            if isinstance(operator, Driver):
                yield operator
            else:
                yield from self._drivers(parent)
