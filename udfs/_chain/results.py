"""The results of a chain: which streams are read, and how rows leave, to an output or as Arrow batches to Spark."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from asyncudf.queues import StreamRecord

from .._arrow.building import array
from .._arrow.layout import ColumnGroup, RowLayout
from .._arrow.objects import fields_of
from .._arrow.rows import as_normalized, error_type, normalized
from .._arrow.validation import validator
from .._engine.operators.outputs import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput, StreamOutput
from .._errors.records import LETTER_FIELDS
from .._functions.side_outputs import ANY_TAG, DEAD_LETTERS, LATENCIES, OutputTag, SideTypes
from .chain import ResultOutputs
from .plan import StreamNode

BatchEncoder = Callable[[Sequence[pa.Array]], pa.RecordBatch]  # makes a batch for Spark of one result's columns

UNDECLARED_ROWS = 1000  # rows of a side output that is not declared, packed into one value
ERROR_GROUP = ColumnGroup.of("dead letters", pa.struct([("error", error_type(LETTER_FIELDS))]), "error")


@dataclasses.dataclass(frozen=True)
class ResultPlan:
    """What is read of a chain: a stream, or with a tag the side output of all operators on the way to it."""

    node: StreamNode
    tag: OutputTag | None
    undeclared: bool  # all side outputs of the user's, packed: their tags are not known when the query is planned
    schema: Any = dataclasses.field(compare=False)  # the columns, as a Spark StructType
    struct_type: Any = dataclasses.field(compare=False)  # the same for Arrow, null for a column that it does not know
    written: Any = dataclasses.field(compare=False)  # the Arrow type of the values that are written to the tag


@dataclasses.dataclass(frozen=True)
class SingleOutput(ResultOutputs):
    """Passes the results of a function alone to an output."""

    output: StreamOutput

    def outputs(self, node: StreamNode) -> list[StreamOutput]:
        return [] if node.factory is None else [self.output]


class ArrowOutputs(ResultOutputs):
    """Writes the results that are read as batches for Spark; a full batch has so many `rows`.

    `type_of`: the Arrow type of a tag's rows, where it is not read under its name.
    """

    # A writer for each pair of operator and result, not one for each result: rows of different operators have different
    # layouts, and a batch has one. The rows of one operator keep their order; rows of two operators have none.
    # Latencies of many operators have one layout. They share one writer, which is closed when all operators have ended.

    def __init__(
        self,
        results: Sequence[ResultPlan],
        emit: Callable[[pa.RecordBatch], None],
        rows: int,
        loop: asyncio.AbstractEventLoop,
        type_of: Callable[[OutputTag], Any],
    ) -> None:
        self._encoders = dict(zip(results, encoders_of(results), strict=True))
        self._paths = {result.node: set(result.node.path()) for result in results}
        self._emit = emit
        self._rows = rows
        self._loop = loop
        self._type_of = type_of
        self._latencies = [
            (result, self._writer(_new_rows("latencies", result.struct_type), result))
            for result in results
            if result.tag == LATENCIES
        ]

    def latencies(self, node: StreamNode) -> list[StreamOutput]:
        return [writer for result, writer in self._latencies if node in self._paths[result.node]]

    def close(self) -> None:
        for _, writer in self._latencies:
            writer.close()

    def outputs(self, node: StreamNode) -> Iterator[StreamOutput]:
        for result in self._encoders:
            if result.undeclared:
                if node in self._paths[result.node] and node.may_write(ANY_TAG):
                    yield _UndeclaredOutput(partial(self._undeclared_writer, result))
            elif result.tag is None:
                if result.node is node:
                    yield self._writer(node.layout, result)
            elif node in self._paths[result.node] and node.may_write(result.tag):
                yield self._writer(_side_layout(node, result.tag, result.written), result)

    def _writer(self, layout: RowLayout, result: ResultPlan) -> RecordWriterOutput:
        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            self._emit(self._encoders[result](_arranged(layout, result.struct_type, layout.columns(values, origins))))

        return self._record_writer(write, self._rows, layout, result.tag)

    def _record_writer(
        self, write: Callable[..., None], rows: int, layout: RowLayout, tag: OutputTag | None
    ) -> RecordWriterOutput:
        size_of = layout.size_of_value
        weigh = None if size_of is not None else layout.weigher()
        return RecordWriterOutput(write, rows, OUTPUT_LINGER, self._loop, tag, weigh, OUTPUT_BYTES, size_of)

    def _undeclared_writer(self, result: ResultPlan, tag: OutputTag) -> RecordWriterOutput:
        group = ColumnGroup.of(tag.name, self._type_of(tag), "value")
        layout = RowLayout.of_new_rows(group)

        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            batch = pa.RecordBatch.from_arrays(layout.columns(values, origins), list(group.names))
            self._emit(self._encoders[result]([array([tag.name], pa.string()), array([packed([batch])], pa.binary())]))

        return self._record_writer(write, min(self._rows, UNDECLARED_ROWS), layout, tag)


def without_rows(results: Sequence[ResultPlan], source: pa.Schema) -> pa.RecordBatch:
    """A batch like those that are written for the first result, but empty; `source` is the schema of the input."""
    result = results[0]
    layout = _new_rows("nothing", result.struct_type)
    if result.tag is None and not result.undeclared:
        layout = result.node.layout
    elif result.tag == DEAD_LETTERS:
        writers = (node for node in result.node.path() if node.may_write(DEAD_LETTERS))
        layout = next((_side_layout(node, DEAD_LETTERS, None) for node in writers), layout)
    return encoders_of(results)[0](_arranged(layout, result.struct_type, layout.no_rows(source)))


def _side_layout(node: StreamNode, tag: OutputTag, written: Any) -> RowLayout:
    if tag == DEAD_LETTERS:  # the operator's input, and what went wrong
        return node.parents[0].layout.with_columns(ERROR_GROUP)
    return _new_rows(tag.name, written)


def _new_rows(name: str, written: Any) -> RowLayout:
    return RowLayout.of_new_rows(ColumnGroup.of(name, written, "value"))


def packed(batches: Sequence[pa.RecordBatch], options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    """Batches of one schema as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _arranged(layout: RowLayout, struct_type: pa.DataType, columns: list[pa.Array]) -> list[pa.Array]:
    """The columns of the result; null where this operator does not have one (dead letters of several operators)."""
    wanted = fields_of(struct_type)
    if [field.name for field in wanted] == list(layout.names):
        return columns
    known: Mapping[str, pa.Array] = {n.lower(): column for n, column in zip(layout.names, columns, strict=True)}
    nothing = len(columns[0])
    return [known.get(field.name.lower(), pa.nulls(nothing, field.type)) for field in wanted]


class _UndeclaredOutput(StreamOutput):
    """Takes side rows of any tag of the user's, which may be read later."""

    # Without them the calls would be repeated when they are read. Their tags, and with them their columns, are only
    # known when a function writes: so the rows go as packed bytes beside the tag's name.

    def __init__(self, open_writer: Callable[[OutputTag], RecordWriterOutput]) -> None:
        super().__init__(ANY_TAG)
        self._open_writer = open_writer
        self._writers: dict[OutputTag, RecordWriterOutput] = {}

    def collect(self, record: StreamRecord) -> None:
        """Ignore rows of the main stream."""

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        if tag == DEAD_LETTERS:
            return
        if tag not in self._writers:
            self._writers[tag] = self._open_writer(tag)
        self._writers[tag].collect(record)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def encoders_of(results: Sequence[ResultPlan]) -> list[BatchEncoder]:
    """The encoder of each result of a chain: of the only one its columns, of several a `tagged_union`."""
    if len(results) == 1:
        names = results[0].schema.names
        given = list(map(str, range(len(names)))) if are_ambiguous(names) else names
        return [lambda columns: pa.RecordBatch.from_arrays(list(columns), given)]
    # Fields by number: not every name finds its way through a struct.
    struct_types = [_numbered(result.struct_type) for result in results]
    return [partial(tagged_union, number, struct_types) for number in range(len(results))]


def are_ambiguous(names: Sequence[str]) -> bool:
    """Whether PySpark would not find each column by its name."""
    return len({name.lower() for name in names}) < len(names) or any(set(".`") & set(name) for name in names)


def _numbered(struct_type: pa.DataType) -> pa.DataType:
    return pa.struct([(str(i), normalized(field.type)) for i, field in enumerate(fields_of(struct_type))])


def tagged_union(number: int, struct_types: Sequence[Any], columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Several results in one DataFrame: a struct column for each result, only one of them filled, and its number."""
    # mapInArrow gives one DataFrame, and an evaluation for each result would repeat the calls. Not one struct of all
    # columns: two results may have a column of one name and different types.
    count, fields = len(columns[0]), fields_of(struct_types[number])
    arrays: list[pa.Array] = [pa.nulls(count, other) for other in struct_types]
    arrays[number] = pa.StructArray.from_arrays(
        [_as_field(as_normalized(column), field) for column, field in zip(columns, fields, strict=True)],
        fields=fields,
    )
    numbers = array([number] * count, pa.int32())
    return pa.RecordBatch.from_arrays([numbers, *arrays], ["result", *(f"r{i}" for i in range(len(arrays)))])


def _as_field(column: pa.Array, field: pa.Field) -> pa.Array:
    # Only texts of Spark's `useLargeVarTypes` differ still. A cast to the same type is no safe one: see as_normalized.
    return column if column.type == field.type else column.cast(field.type)


def side_output_validators(
    type_of: Callable[[OutputTag], Any], results: Sequence[ResultPlan] | None = None
) -> SideTypes:
    """The checks of rows of side outputs, by tag; a side output that is not read has none.

    Without `results` all are read; `type_of`: the Arrow type of a tag's rows, where it is not read under its name.
    """
    known = {result.tag: result.written for result in results or () if result.tag is not None}
    keeps_undeclared = results is None or any(result.undeclared for result in results)

    @functools.cache
    def check(tag: OutputTag) -> Callable[[Any], Any] | None:
        struct_type = known.get(tag) or (type_of(tag) if keeps_undeclared else None)
        return None if struct_type is None else validator(f"side output {tag.name!r}", struct_type, row=True)

    return check
