"""A chain as a `mapInArrow` stage, and its results as DataFrames."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from ._bridge import Bridge
from ._chain import Chain, Plan, build_chain
from ._ends import ArrowSinks, Envelope, Plain, Request, SideKinds, SourceReader
from ._errors import FunctionError
from ._spark import arrow_type, tag_kind, task_of
from ._spark_operator import rows_type
from ._specs import Node, Site
from ._tags import DEAD_LETTERS, OutputTag
from ._task import pipe

__all__ = ("Read", "evaluate", "frame_of", "schema_of", "unpacked")

REST = spark.StructType().add("tag", "string").add("rows", "binary")


@dataclasses.dataclass(frozen=True)
class Read:
    """What is read of a chain: a stream, or with a tag the side output of all operators on the way to it.

    `rest`: all side outputs of the user's, packed, because they are not known before somebody asks.
    """

    node: Node
    tag: OutputTag | None = None
    rest: bool = False


@dataclasses.dataclass(frozen=True)
class ChainTask:
    """The worker's side of a chain, for `mapInArrow`."""

    plan: Plan
    requests: tuple[Request, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        return pipe(filled, self._start, SourceReader(self.plan))

    def _start(self, first: pa.RecordBatch) -> Bridge[Any, pa.RecordBatch]:
        partition, attempt = task_of()

        def build(loop: Any, want: Callable[[], None], emit: Callable[[pa.RecordBatch], None]) -> Chain:
            side_types = SideKinds(tag_kind, self.requests)
            site = Site(loop, random.Random(), partition, attempt, side_types)
            sinks = ArrowSinks(self.requests, emit, first.num_rows, loop, tag_kind)
            return build_chain(self.plan, site, sinks, want)

        return Bridge(build, self.plan.threads)


def evaluate(
    df: DataFrame, reads: Sequence[Read], *, object_reuse: bool, latency_interval: float | None
) -> tuple[DataFrame, Mapping[Read, int]]:
    """One stage that gives all that is read, and the number under which each is found; see `frame_of`.

    Of a single read the DataFrame is what was asked for, else an envelope of them all.
    """
    schemas = [schema_of(read) for read in reads]
    kinds = tuple(arrow_type(_nullable(schema), "a result") for schema in schemas)
    alone = len(reads) == 1
    requests = tuple(
        Request(read.node, read.tag, kind, Plain(tuple(kind.names)) if alone else Envelope(number, kinds), read.rest)
        for number, (read, kind) in enumerate(zip(reads, kinds, strict=True))
    )
    nodes = tuple(dict.fromkeys(node for read in reads for node in read.node.path()))
    plan = Plan(nodes, any(r.node is nodes[0] for r in requests), object_reuse, latency_interval)
    # PySpark finds the columns by name, which fails for names with its own syntax in them; we go by position.
    plain = df if not any(set(".`") & set(name) for name in df.columns) else df.toDF(*map(str, range(len(df.columns))))
    schema = schemas[0]
    if not alone:
        schema = spark.StructType().add("result", "integer")
        for number, one in enumerate(schemas):
            schema = schema.add(f"r{number}", _nullable(one))
    return plain.mapInArrow(ChainTask(plan, requests), schema), {read: i for i, read in enumerate(reads)}


def _nullable(schema: spark.StructType) -> spark.StructType:
    return spark.StructType([spark.StructField(field.name, field.dataType, True) for field in schema.fields])


def frame_of(envelope: DataFrame, number: int) -> DataFrame:
    """One result out of an envelope."""
    return envelope.where(sf.col("result") == number).select(f"r{number}.*")


def schema_of(read: Read) -> spark.StructType:
    """The columns of what is read.

    Raises:
        FunctionError: the operators on the way write different columns of the same name.
    """
    if read.rest:
        return REST
    if read.tag is None:
        return read.node.schema  # type: ignore[no-any-return]
    columns: dict[str, spark.StructField] = {}
    if read.tag == DEAD_LETTERS:  # the inputs of all operators that may write any
        for node in read.node.path():
            if node.spec is not None and node.spec.may_write(DEAD_LETTERS):
                for field in node.parents[0].schema.fields:
                    _merge(columns, field, node.spec.name)
    declared = rows_type(read.tag.schema, f"side output {read.tag.name!r}")[0]
    return spark.StructType([*columns.values(), *declared.fields])


def _merge(columns: dict[str, spark.StructField], field: spark.StructField, name: str) -> None:
    known = columns.setdefault(field.name, field)
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
    kinds: tuple[Any, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                with pa.ipc.open_stream(packed.as_py()) as stream:
                    if tuple(stream.schema.types) != self.kinds:
                        raise FunctionError(
                            f"the side output {self.name!r} was written as ({_spoken(stream.schema.types)}) and is "
                            f"read as ({_spoken(self.kinds)}); use the same OutputTag for both"
                        )
                    yield from stream


def _spoken(kinds: Sequence[Any]) -> str:
    return ", ".join(map(str, kinds))


def unpacked(envelope: DataFrame, number: int, tag: OutputTag) -> DataFrame:
    """The rows of a tag out of the packed ones."""
    packed = frame_of(envelope, number).where(sf.col("tag") == tag.name).select("rows")
    schema, part = rows_type(tag.schema, f"side output {tag.name!r}")
    return packed.mapInArrow(Unpack(tag.name, tuple(part.kinds)), schema)
