"""The plan of a chain, which travels to the executors: its streams, and the operators between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from .._arrow.layout import RowLayout
from .._errors.exceptions import FunctionError
from .._policies.options import EventLoop
from .factories import AssignFactory, OperatorFactory, WaitFactory
from .function_plan import FunctionPlan


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """A chain that does not run yet.

    Args:
        nodes: all streams that are needed, the source first, each after those that it reads.
        is_source_read: whether the source's own rows are among the results of the chain.
        object_reuse: whether operators may see one another's objects instead of copies.
        latency_interval: seconds between two latency markers; None: none are made.
    """

    # Plain data: no DataFrame, no session, no loop. So it can travel, each task makes a running chain of its own, and
    # the test kit runs the same one without Spark.

    nodes: tuple[StreamNode, ...]
    is_source_read: bool = False
    object_reuse: bool = False
    latency_interval: float | None = None

    @classmethod
    def of_function(cls, plan: FunctionPlan, names: Sequence[str], arrow_types: Sequence[Any]) -> ChainPlan:
        """A function alone: a column, a table function, the test kit.

        Args:
            names: of the columns that it reads.
            arrow_types: of these columns; None where they are not declared.
        """
        source = StreamNode(None, (), RowLayout(tuple(names), tuple(arrow_types)), None)
        factory = WaitFactory(plan, tuple(range(len(arrow_types))), tuple(names))
        return cls((source, StreamNode(factory, (source,), source.layout, None)))

    def __post_init__(self) -> None:
        self.loop  # noqa: B018 - raises where the chain is planned, not on an executor

    @property
    def threads(self) -> int:
        """How many calls may need a thread at the same time."""
        return max(1, sum(node.factory.threads for node in self.nodes if node.factory is not None))

    @property
    def functions(self) -> list[FunctionPlan]:
        """The functions that make calls, from the head to the tail."""
        return [node.factory.function_plan for node in self.nodes if isinstance(node.factory, WaitFactory)]

    @property
    def loop(self) -> EventLoop:
        """The event loop that the operators ask for.

        Raises:
            FunctionError: one asks for uvloop and another for asyncio.
        """
        asked = {node.factory.loop for node in self.nodes if node.factory is not None} - {EventLoop.AUTO}
        if len(asked) > 1:
            raise FunctionError("the operators of a chain share one event loop; give all of them the same loop=")
        return asked.pop() if asked else EventLoop.AUTO

    def readers_of(self, node: StreamNode) -> list[StreamNode]:
        """The streams that read a stream; one that reads it twice is there twice."""
        return [child for child in self.nodes for parent in child.parents if parent is node]

    @property
    def start(self) -> StreamNode:
        """The first stream of which rows pass one by one: the source, or the source with its watermarks."""
        readers = self.readers_of(self.nodes[0])
        if len(readers) == 1 and not self.is_source_read:
            factory = readers[0].factory
            if isinstance(factory, AssignFactory) and factory.strategy.idleness is None:
                return readers[0]
        return self.nodes[0]

    @property
    def head(self) -> StreamNode | None:
        """The async operator that can be fed with whole batches, if the chain begins with one and nothing else."""
        readers = self.readers_of(self.start)
        is_read = self.is_source_read and self.start is self.nodes[0]
        return readers[0] if len(readers) == 1 and not is_read and isinstance(readers[0].factory, WaitFactory) else None


@dataclasses.dataclass(frozen=True, eq=False)
class StreamNode:
    """A stream in a plan: the operator that makes it, and the streams that the operator reads.

    `factory` is None for the source. Nodes are compared by identity.
    """

    # A node knows the nodes before it and never those behind it. So it is frozen, both branches of a stream share the
    # nodes before them, and streams that are not read are in no plan. By identity, since two equal operators are two.

    factory: OperatorFactory | None
    parents: tuple[StreamNode, ...]
    layout: RowLayout  # of its rows
    schema: Any  # the same as a Spark StructType, for planning

    def path(self) -> Iterator[StreamNode]:
        """The node and all before it, each once, each after the nodes that it reads."""
        seen: set[StreamNode] = set()

        def visit(node: StreamNode) -> Iterator[StreamNode]:
            if node not in seen:
                seen.add(node)
                for parent in node.parents:
                    yield from visit(parent)
                yield node

        return visit(self)
