"""Makes the running chain of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .._arrow.vectors import VectorCodec
from .._operators.buffered import BufferedOperator, SourceOperator
from .._operators.outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    CountingOutput,
    Output,
    SplittingOutput,
)
from .._operators.watermarks import UnionOperator
from .chain import Chain, Sinks
from .factories import TaskEnvironment, wait_operator
from .function_plan import FunctionPlan
from .plan import ChainPlan, StreamNode

__all__ = ("build_chain", "chain_of_one")


def chain_of_one(
    function_plan: FunctionPlan,
    environment: TaskEnvironment,
    output: Output,
    codec: VectorCodec | None,
    request_batch: Callable[[], None],
    *,
    may_edit: bool,
) -> Chain:
    """The chain of a function without a plan: a column, a table function."""
    chain = Chain(environment, None)
    chain.head = wait_operator(
        function_plan, environment, CountingOutput(output), codec, request_batch, may_edit=may_edit
    )
    chain.operators = [chain.head]
    return chain


def build_chain(
    plan: ChainPlan, environment: TaskEnvironment, sinks: Sinks, request_batch: Callable[[], None]
) -> Chain:
    """Make the operators of a plan, from the tail to the head, each with its output to those made before it."""
    return _Builder(plan, environment, sinks, request_batch).chain


def _names(plan: ChainPlan) -> dict[StreamNode, str]:
    """A name for each operator; one that is there again has a number."""
    names: dict[StreamNode, str] = {}
    for node in plan.nodes:
        name = "source" if node.factory is None else node.factory.name
        again = sum(other.factory is not None and other.factory.name == name for other in names)
        names[node] = f"{name} {again + 1}" if again else name
    return names


class _Builder:
    def __init__(
        self, plan: ChainPlan, environment: TaskEnvironment, sinks: Sinks, request_batch: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._environment = environment
        self._sinks = sinks
        self._operators: dict[StreamNode, Any] = {}
        self.chain = Chain(environment, plan.latency_interval)
        self.chain.at_end = sinks.close
        self._names = _names(plan)
        self._functions: set[int] = set()
        start, head = plan.start, plan.head
        for node in reversed(plan.nodes[plan.nodes.index(start) + 1 :]):
            self._add(node, request_batch if node is head else partial(self._resume, node))
        if head is None:
            self._operators[start] = SourceOperator(
                self._output(start), environment.loop, request_batch, self.chain._fail
            )
        self.chain.operators = list(self._operators.values())
        drivers = {node: made for node, made in self._operators.items() if isinstance(made, BufferedOperator)}
        self.chain.drivers = {driver: list(self._drivers(node)) for node, driver in drivers.items()}
        self.chain.head = self._operators[head or start]

    def _add(self, node: StreamNode, request_batch: Callable[[], None]) -> None:
        factory = node.factory
        assert factory is not None
        if id(factory.instance) in self._functions:  # the same object twice in a chain: each operator has its own
            factory = factory.with_own_instance()
        self._functions.add(id(factory.instance))
        self._operators[node] = factory.build(
            self._environment, self._output(node), node.parents[0].layout, request_batch
        )

    def _output(self, node: StreamNode) -> Output:
        outputs = [self._link(node, child) for child in self._plan.readers_of(node)]
        outputs += self._sinks.outputs(node)
        if len(outputs) == 1 and outputs[0].tag is None:
            output = outputs[0]
        else:
            output = (BroadcastingOutput if self._plan.object_reuse else CopyingBroadcastingOutput)(outputs)
        if node.factory is not None and node.factory.mixes_sides:
            output = SplittingOutput(output)
        told = partial(self.chain.report_latency, self._names[node], self._sinks.latencies(node))
        return CountingOutput(output, told)

    def _link(self, node: StreamNode, child: StreamNode) -> Output:
        factory, operator = child.factory, self._operators[child]
        assert factory is not None
        following = operator.input() if isinstance(operator, UnionOperator) else operator
        copies = factory.may_edit(node.layout) and not self._plan.object_reuse
        return (CopyingChainingOutput if copies else ChainingOutput)(following, factory.project(node.layout))

    def _resume(self, node: StreamNode) -> None:
        """An operator has room again: let those that push to it go on."""
        for driver in self._drivers(node):
            driver.resume()

    def _drivers(self, node: StreamNode) -> Iterator[BufferedOperator]:
        for parent in node.parents:
            operator = self._operators.get(parent)
            if isinstance(operator, BufferedOperator):
                yield operator
            else:
                yield from self._drivers(parent)
