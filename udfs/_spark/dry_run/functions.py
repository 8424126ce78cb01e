"""The async functions of a node of the plan, unpickled from what Spark would send to the executors."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle

from ..._chain.factories import AssignFactory, ProcessFactory, WaitFactory, WatermarkColumnFactory
from ..._chain.function_plan import FunctionPlan
from ..._chain.plan import ChainPlan, StreamNode
from ..._functions.process_function import MapFunction
from ..._functions.signature import batch_rows
from ..._policies.options import OnError, OnNullInput, Options
from ..._policies.planned_calls import Bounds
from ..column import ColumnTask
from ..map_in_arrow import ChainTask
from ..table_function import TableTask, table_arguments

OURS = b"asyncudf._spark."  # the module of a pickled task of ours
ALL, SOME, ANY = Bounds(1, 1), Bounds(0, 1), Bounds[int](0, None)  # rows that come out for each row that goes in


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedFunction:
    """A function that a node of a plan calls.

    Args:
        name: the function's own name, not its name in SQL; Spark's name if the function cannot be unpickled.
        function_plan: None if the function cannot be unpickled.
        arguments: positions among the arguments of the node, or names of columns; None if the chain makes them.
        names: of the arguments, for a function that gets them as a dict.
        gets: how many rows the function gets for each row that the node reads.
        gives: how many rows the node gives for each row that it reads.
        number: the function's position in its chain.
    """

    name: str
    entry_point: str
    function_plan: FunctionPlan | None
    arguments: tuple[int | str, ...] | None
    gets: Bounds[int] = ALL
    gives: Bounds[int] = ALL
    number: int = 0
    names: tuple[str, ...] | None = None

    @property
    def options(self) -> Options | None:
        """None if the function cannot be unpickled."""
        return None if self.function_plan is None else self.function_plan.options

    @property
    def rows_per_call(self) -> int:
        """How many rows a call takes at most."""
        return 1 if self.function_plan is None else batch_rows(self.function_plan.spec, self.function_plan.options)

    @property
    def skips_nulls(self) -> bool:
        """Whether rows with a NULL argument make no call."""
        return self.options is not None and self.options.on_null_input is OnNullInput.NULL


HIDDEN = PlannedFunction("", "hidden", None, None, ANY, ANY)  # may call, and cannot be read


def functions_of(name: str, command: bytes, *, width: int, analyzed: bytes | None = None) -> list[PlannedFunction]:
    """The functions in a command: one, or all async operators of a chain from the head to the tail.

    Args:
        name: Spark's name, for a function that cannot be unpickled.
        command: the pickled function, as Spark sends it to the executors.
        width: the number of arguments of a column function.
        analyzed: the pickled result of a table function's `analyze`.
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
            return [PlannedFunction(plan.spec.name, "table function", plan, names, gives=ANY, names=names)]
    except Exception:  # the user's function may hold objects that only an executor can unpickle
        flow = ANY if ChainTask.__name__.encode() in command else ALL  # a chain may filter the rows first
        return [PlannedFunction(name, "unknown", None, None, flow, flow)]
    return []  # a reader of side outputs


def _of_chain(plan: ChainPlan, gives: Bounds[int]) -> Iterator[PlannedFunction]:
    columns = len(plan.nodes[0].layout.arrow_types)
    for number, node in enumerate(plan.nodes):
        if isinstance(node.factory, WaitFactory):
            (parent,) = node.parents
            flow, factory = _flow_to(parent), node.factory
            is_source = parent.layout.source_names is not None and all(at < columns for at in factory.positions)
            arguments = factory.positions if is_source and flow == ALL else None
            called, names = factory.function_plan, factory.names
            yield PlannedFunction(factory.name, "operator", called, arguments, flow, gives, number, names)


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
