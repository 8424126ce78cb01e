"""The way out: what leaves a chain, to an output or as Arrow batches for Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from asyncudf.queues import StreamRecord

from .._arrow.layout import ColumnGroup, RowLayout
from .._arrow.schemas import error_type
from .._errors.records import LETTER_FIELDS
from .._functions.side_outputs import ANY_TAG, DEAD_LETTERS, LATENCIES, OutputTag
from .._operators.outputs import Output
from .._operators.writer import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput
from .plan import StreamNode
from .result_plan import ResultPlan, encoders_of

__all__ = ("ArrowSinks", "OutputSink", "without_rows")


UNDECLARED_ROWS = 1000  # rows of a side output that nobody has named yet, kept as one value
ERROR_GROUP = ColumnGroup.of("dead letters", pa.struct([("error", error_type(LETTER_FIELDS))]), "error")


class OutputSink:
    """Where the results of a function alone go."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def outputs(self, node: StreamNode) -> list[Output]:
        return [] if node.factory is None else [self._output]

    def latencies(self, node: StreamNode) -> list[Output]:
        return []

    def close(self) -> None:
        """The output has been closed by the operator."""


class ArrowSinks:
    """Writes what is asked for as batches for Spark.

    Args:
        emit: takes a batch.
        rows: of a full batch.
        type_of: the Arrow type of a tag's rows, where it is not read under its name.
    """

    # A writer for each pair of operator and result, not one for each result: rows of different operators have different
    # layouts, and a batch is of one. The rows of one operator keep their order; between two none is promised.
    # The latencies are read of many operators but have one layout: they share one writer, closed when all have ended.

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
            (
                result,
                self._writer(RowLayout.of_new_rows(ColumnGroup.of("latencies", result.struct_type, "")), result),
            )
            for result in results
            if result.tag == LATENCIES
        ]

    def latencies(self, node: StreamNode) -> list[Output]:
        return [writer for result, writer in self._latencies if node in self._paths[result.node]]

    def close(self) -> None:
        for _, writer in self._latencies:
            writer.close()

    def outputs(self, node: StreamNode) -> Iterator[Output]:
        for result in self._encoders:
            if result.undeclared:
                if node in self._paths[result.node] and node.factory is not None and node.factory.may_write(ANY_TAG):
                    yield _UndeclaredOutput(partial(self._undeclared_writer, result))
            elif result.tag is None:
                if result.node is node:
                    yield self._writer(node.layout, result)
            elif node.factory is not None and node in self._paths[result.node] and node.factory.may_write(result.tag):
                yield self._writer(_side_layout(node, result.tag, result.written), result)

    def _writer(self, layout: RowLayout, result: ResultPlan) -> RecordWriterOutput:
        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            self._emit(self._encoders[result](_arranged(layout, result.struct_type, layout.columns(values, origins))))

        return self._record_writer(write, self._rows, layout, result.tag)

    def _record_writer(
        self, write: Callable[..., None], rows: int, layout: RowLayout, tag: OutputTag | None
    ) -> RecordWriterOutput:
        return RecordWriterOutput(write, rows, OUTPUT_LINGER, self._loop, tag, layout.weigher(), OUTPUT_BYTES)

    def _undeclared_writer(self, result: ResultPlan, tag: OutputTag) -> RecordWriterOutput:
        group = ColumnGroup.of(tag.name, self._type_of(tag), "value")
        layout = RowLayout.of_new_rows(group)

        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            batch = pa.RecordBatch.from_arrays(layout.columns(values, origins), list(group.names))
            self._emit(self._encoders[result]([pa.array([tag.name]), pa.array([_packed(batch)], pa.binary())]))

        return self._record_writer(write, min(self._rows, UNDECLARED_ROWS), layout, tag)


def without_rows(results: Sequence[ResultPlan], source: pa.Schema) -> pa.RecordBatch:
    """A batch like those that are written for the first result, but empty; `source` is the schema of the input."""
    result = results[0]
    layout = RowLayout.of_new_rows(ColumnGroup.of("nothing", result.struct_type, ""))
    if result.tag is None and not result.undeclared:
        layout = result.node.layout
    elif result.tag == DEAD_LETTERS:
        writers = (
            node for node in result.node.path() if node.factory is not None and node.factory.may_write(DEAD_LETTERS)
        )
        layout = next((_side_layout(node, DEAD_LETTERS, None) for node in writers), layout)
    return encoders_of(results)[0](_arranged(layout, result.struct_type, layout.no_rows(source)))


def _side_layout(node: StreamNode, tag: OutputTag, written: Any) -> RowLayout:
    if tag == DEAD_LETTERS:  # the operator's input, and what went wrong
        return node.parents[0].layout.with_columns(ERROR_GROUP)
    return RowLayout.of_new_rows(ColumnGroup.of(tag.name, written, "value"))


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _arranged(layout: RowLayout, struct_type: pa.DataType, columns: list[pa.Array]) -> list[pa.Array]:
    """The columns as the result has them, null where this operator does not have one (dead letters of several)."""
    wanted = [struct_type.field(i) for i in range(struct_type.num_fields)]
    if [field.name for field in wanted] == list(layout.names):
        return columns
    known: Mapping[str, pa.Array] = {n.lower(): column for n, column in zip(layout.names, columns, strict=True)}
    nothing = len(columns[0])
    return [known.get(field.name.lower(), pa.nulls(nothing, field.type)) for field in wanted]


class _UndeclaredOutput(Output):
    """Takes side rows of any tag of the user's: nobody has asked for them yet, but may."""

    # Kept, because to find out later that they are wanted would mean to call the service again. Their tags, and with
    # them their columns, are only known when a function writes: so the rows go as packed bytes beside the tag's name.

    def __init__(self, open_writer: Callable[[OutputTag], RecordWriterOutput]) -> None:
        super().__init__(ANY_TAG)
        self._open_writer = open_writer
        self._writers: dict[OutputTag, RecordWriterOutput] = {}

    def collect(self, record: StreamRecord) -> None:
        """Rows of the main stream are not for this output."""

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        if tag == DEAD_LETTERS:
            return
        if tag not in self._writers:
            self._writers[tag] = self._open_writer(tag)
        self._writers[tag].collect(record)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
