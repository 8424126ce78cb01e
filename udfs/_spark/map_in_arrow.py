"""A chain as a `mapInArrow` stage, and its results as DataFrames."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from .._chain.chain import Chain
from .._chain.plan import ChainPlan
from .._chain.sinks import ArrowSinks, ResultPlan, SideOutputValidators, are_ambiguous, without_rows
from .._chain.source import SourceReader
from .._functions.side_outputs import OutputTag
from .._loop.bridge import Bridge, pipe
from .monitoring.task_report import TaskReportSpec
from .pickling import with_import_help
from .types import arrow_type, side_output_type, timestamp_type
from .worker import ErrorReporting, start_bridge


@dataclasses.dataclass(frozen=True)
class ChainTask:
    """The worker's side of a chain, for `mapInArrow`."""

    plan: ChainPlan
    results: tuple[ResultPlan, ...]
    timestamp: str  # the type that `timestamp` means in the DDL of side outputs that are not read yet
    token: str  # differs for each evaluation: Spark would persist equal ones once, and serve both from it
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)
    report_spec: TaskReportSpec = dataclasses.field(default_factory=lambda: TaskReportSpec("operator"))

    def __reduce__(self) -> Any:
        return with_import_help(self)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Another chain sends empty batches as a sign of life. The first batch says how large batches are, so drop them.
        filled = (batch for batch in batches if batch.num_rows)
        with self.error_reporting():
            yield from pipe(filled, self._start, SourceReader(self.plan))

    def side_output_type(self, tag: OutputTag) -> Any:
        """The Arrow type of a side output's rows."""
        return side_output_type(tag, self.timestamp)

    def _start(
        self, first: pa.RecordBatch, waited: float, built: Callable[[Chain], None] = lambda chain: None
    ) -> Bridge[Any, pa.RecordBatch]:
        def sinks_of(loop: asyncio.AbstractEventLoop, emit: Callable[[pa.RecordBatch], None]) -> ArrowSinks:
            return ArrowSinks(self.results, emit, first.num_rows, loop, self.side_output_type)

        nothing = partial(without_rows, self.results, first.schema)
        side_types = SideOutputValidators(self.side_output_type, self.results)
        return start_bridge(self.plan, sinks_of, nothing, self.report_spec, side_types, waited, built)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One stage that gives the results that are read of a chain, not bound to a DataFrame yet.

    A single result is its DataFrame. Several results are a `TaggedUnion`, from which `result_frame` takes each.

    Args:
        schema: the schema of the task's batches, for Spark.
        names: the names of the columns in the end.
        numbers: the number of each result in the tagged union.
    """

    task: ChainTask
    schema: spark.StructType
    names: Sequence[str]
    numbers: Mapping[ResultPlan, int]

    def over(self, df: DataFrame) -> DataFrame:
        """The stage over a DataFrame of the chain's source."""
        # PySpark finds columns by name, which fails for some names. So we rename these columns to their positions.
        plain = df.toDF(*map(str, range(len(df.columns)))) if are_ambiguous(df.columns) else df
        frame = plain.mapInArrow(self.task, self.schema)
        return frame if self.schema.names == self.names else frame.toDF(*self.names)


def plan_evaluation(results: Sequence[ResultPlan], *, object_reuse: bool, latency_interval: float | None) -> Evaluation:
    """The evaluation that gives these results.

    Raises:
        FunctionError: there are several results, and a column of one has a type that Arrow does not know.
    """
    nodes = tuple(dict.fromkeys(node for result in results for node in result.node.path()))
    plan = ChainPlan(nodes, any(r.node is nodes[0] for r in results), object_reuse, latency_interval)
    task = ChainTask(plan, tuple(results), timestamp_type(), uuid.uuid4().hex)
    numbers = {result: number for number, result in enumerate(results)}
    if len(results) == 1:
        schema = results[0].schema
        return Evaluation(task, _numbered(schema) if are_ambiguous(schema.names) else schema, schema.names, numbers)
    tagged_union = spark.StructType().add("result", "integer")
    for result, number in numbers.items():
        for field in result.schema.fields:
            arrow_type(field.dataType, f"column {field.name!r}")
        tagged_union = tagged_union.add(f"r{number}", _numbered(result.schema))
    return Evaluation(task, tagged_union, tagged_union.names, numbers)


def _numbered(schema: spark.StructType) -> spark.StructType:
    """The fields named by position: some names do not survive a struct, and equal names do not fit one DataFrame."""
    return spark.StructType([spark.StructField(str(i), f.dataType, True) for i, f in enumerate(schema.fields)])
