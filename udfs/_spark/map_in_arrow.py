"""A chain as a `mapInArrow` stage, and its results as DataFrames."""

import dataclasses
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from ._arrow import warm_up
from ._bridge import Bridge, Reader
from ._chain import Chain, Plan, build_chain
from ._ends import ArrowSinks, Envelope, Plain, Request, SideKinds, SourceReader, without_rows
from ._errors import FunctionError
from ._loops import new_event_loop
from ._node import Node
from ._spark import arrow_type, tag_kind, task_of, timestamp_type
from ._spark_connection import settler
from ._spark_errors import Telling
from ._spark_operator import rows_type
from ._specs import Site
from ._tags import DEAD_LETTERS, OutputTag
from ._task import pipe

__all__ = ("Read", "evaluate", "result_frame", "schema_of", "unpacked")

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
    timestamp: str  # what that word means in the DDL of side outputs that nobody has asked for yet
    token: str  # makes each evaluation one of its own: of equal ones Spark would keep a single one for both
    telling: Telling = dataclasses.field(default_factory=Telling)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        with self.telling():
            yield from pipe(filled, self._start, SourceReader(self.plan))

    def tag_kind(self, tag: OutputTag) -> Any:
        """The Arrow type of a side output's rows."""
        return tag_kind(tag, self.timestamp)

    def _start(self, first: pa.RecordBatch) -> Bridge[Any, pa.RecordBatch]:
        warm_up()
        partition, attempt = task_of()

        def build(loop: Any, want: Callable[[], None], emit: Callable[[pa.RecordBatch], None]) -> Chain:
            side_types = SideKinds(self.tag_kind, self.requests)
            site = Site(loop, random.Random(), partition, attempt, side_types)
            sinks = ArrowSinks(self.requests, emit, first.num_rows, loop, self.tag_kind)
            return build_chain(self.plan, site, sinks, want)

        reader = Reader(settler(), partial(without_rows, self.requests[0], first.schema))
        return Bridge(build, self.plan.threads, new_event_loop(self.plan.loop), reader)


def evaluate(
    df: DataFrame, reads: Sequence[Read], *, object_reuse: bool, latency_interval: float | None
) -> tuple[DataFrame, Mapping[Read, int]]:
    """One stage that gives all that is read, and the number under which each is found; see `result_frame`.

    Of a single read the DataFrame is what was asked for, else an envelope of them all.
    """
    schemas = [schema_of(read) for read in reads]
    alone = len(reads) == 1
    kinds = tuple(_kind(schema, alone) for schema in schemas)
    requests = tuple(
        Request(read.node, read.tag, kind, _seal(number, kinds), _written(read), read.rest)
        for number, (read, kind) in enumerate(zip(reads, kinds, strict=True))
    )
    nodes = tuple(dict.fromkeys(node for read in reads for node in read.node.path()))
    plan = Plan(nodes, any(r.node is nodes[0] for r in requests), object_reuse, latency_interval)
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


def _seal(number: int, kinds: Sequence[Any]) -> Plain | Envelope:
    if len(kinds) > 1:
        return Envelope(number, tuple(map(_numbered_kind, kinds)))
    kind = kinds[number]
    return Plain(tuple((_numbered_kind(kind) if _are_ambiguous(kind.names) else kind).names))


def _numbered_kind(kind: Any) -> Any:
    return pa.struct([(str(i), kind.field(i).type) for i in range(kind.num_fields)])


def _written(read: Read) -> Any:
    return None if read.tag is None else rows_type(read.tag.schema, f"side output {read.tag.name!r}")[1].kind


def _kind(schema: spark.StructType, alone: bool) -> Any:
    """The Arrow struct of a result; alone, a column that Arrow does not know is Spark's business."""
    kinds = []
    for field in schema.fields:
        try:
            kind = arrow_type(field.dataType, f"column {field.name!r}")
        except FunctionError:
            if not alone:
                raise
            kind = pa.null()
        kinds.append(pa.field(field.name, kind))
    return pa.struct(kinds)


def result_frame(envelope: DataFrame, numbers: Mapping[Read, int], read: Read) -> DataFrame:
    """One result out of an envelope."""
    number = numbers[read]
    return envelope.where(sf.col("result") == number).select(f"r{number}.*").toDF(*schema_of(read).names)


def schema_of(read: Read) -> spark.StructType:
    """The columns of what is read.

    Raises:
        FunctionError: the operators on the way write different columns of the same name.
    """
    if read.rest:
        return REST
    if read.tag is None:
        return read.node.schema  # type: ignore[no-any-return]
    inputs = _inputs_of_dead_letters(read.node) if read.tag == DEAD_LETTERS else []
    declared = rows_type(read.tag.schema, f"side output {read.tag.name!r}")[0]
    return spark.StructType([*inputs, *declared.fields])


def _inputs_of_dead_letters(last: Node) -> Sequence[spark.StructField]:
    """The columns of all operators that may write dead letters."""
    writers = [node for node in last.path() if node.spec is not None and node.spec.may_write(DEAD_LETTERS)]
    if len(writers) == 1:
        return writers[0].parents[0].schema.fields  # type: ignore[no-any-return]
    columns: dict[str, spark.StructField] = {}
    for node in writers:
        assert node.spec is not None
        for field in node.parents[0].schema.fields:
            _merge(columns, field, node.spec.name)
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
    kinds: tuple[Any, ...]
    telling: Telling = dataclasses.field(default_factory=Telling)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0):
                with self.telling(), pa.ipc.open_stream(packed.as_py()) as stream:
                    if tuple(stream.schema.types) != self.kinds:
                        raise FunctionError(
                            f"the side output {self.name!r} was written as ({_spoken(stream.schema.types)}) and is "
                            f"read as ({_spoken(self.kinds)}); use the same OutputTag for both"
                        )
                    yield from stream


def _spoken(kinds: Sequence[Any]) -> str:
    return ", ".join(map(str, kinds))


def unpacked(envelope: DataFrame, numbers: Mapping[Read, int], rest: Read, tag: OutputTag) -> DataFrame:
    """The rows of a tag out of the packed ones."""
    packed = result_frame(envelope, numbers, rest).where(sf.col("tag") == tag.name).select("rows")
    schema, part = rows_type(tag.schema, f"side output {tag.name!r}")
    return packed.mapInArrow(Unpack(tag.name, tuple(part.kinds)), schema)
