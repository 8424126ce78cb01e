"""Makes the running chain of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count

from .._operators.async_wait import AsyncWaitOperator
from .._operators.buffered import BufferedOperator, SourceOperator
from .._operators.operator import ChainedOperator
from .._operators.outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    Output,
    ReportingOutput,
    SplittingOutput,
)
from .chain import Chain, Sinks
from .environment import TaskEnvironment
from .plan import ChainPlan, StreamNode
from .sampler import Sampler

__all__ = ("start_chain",)


def start_chain(plan: ChainPlan, environment: TaskEnvironment, sinks: Sinks) -> Chain:
    """The chain of a plan in a task, whichever entry point it came through; it works once it `run`s.

    Operators are made from the tail to the head, each with its output to those made before it.
    """
    made = Chain(environment.loop, environment.partition, plan.latency_interval)
    builder = _Builder(plan, dataclasses.replace(environment, fail=made.fail), sinks, made)
    made.head = builder.build()
    made.operators = [*builder.operators.values(), *([] if plan.head else [made.head])]
    made.upstream = builder.upstream()
    made.at_end = sinks.close
    made.counted = builder.counted()
    made.sampler = Sampler(environment.loop, environment.clock, environment.spark_thread)
    return made


class _Builder:
    """Makes the operators of one chain, once."""

    # From the tail to the head, because an output is given to its operator when that is made, and knows those behind
    # it. Only asking for more goes the other way: `_resume` finds those before an operator when it is called, by then
    # they are there. So no operator is ever half made, and none has to be told later who its neighbours are.
    #
    # operators: one for each node made so far; all readers of a node are made before it
    # _buffered: those of them that can hold back rows, and the source: between these `_resume` goes
    # _instances: by identity, since two equal objects of the user's are still two

    def __init__(self, plan: ChainPlan, environment: TaskEnvironment, sinks: Sinks, chain: Chain) -> None:
        self._plan = plan
        self._environment = environment
        self._sinks = sinks
        self._chain = chain
        self._names = _names(plan)
        self._instances: set[int] = set()  # of the users' objects that an operator has already
        self.operators: dict[StreamNode, ChainedOperator] = {}
        self._buffered: dict[StreamNode, BufferedOperator] = {}

    def build(self) -> BufferedOperator:
        """Make all operators; returns the one that is fed."""
        start, head = self._plan.start, self._plan.head
        for node in reversed(self._plan.nodes[self._plan.nodes.index(start) + 1 :]):
            request_batch = self._environment.request_batch if node is head else partial(self._resume, node)
            operator = self.operators[node] = self._operator(node, request_batch)
            if isinstance(operator, BufferedOperator):
                self._buffered[node] = operator
        if head is None:  # else the first async operator takes the batches itself: one hand-over less per row
            given = self._environment
            self._buffered[start] = SourceOperator(self._output(start), given.loop, given.request_batch, given.fail)
        return self._buffered[head or start]

    def upstream(self) -> dict[BufferedOperator, list[BufferedOperator]]:
        """Each operator that waits, with those that push rows to it."""
        return {operator: list(self._before(node)) for node, operator in self._buffered.items()}

    def counted(self) -> dict[str, AsyncWaitOperator]:
        """The operators that make calls, by their names, from the head to the tail."""
        made = ((self._names[node], self.operators.get(node)) for node in self._plan.nodes)
        return {name: operator for name, operator in made if isinstance(operator, AsyncWaitOperator)}

    def _operator(self, node: StreamNode, request_batch: Callable[[], None]) -> ChainedOperator:
        factory = node.factory
        assert factory is not None
        if id(factory.instance) in self._instances:  # the same object twice in a chain: each operator has its own
            factory = factory.with_own_instance()
        self._instances.add(id(factory.instance))
        return factory.build(self._environment, self._output(node), node.parents[0].layout, request_batch)

    def _output(self, node: StreamNode) -> Output:
        """What an operator writes to: those that read it in the chain, then those outside."""
        outputs = [self._link(node, child) for child in self._plan.readers_of(node)]
        outputs += self._sinks.outputs(node)
        if len(outputs) == 1 and outputs[0].tag is None:  # by far the most: no loop over one output for each row
            output = outputs[0]
        else:
            output = (BroadcastingOutput if self._plan.object_reuse else CopyingBroadcastingOutput)(outputs)
        if node.factory is not None and node.factory.mixes_sides:
            output = SplittingOutput(output)
        report = partial(self._chain.report_latency, self._names[node], self._sinks.latencies(node))
        return ReportingOutput(output, report)

    def _link(self, node: StreamNode, child: StreamNode) -> Output:
        assert child.factory is not None
        # Each link has a projection of its own: the inputs of a union may be laid out differently.
        copies = child.factory.may_edit(node.layout) and not self._plan.object_reuse
        link = CopyingChainingOutput if copies else ChainingOutput
        return link(self.operators[child].input(), child.factory.project(node.layout))

    def _resume(self, node: StreamNode) -> None:
        """An operator has room again: let those that push to it go on."""
        for operator in self._before(node):
            operator.resume()

    def _before(self, node: StreamNode) -> Iterator[BufferedOperator]:
        """The nearest operators upstream that wait; what stands between hands rows on at once."""
        for parent in node.parents:
            if parent in self._buffered:
                yield self._buffered[parent]
            else:
                yield from self._before(parent)


def _names(plan: ChainPlan) -> dict[StreamNode, str]:
    """A name for each operator; one that is there again has a number."""
    names: dict[StreamNode, str] = {}
    for node in plan.nodes:
        name = "source" if node.factory is None else node.factory.name
        numbered = (f"{name} {number}" for number in count(2))
        names[node] = next(one for one in chain((name,), numbered) if one not in names.values())
    return names
