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

from .._chain.plan import ChainPlan
from .._chain.result_plan import ResultPlan, SideOutputValidators, SingleResult, TaggedUnion
from .._chain.sinks import ArrowSinks, without_rows
from .._chain.source import SourceReader
from .._errors.exceptions import FunctionError
from .._functions.side_outputs import OutputTag
from .._loop.bridge import Bridge, pipe
from .errors import Telling
from .results import Read, schema_of
from .schemas import rows_type
from .types import arrow_type, side_output_type, timestamp_type
from .worker import start_bridge

__all__ = (
    "ChainTask",
    "evaluate",
)


@dataclasses.dataclass(frozen=True)
class ChainTask:
    """The worker's side of a chain, for `mapInArrow`."""

    plan: ChainPlan
    requests: tuple[ResultPlan, ...]
    timestamp: str  # what that word means in the DDL of side outputs that nobody has asked for yet
    token: str  # makes each evaluation one of its own: of equal ones Spark would keep a single one for both
    telling: Telling = dataclasses.field(default_factory=Telling)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        with self.telling():
            yield from pipe(filled, self._start, SourceReader(self.plan))

    def side_output_type(self, tag: OutputTag) -> Any:
        """The Arrow type of a side output's rows."""
        return side_output_type(tag, self.timestamp)

    def _start(self, first: pa.RecordBatch) -> Bridge[Any, pa.RecordBatch]:
        def sinks_of(loop: asyncio.AbstractEventLoop, emit: Callable[[pa.RecordBatch], None]) -> ArrowSinks:
            return ArrowSinks(self.requests, emit, first.num_rows, loop, self.side_output_type)

        nothing = partial(without_rows, self.requests[0], first.schema)
        return start_bridge(self.plan, sinks_of, nothing, SideOutputValidators(self.side_output_type, self.requests))


def evaluate(
    df: DataFrame, reads: Sequence[Read], *, object_reuse: bool, latency_interval: float | None
) -> tuple[DataFrame, Mapping[Read, int]]:
    """One stage that gives all that is read, and the number under which each is found; see `result_frame`.

    Of a single read the DataFrame is what was asked for, else an envelope of them all.
    """
    schemas = [schema_of(read) for read in reads]
    alone = len(reads) == 1
    struct_types = tuple(_struct_type(schema, alone) for schema in schemas)
    requests = tuple(
        ResultPlan(read.node, read.tag, struct_type, _seal(number, struct_types), _written(read), read.undeclared)
        for number, (read, struct_type) in enumerate(zip(reads, struct_types, strict=True))
    )
    nodes = tuple(dict.fromkeys(node for read in reads for node in read.node.path()))
    plan = ChainPlan(nodes, any(r.node is nodes[0] for r in requests), object_reuse, latency_interval)
    # PySpark finds the columns by name, which fails for some names; we go by position.
    plain = df.toDF(*map(str, range(len(df.columns)))) if _are_ambiguous(df.columns) else df
    task = ChainTask(plan, requests, timestamp_type(), uuid.uuid4().hex)
    return _mapped(plain, task, schemas), {read: number for number, read in enumerate(reads)}


def _mapped(df: DataFrame, task: ChainTask, schemas: Sequence[spark.StructType]) -> DataFrame:
    if len(schemas) > 1:
        schema = spark.StructType().add("result", "integer")
        for number, one in enumerate(schemas):
            schema = schema.add(f"r{number}", _numbered(one))
        return df.mapInArrow(task, schema)
    (schema,) = schemas
    if not _are_ambiguous(schema.names):
        return df.mapInArrow(task, schema)
    return df.mapInArrow(task, _numbered(schema)).toDF(*schema.names)


def _numbered(schema: spark.StructType) -> spark.StructType:
    """The fields by position: not every name finds its way through a struct, or into one DataFrame with its equals."""
    return spark.StructType([spark.StructField(str(i), f.dataType, True) for i, f in enumerate(schema.fields)])


def _are_ambiguous(names: Sequence[str]) -> bool:
    return len({name.lower() for name in names}) < len(names) or any(set(".`") & set(name) for name in names)


def _seal(number: int, struct_types: Sequence[Any]) -> SingleResult | TaggedUnion:
    if len(struct_types) > 1:
        return TaggedUnion(number, tuple(map(_numbered_type, struct_types)))
    struct_type = struct_types[number]
    return SingleResult(
        tuple((_numbered_type(struct_type) if _are_ambiguous(struct_type.names) else struct_type).names)
    )


def _numbered_type(struct_type: Any) -> Any:
    return pa.struct([(str(i), struct_type.field(i).type) for i in range(struct_type.num_fields)])


def _written(read: Read) -> Any:
    return None if read.tag is None else rows_type(read.tag.schema, f"side output {read.tag.name!r}")[1].arrow_type


def _struct_type(schema: spark.StructType, alone: bool) -> Any:
    """The Arrow struct of a result; alone, a column that Arrow does not know is Spark's business."""
    struct_types = []
    for field in schema.fields:
        try:
            struct_type = arrow_type(field.dataType, f"column {field.name!r}")
        except FunctionError:
            if not alone:
                raise
            struct_type = pa.null()
        struct_types.append(pa.field(field.name, struct_type))
    return pa.struct(struct_types)
