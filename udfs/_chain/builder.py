"""Makes the running chain of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .._arrow.vectors import Codec
from .._operators.buffered import Driver, Source
from .._operators.outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    CountingOutput,
    Output,
    SplittingOutput,
)
from .._operators.watermarks import UnionStep
from .chain import Chain, Sinks
from .factories import Site, wait_operator
from .function_plan import Work
from .plan import Node, Plan

__all__ = (
    "build_chain",
    "chain_of_one",
)


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
