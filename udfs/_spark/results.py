"""What is read of a chain, as DataFrames."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._chain.plan import StreamNode
from .._errors.exceptions import FunctionError
from .._functions.side_outputs import DEAD_LETTERS, OutputTag
from .errors import Telling
from .schemas import rows_type

__all__ = (
    "Read",
    "result_frame",
    "schema_of",
    "unpacked",
)


UNDECLARED = spark.StructType().add("tag", "string").add("rows", "binary")


@dataclasses.dataclass(frozen=True)
class Read:
    """What is read of a chain: a stream, or with a tag the side output of all operators on the way to it.

    `undeclared`: all side outputs of the user's, packed, because they are not known before somebody asks.
    """

    node: StreamNode
    tag: OutputTag | None = None
    undeclared: bool = False


def result_frame(envelope: DataFrame, numbers: Mapping[Read, int], read: Read) -> DataFrame:
    """One result out of an envelope."""
    number = numbers[read]
    return envelope.where(sf.col("result") == number).select(f"r{number}.*").toDF(*schema_of(read).names)


def schema_of(read: Read) -> spark.StructType:
    """The columns of what is read.

    Raises:
        FunctionError: the operators on the way write different columns of the same name.
    """
    if read.undeclared:
        return UNDECLARED
    if read.tag is None:
        return read.node.schema  # type: ignore[no-any-return]
    inputs = _inputs_of_dead_letters(read.node) if read.tag == DEAD_LETTERS else []
    declared = rows_type(read.tag.schema, f"side output {read.tag.name!r}")[0]
    return spark.StructType([*inputs, *declared.fields])


def _inputs_of_dead_letters(last: StreamNode) -> Sequence[spark.StructField]:
    """The columns of all operators that may write dead letters."""
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
    telling: Telling = dataclasses.field(default_factory=Telling)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                with self.telling(), pa.ipc.open_stream(packed.as_py()) as stream:
                    if tuple(stream.schema.types) != self.arrow_types:
                        raise FunctionError(
                            f"the side output {self.name!r} was written as ({_spoken(stream.schema.types)}) and is "
                            f"read as ({_spoken(self.arrow_types)}); use the same OutputTag for both"
                        )
                    yield from stream


def _spoken(arrow_types: Sequence[Any]) -> str:
    return ", ".join(map(str, arrow_types))


def unpacked(envelope: DataFrame, numbers: Mapping[Read, int], undeclared: Read, tag: OutputTag) -> DataFrame:
    """The rows of a tag out of the packed ones."""
    packed = result_frame(envelope, numbers, undeclared).where(sf.col("tag") == tag.name).select("rows")
    schema, group = rows_type(tag.schema, f"side output {tag.name!r}")
    return packed.mapInArrow(Unpack(tag.name, tuple(group.arrow_types)), schema)
