"""Results of a stream as DataFrames: a chain is a `mapInArrow` stage, which is an evaluation of its results.

Some results are evaluated together, and some evaluations are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._arrow.objects import stored_type
from .._chain.plan import ChainPlan, StreamNode
from .._chain.results import ResultPlan
from .._errors.checks import Seconds, flag, redaction, seconds
from .._errors.exceptions import FunctionError, OptionError
from .._errors.records import Redact
from .._functions.side_outputs import ANY_TAG, DEAD_LETTERS, LATENCIES, OutputTag
from ._compat import engine_of
from .chain_task import ChainTask
from .keeping import Kept, keep
from .lost_sorts import lost_sort
from .planner import rows_node
from .schemas import arrow_type_or_none, mapped, numbered, rows_type
from .types import arrow_type, side_output_type, timestamp_type
from .worker import ErrorReporting


def arrow_struct(schema: spark.StructType) -> pa.DataType:
    """The Arrow type of rows of this schema; null for a column that Arrow does not know."""
    arrow_types = [arrow_type_or_none(field) for field in schema.fields]
    stored = [pa.null() if one is None else stored_type(one) for one in arrow_types]
    return pa.struct(list(zip(schema.names, stored, strict=True)))


STREAMING = (
    "several results of a streaming DataFrame cannot be kept, and side outputs are such; use "
    "writeStream.foreachBatch(f) with AsyncStream(batch) inside f"
)
# A DataFrame, and what is in it: one result, or several as a `tagged_union`, from which `result_frame` takes each.
Evaluated = tuple[DataFrame, Sequence[ResultPlan]]


class KeptResults:
    """The kept evaluations of all streams that begin with the same rows, until `close`."""

    # Side outputs come from the same calls as the stream. To read them later without calling again, the evaluation must
    # be kept when the stream is read.
    #
    # _kept: all kept evaluations
    # _closed: how often they were closed
    # lock: two threads that read a stream share an evaluation, which may be made while the first one reads
    # evaluated: the evaluation of a stream, by its source and its last node
    # behind: the source behind a side output; one object each, as `evaluated` compares by identity

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._closed = 0
        self.lock = threading.Lock()
        self.evaluated: dict[tuple[StreamSource, StreamNode], Evaluated] = {}
        self.behind: dict[ResultRef, tuple[StreamSource, StreamNode]] = {}

    def keep(self, df: DataFrame, task: ChainTask, schema: spark.StructType) -> DataFrame:
        with self.evaluating():
            kept = keep(df, task, schema)
            self._kept.append(kept)
        return kept.frame

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """What is kept in the block is closed at its end if another thread has closed all meanwhile."""
        closed = self._closed
        yield
        if self._closed != closed:
            self.close()

    def close(self) -> None:
        self._closed += 1
        self.evaluated.clear()
        with contextlib.ExitStack() as stack:
            while self._kept:
                stack.callback(self._kept.pop().close)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamSource:
    """Where a chain begins: a DataFrame, or a side output of another chain."""

    origin: DataFrame | ResultRef | None  # None in the test kit, which runs a chain over rows of its own
    object_reuse: bool
    latency_interval: float | None
    redact: Redact | None  # for all operators that do not set it
    kept: KeptResults

    @classmethod
    def of(
        cls, df: DataFrame | None, object_reuse: bool, latency_interval: Seconds | None, redact: Any
    ) -> StreamSource:
        """The arguments of an `AsyncStream`; raises OptionError for a value that cannot work."""
        interval = None if latency_interval is None else seconds(latency_interval, "latency_interval")
        reuse = flag(object_reuse, "object_reuse")
        return cls(df, reuse, interval, redaction(redact, "redact"), KeptResults())

    @property
    def frame_type(self) -> type[DataFrame]:
        if isinstance(self.origin, ResultRef):
            return self.origin.source.frame_type
        return DataFrame if self.origin is None else type(self.origin)

    @property
    def session(self) -> SparkSession | None:
        if isinstance(self.origin, ResultRef):
            return self.origin.source.session
        return None if self.origin is None else self.origin.sparkSession

    def frame_before(self, node: StreamNode) -> DataFrame | None:
        """The DataFrame that has the columns of the stream that ends at `node`, if no operator has changed them."""
        return None if isinstance(self.origin, ResultRef) or not node.layout.is_source else self.origin

    def may_write(self, node: StreamNode, tag: OutputTag) -> bool:
        """Whether an operator of the stream that ends at `node` may write to a side output."""
        if tag == LATENCIES:
            return self.latency_interval is not None
        return any(one.may_write(tag) for one in node.path())

    def after(self, result: ResultPlan) -> tuple[StreamSource, StreamNode]:
        """The source of a chain behind a side output; one object for each, so that it is evaluated once."""
        ref = ResultRef(self, result)
        if ref not in self.kept.behind:
            self.kept.behind[ref] = dataclasses.replace(self, origin=ref), rows_node(result.schema)
        return self.kept.behind[ref]

    def read(self, result: ResultPlan, *, alone: bool = False) -> DataFrame:
        """A result, evaluated with the side outputs that may be read later, unless `alone`; no stream has these."""
        node, df = result.node, self._df(alone=alone)
        if df.isStreaming and (result.tag is not None or self.may_write(node, DEAD_LETTERS)):
            raise FunctionError(STREAMING)
        results = [result_plan(node), *self._side_results(node)]
        if alone or df.isStreaming or len(results) == 1:
            return self.evaluate(df, [result])
        with self.kept.lock, self.kept.evaluating():
            if (self, node) not in self.kept.evaluated:
                self.kept.evaluated[self, node] = self.kept.keep(df, *self.stage(df, results)), results
            evaluated, known = self.kept.evaluated[self, node]
        if result in known:
            return result_frame(evaluated, known, result)
        assert result.tag is not None
        return unpacked(result_frame(evaluated, known, result_plan(node, undeclared=True)), result.tag)

    def task(self, results: Sequence[ResultPlan]) -> ChainTask:
        nodes = tuple(dict.fromkeys(node for result in results for node in result.node.path()))
        is_source_read = any(result.node is nodes[0] for result in results)
        plan = ChainPlan(nodes, is_source_read, self.object_reuse, self.latency_interval)
        type_of = partial(side_output_type, timestamp=timestamp_type())
        return ChainTask(plan, tuple(results), type_of, uuid.uuid4().hex)

    def evaluate(self, df: DataFrame, results: Sequence[ResultPlan]) -> DataFrame:
        return mapped(df, *self.stage(df, results))

    def stage(self, df: DataFrame, results: Sequence[ResultPlan]) -> tuple[ChainTask, spark.StructType]:
        """The task that gives these results; if there are several, Arrow has to know the types of all columns."""
        task = self.task(results)
        check_rows(df, task.plan.name)
        if len(results) == 1:
            return task, results[0].schema
        tagged_union = spark.StructType().add("result", "integer")
        for number, result in enumerate(results):
            for field in result.schema.fields:
                arrow_type(field.dataType, f"column {field.name!r}")
            tagged_union = tagged_union.add(f"r{number}", numbered(result.schema))
        return task, tagged_union

    def _df(self, *, alone: bool = False) -> DataFrame:
        if self.origin is None:
            raise OptionError("a stream of run_stream has no DataFrame: return the stream itself, and get its rows")
        if isinstance(self.origin, ResultRef):
            return self.origin.source.read(self.origin.result, alone=alone)
        return self.origin

    def _side_results(self, node: StreamNode) -> Iterable[ResultPlan]:
        """All side outputs that operators of a stream may write; the user's own tags as one undeclared result."""
        for tag in (DEAD_LETTERS, LATENCIES):
            if self.may_write(node, tag):
                yield result_plan(node, tag)
        if self.may_write(node, ANY_TAG):
            yield result_plan(node, undeclared=True)


@dataclasses.dataclass(frozen=True)
class ResultRef:
    """A stream, or a side output of one of its operators."""

    source: StreamSource
    result: ResultPlan


def read_together(refs: Mapping[str, ResultRef]) -> dict[str, DataFrame]:
    """Several results, from one evaluation for each source."""
    wanted: dict[StreamSource, dict[ResultPlan, None]] = {}

    # First collect all results of each source, those that other sources begin with included. Otherwise a source would
    # be evaluated, and its service called, once for each result.
    def need(ref: ResultRef) -> None:
        wanted.setdefault(ref.source, {})[ref.result] = None
        if isinstance(ref.source.origin, ResultRef):
            need(ref.source.origin)

    done: dict[StreamSource, Evaluated] = {}

    def frame(ref: ResultRef) -> DataFrame:
        source = ref.source
        if source not in done:
            df = frame(source.origin) if isinstance(source.origin, ResultRef) else source._df()
            results = [*wanted[source]]
            if df.isStreaming and (len(refs) > 1 or results[0].tag is not None):
                raise FunctionError(STREAMING)
            stage = source.stage(df, results)
            done[source] = (source.kept.keep if len(refs) > 1 else mapped)(df, *stage), results
        return result_frame(*done[source], ref.result)

    for ref in refs.values():
        need(ref)
    return {name: frame(ref) for name, ref in refs.items()}


def check_rows(df: DataFrame, name: str) -> None:
    """Raises FunctionError for rows that the engine does not give to an operator, or not in their order."""
    engine = engine_of(df.sparkSession)
    if df.isStreaming and not engine.streams_operators:
        raise FunctionError(
            f"{name} reads a stream, and {engine.name} has no operators for streams: use the function as a column, or "
            "AsyncStream(batch) for a DataFrame that ends"
        )
    if (sort := lost_sort(df)) is not None:
        how = "sorts the rows of each partition" if sort == "SortWithinPartitions" else "is sorted"
        raise FunctionError(
            f"the DataFrame that {name} reads {how}, and {engine.name} takes a sort before an operator out of the "
            "plan: rows would come as they were before. Write df.orderBy(...).offset(0) last, with offset directly "
            "after the sort: that keeps the order, in one partition. If it is there already, it was taken out as well, "
            "as for a subquery: write .limit(2**31 - 1) in its place, which takes longer. If the order does not "
            "matter, leave the sort out, or write df.repartition(n) after it"
        )


UNDECLARED = spark.StructType().add("tag", "string").add("rows", "binary")


def result_plan(node: StreamNode, tag: OutputTag | None = None, *, undeclared: bool = False) -> ResultPlan:
    """The plan of one result; FunctionError if operators write columns of one name and different types."""
    schema, written = node.schema, None
    if undeclared:
        schema = UNDECLARED
    elif tag is not None:
        inputs = _inputs_of_dead_letters(node) if tag == DEAD_LETTERS else []
        declared, group = rows_type(tag.schema, f"side output {tag.name!r}")
        schema, written = spark.StructType([*inputs, *declared.fields]), group.arrow_type
    return ResultPlan(node, tag, undeclared, schema, arrow_struct(schema), written)


def result_frame(evaluated: DataFrame, results: Sequence[ResultPlan], result: ResultPlan) -> DataFrame:
    if len(results) == 1:
        return evaluated
    number = results.index(result)
    return evaluated.where(sf.col("result") == number).select(f"r{number}.*").toDF(*result.schema.names)


def _inputs_of_dead_letters(last: StreamNode) -> Sequence[spark.StructField]:
    """The columns of all operators that may write dead letters."""
    # One operator keeps its columns as they are, also two of one name. Several operators share one column per name.
    writers = [node for node in last.path() if node.may_write(DEAD_LETTERS)]
    if len(writers) == 1:
        fields: Sequence[spark.StructField] = writers[0].parents[0].schema.fields
        return fields
    columns: dict[str, spark.StructField] = {}
    for node in writers:
        assert node.factory is not None
        for field in node.parents[0].schema.fields:
            known, name = columns.setdefault(field.name.lower(), field), node.factory.name
            if known.dataType != field.dataType:
                raise FunctionError(
                    f"the dead letters of this stream cannot be one table: column {field.name!r} is "
                    f"{known.dataType.simpleString()} before {name} and {field.dataType.simpleString()} at it; "
                    "rename it, or read the side outputs of the stream before the change"
                )
    return list(columns.values())


def unpacked(packed: DataFrame, tag: OutputTag) -> DataFrame:
    """The rows of one tag, out of the rows of all side outputs without a declared type."""
    schema, group = rows_type(tag.schema, f"side output {tag.name!r}")
    name, wanted, error_reporting = tag.name, list(map(stored_type, group.arrow_types)), ErrorReporting()

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in batch.column(0):
                with error_reporting, pa.ipc.open_stream(rows.as_py()) as stream:
                    if (written := stream.schema.types) != wanted:
                        one, other = (", ".join(map(str, types)) for types in (written, wanted))
                        raise FunctionError(
                            f"the side output {name!r} was written as ({one}) and is read as ({other}); use the same "
                            "OutputTag for both"
                        )
                    yield from stream

    return packed.where(sf.col("tag") == name).select("rows").mapInArrow(unpack, schema)
