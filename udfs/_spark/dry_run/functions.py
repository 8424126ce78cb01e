"""The async functions of a node of the plan, and what the `cost` functions of their rate limits say of its rows."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame

from ..._arrow.rows import rows_of
from ..._chain.function_plan import FunctionPlan
from ..._chain.plan import (
    AssignFactory,
    ChainPlan,
    ProcessFactory,
    StreamNode,
    WaitFactory,
    WatermarkColumnFactory,
)
from ..._engine.calls.invokers import Costs
from ..._errors.records import error_text, is_fatal
from ..._errors.safe import one_line
from ..._functions.options import OnNullInput, Options
from ..._functions.process_function import MapFunction
from ..._functions.signature import batch_rows
from ..._observe.planned_calls import Bounds, RowCosts
from ..column import ColumnTask
from ..evaluations import ChainTask
from ..pickling import with_import_help
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
            may_drop = plan.options.writes_dead_letters
            return ANY if plan.spec.many_results else SOME if may_drop else ALL
        case AssignFactory() | WatermarkColumnFactory() | ProcessFactory(function=MapFunction()):
            return ALL
        case ProcessFactory():
            return ANY
    return SOME  # a filter


SUMS = pa.schema(
    {
        "permits": pa.list_(pa.float64()),
        "rows": pa.int64(),
        "failed": pa.int64(),
        "error": pa.string(),
        "ends": pa.string(),
    }
)
IN_SPARK = "permits array<double>, rows bigint, failed bigint, error string, ends string"


def costs_of(function_plan: FunctionPlan, names: Sequence[str] | None, frame: DataFrame, arguments: Column) -> RowCosts:
    """Evaluate the cost functions over the rows of a DataFrame, in one Spark job.

    Args:
        names: the names of the arguments, of a function that gets a row as a dict.
        arguments: the arguments of the function as one struct.
    """
    try:
        costs = frame.select(arguments.alias("a")).mapInArrow(_CostTask(function_plan, names), IN_SPARK)
        parts = costs.collect()
    except Exception as error:  # of many types, as in any job
        return RowCosts(left_out=f"its cost could not be evaluated ({type(error).__name__})")
    if ends := next((part.ends for part in parts if part.ends is not None), None):
        return RowCosts(left_out=f"the job would end with {one_line(ends)}")
    return RowCosts(
        tuple(map(sum, zip(*(part.permits for part in parts), strict=True))),
        sum(part.rows for part in parts),
        sum(part.failed for part in parts),
        next((part.error for part in parts if part.error is not None), None),
    )


@dataclasses.dataclass(frozen=True)
class _CostTask:
    """The worker's side, for `mapInArrow`: a row with the sums of a partition."""

    function_plan: FunctionPlan
    names: Sequence[str] | None

    def __reduce__(self) -> Any:
        return with_import_help(self)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec, options = self.function_plan.spec, self.function_plan.options
        costs = Costs(options.rate_limit, (), spec)
        sums, rows, failed, said, ends = [0.0] * len(options.rate_limit), 0, 0, None, None
        for batch in batches:
            columns = batch.column(0).flatten()
            names = self.names if spec.takes_mapping else None
            for row in rows_of(spec.name, columns, names):
                values = row.values() if isinstance(row, dict) else row
                if options.on_null_input is OnNullInput.NULL and None in values:
                    continue
                try:
                    own = costs.of((row,))
                except BaseException as error:  # code of the user's
                    failed, said = failed + 1, said or error_text(error, redacted=options.redacted)
                    if is_fatal(error):
                        ends = error_text(error, redacted=options.redacted)
                else:
                    rows, sums = rows + 1, [a + b for a, b in zip(sums, own, strict=True)]
        yield pa.RecordBatch.from_pylist(
            [{"permits": sums, "rows": rows, "failed": failed, "error": said, "ends": ends}], schema=SUMS
        )
