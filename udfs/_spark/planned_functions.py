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
from .._policies.planned_calls import Bounds
from .column import ColumnTask
from .map_in_arrow import ChainTask
from .table_function import TableTask, table_arguments

__all__ = ("ALL", "ANY", "HIDDEN", "OURS", "SOME", "PlannedFunction", "functions_of")

OURS = b"asyncudf._spark."  # what is planned names its class so, and nothing else does in a place of its own
ALL, SOME, ANY = Bounds(1, 1), Bounds(0, 1), Bounds[int](0, None)  # rows that come out for a row that goes in


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedFunction:
    """A function that a node of a plan calls.

    Args:
        name: its own, whatever it is called in SQL; of one that cannot be read, Spark's.
        function_plan: None if it could not be read.
        arguments: positions among the arguments of the node, or names of columns; None where they are made in between.
        gets: how many rows come to it for a row that comes to the node.
        gives: how many rows come out of the node for a row that comes to it.
        number: among the functions of the node.
    """

    name: str
    entry_point: str
    function_plan: FunctionPlan | None
    arguments: tuple[int | str, ...] | None
    gets: Bounds[int] = ALL
    gives: Bounds[int] = ALL
    number: int = 0


HIDDEN = PlannedFunction("", "hidden", None, None, ANY, ANY)  # what cannot be looked into, and may call


def functions_of(name: str, command: bytes, *, width: int, analyzed: bytes | None = None) -> list[PlannedFunction]:
    """The functions that a node calls; of a chain all of its async operators, from the head to the tail.

    Args:
        name: Spark's, for one that cannot be read.
        command: as Spark sends it to the executors.
        width: how many arguments a column has.
        analyzed: what the planning of a table function has told.
    """
    if OURS not in command:
        return []
    try:
        found = cloudpickle.loads(command)
        task = found[0] if isinstance(found, tuple) else found
        task = getattr(task, "function", getattr(task, "table_task", task))
        if isinstance(task, ColumnTask):
            return [PlannedFunction(task.function_plan.spec.name, "column", task.function_plan, tuple(range(width)))]
        if isinstance(task, ChainTask):
            is_stream = len(task.results) == 1 and task.results[0].tag is None
            return list(_of_chain(task.plan, _flow_to(task.results[0].node) if is_stream else ANY))
        if isinstance(task, TableTask):
            names = None if analyzed is None else table_arguments(pickle.loads(analyzed))
            plan = task.function_plan
            return [PlannedFunction(plan.spec.name, "table function", plan, names, gives=ANY)]
    except Exception:  # what the user's function takes with it can be read on an executor only
        flow = ANY if ChainTask.__name__.encode() in command else ALL  # of a chain, filters may be before it
        return [PlannedFunction(name, "unknown", None, None, flow, flow)]
    return []  # reads side outputs


def _of_chain(plan: ChainPlan, gives: Bounds[int]) -> Iterator[PlannedFunction]:
    columns = len(plan.nodes[0].layout.arrow_types)
    for number, node in enumerate(plan.nodes):
        if isinstance(node.factory, WaitFactory):
            (parent,) = node.parents
            flow, factory = _flow_to(parent), node.factory
            is_source = parent.layout.source_names is not None and all(at < columns for at in factory.positions)
            arguments = factory.positions if is_source and flow == ALL else None
            yield PlannedFunction(factory.name, "operator", factory.function_plan, arguments, flow, gives, number)


def _flow_to(node: StreamNode) -> Bounds[int]:
    """How many rows a stream has for a row of its source."""
    if node.factory is None:
        return ALL
    return _flow_to(node.parents[0]) * _flow_through(node.factory) if len(node.parents) == 1 else ANY


def _flow_through(factory: Any) -> Bounds[int]:
    match factory:
        case WaitFactory(function_plan=plan):
            may_drop = plan.options.on_error is OnError.DEAD_LETTER
            return ANY if plan.spec.many_results else SOME if may_drop else ALL
        case AssignFactory() | WatermarkColumnFactory() | ProcessFactory(function=MapFunction()):
            return ALL
        case ProcessFactory():
            return ANY
    return SOME  # a filter
