"""What is read of a chain, as DataFrames."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._chain.plan import StreamNode
from .._chain.result_plan import ResultPlan
from .._errors.exceptions import FunctionError
from .._functions.side_outputs import DEAD_LETTERS, OutputTag
from .errors import ErrorReporting
from .schemas import arrow_type_or_none, rows_type

__all__ = ("result_frame", "result_plan", "unpacked")


UNDECLARED = spark.StructType().add("tag", "string").add("rows", "binary")


def result_plan(node: StreamNode, tag: OutputTag | None = None, *, undeclared: bool = False) -> ResultPlan:
    """What is read of a chain; see `ResultPlan`.

    Raises:
        FunctionError: the operators on the way write different columns of the same name.
    """
    schema, written = node.schema, None
    if undeclared:
        schema = UNDECLARED
    elif tag is not None:
        inputs = _inputs_of_dead_letters(node) if tag == DEAD_LETTERS else []
        declared, group = rows_type(tag.schema, f"side output {tag.name!r}")
        schema, written = spark.StructType([*inputs, *declared.fields]), group.arrow_type
    arrow_types = [arrow_type_or_none(field) for field in schema.fields]
    fields = zip(schema.names, (pa.null() if one is None else one for one in arrow_types), strict=True)
    return ResultPlan(node, tag, undeclared, schema, pa.struct(fields), written)


def result_frame(tagged_union: DataFrame, number: int, result: ResultPlan) -> DataFrame:
    """One result out of a `TaggedUnion` of several."""
    return tagged_union.where(sf.col("result") == number).select(f"r{number}.*").toDF(*result.schema.names)


def _inputs_of_dead_letters(last: StreamNode) -> Sequence[spark.StructField]:
    """The columns of all operators that may write dead letters."""
    # Those of one operator as they are, also two of one name; of several only together, one for each name.
    writers = [node for node in last.path() if node.factory is not None and node.factory.may_write(DEAD_LETTERS)]
    if len(writers) == 1:
        return writers[0].parents[0].schema.fields  # type: ignore[no-any-return]
    columns: dict[str, spark.StructField] = {}
    for node in writers:
        assert node.factory is not None
        for field in node.parents[0].schema.fields:
            _merge(columns, field, node.factory.name)
    return list(columns.values())


def _merge(columns: dict[str, spark.StructField], field: spark.StructField, name: str) -> None:
    """Add a column, or check that it is the one of that name already."""
    known = columns.setdefault(field.name.lower(), field)
    if known.dataType != field.dataType:
        raise FunctionError(
            f"the dead letters of this stream cannot be one table: column {field.name!r} is "
            f"{known.dataType.simpleString()} before {name} and {field.dataType.simpleString()} at it; "
            "rename it, or read the side outputs of the stream before the change"
        )


@dataclasses.dataclass(frozen=True)
class Unpack:
    """The worker's side of reading a side output that nobody had asked for when it was written."""

    name: str
    arrow_types: tuple[Any, ...]
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                with self.error_reporting(), pa.ipc.open_stream(packed.as_py()) as stream:
                    if tuple(stream.schema.types) != self.arrow_types:
                        raise FunctionError(
                            f"the side output {self.name!r} was written as ({_spoken(stream.schema.types)}) and is "
                            f"read as ({_spoken(self.arrow_types)}); use the same OutputTag for both"
                        )
                    yield from stream


def _spoken(arrow_types: Sequence[Any]) -> str:
    return ", ".join(map(str, arrow_types))


def unpacked(packed: DataFrame, tag: OutputTag) -> DataFrame:
    """The rows of a tag out of those of all undeclared side outputs."""
    rows = packed.where(sf.col("tag") == tag.name).select("rows")
    schema, group = rows_type(tag.schema, f"side output {tag.name!r}")
    return rows.mapInArrow(Unpack(tag.name, tuple(group.arrow_types)), schema)
