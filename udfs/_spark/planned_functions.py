"""The async functions in Spark's plans: found in what Spark would send to the executors, and not called."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle

from .._chain.factories import AssignFactory, ProcessFactory, WaitFactory, WatermarkColumnFactory
from .._chain.function_plan import FunctionPlan
from .._chain.plan import ChainPlan, StreamNode
from .._functions.process_function import MapFunction
from .._policies.options import OnError
from .._policies.planned_calls import Flow
from .column import ColumnTask
from .map_in_arrow import ChainTask
from .table_function import TableFunction, table_arguments

__all__ = ("PlannedFunction", "functions_of", "gives", "may_be_ours")

OURS = b"asyncudf._spark."  # what is planned names its class so, and nothing else does in a place of its own


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedFunction:
    """A function that a node of a plan calls.

    Args:
        name: its own, whatever it is called in SQL; of one that cannot be read, Spark's.
        function_plan: None if it could not be read.
        arguments: positions among the arguments or columns of the node; None where they are made in between.
        use: tells two mentions in a query from two copies of one.
        gets: how many rows come to it for those that come to the node.
        columns: the names of what it reads, for people.
        over: equal for two mentions that ask for the same arguments.
    """

    name: str
    entry_point: str
    function_plan: FunctionPlan | None
    arguments: tuple[int | str, ...] | None
    use: Any
    gets: Flow = Flow.SAME
    columns: tuple[str, ...] = ()
    over: Any = None


def may_be_ours(command: bytes) -> bool:
    """Whether a pickled command is a function of this library."""
    return OURS in command


def functions_of(
    name: str, command: bytes, *, width: int, use: Any, analyzed: bytes | None = None
) -> list[PlannedFunction]:
    """The functions that a node calls; of a chain all of its async operators, from the head to the tail.

    Args:
        name: Spark's, for one that cannot be read.
        command: as Spark sends it to the executors.
        width: how many arguments a column has.
        use: as in `PlannedFunction`.
        analyzed: what the planning of a table function has told.
    """
    if not may_be_ours(command):
        return []
    try:
        found = cloudpickle.loads(command)
        task = found[0] if isinstance(found, tuple) else found
        if isinstance(task, ColumnTask):
            plan = task.function_plan
            return [PlannedFunction(plan.spec.name, "column", plan, tuple(range(width)), use)]
        if isinstance(task, ChainTask):
            return list(_of_chain(task.plan, use))
        if isinstance(task, type) and issubclass(task, TableFunction):
            names = None if analyzed is None else table_arguments(pickle.loads(analyzed))
            plan = task.function_plan
            return [PlannedFunction(plan.spec.name, "table function", plan, names, use)]
    except Exception:  # what the user's function takes with it can be read on an executor only
        gets = (
            Flow.UNKNOWN if ChainTask.__name__.encode() in command else Flow.SAME
        )  # of a chain, filters may be before
        return [PlannedFunction(name, "unknown", None, None, use, gets)]
    return []  # reads side outputs


def _of_chain(plan: ChainPlan, use: Any) -> Iterator[PlannedFunction]:
    columns = len(plan.nodes[0].layout.arrow_types)
    for node in plan.nodes:
        if isinstance(node.factory, WaitFactory):
            (parent,) = node.parents
            flow, factory = _flow_to(parent), node.factory
            is_source = parent.layout.source_names is not None and all(at < columns for at in factory.positions)
            arguments = factory.positions if is_source and flow is Flow.SAME else None
            use_of_node = (use, plan.nodes.index(node))
            yield PlannedFunction(factory.name, "operator", factory.function_plan, arguments, use_of_node, flow)


def gives(command: bytes) -> Flow:
    """How many rows come out of a chain for those that go in."""
    try:
        task = cloudpickle.loads(command)[0]
        if isinstance(task, ChainTask) and len(task.results) == 1 and task.results[0].tag is None:
            return _flow_to(task.results[0].node)
    except Exception:
        pass
    return Flow.UNKNOWN


def _flow_to(node: StreamNode) -> Flow:
    """How many rows a stream has for those of its source."""
    if node.factory is None:
        return Flow.SAME
    if len(node.parents) != 1:
        return Flow.UNKNOWN
    before, own = _flow_to(node.parents[0]), _flow_through(node.factory)
    if Flow.UNKNOWN in (before, own):
        return Flow.UNKNOWN
    return Flow.FEWER if Flow.FEWER in (before, own) else Flow.SAME


def _flow_through(factory: Any) -> Flow:
    match factory:
        case WaitFactory(function_plan=plan):
            if plan.spec.many_results:
                return Flow.UNKNOWN
            return Flow.FEWER if plan.options.on_error is OnError.DEAD_LETTER else Flow.SAME
        case AssignFactory() | WatermarkColumnFactory():
            return Flow.SAME
        case ProcessFactory(function=MapFunction()):
            return Flow.SAME
        case ProcessFactory():
            return Flow.UNKNOWN
    return Flow.FEWER  # a filter
