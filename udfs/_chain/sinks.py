"""Both ends of a chain: Arrow batches to elements, and results to Arrow batches."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Protocol

import pyarrow as pa

from asyncudf.queues import StreamRecord

from ._arrow import SourceRows, records_of, rows_of, watermark_marks
from ._chain import Plan
from ._error_types import error_type
from ._failures import LETTER_FIELDS
from ._fit import fitter
from ._input import Fed
from ._layout import Layout, Part
from ._node import Node
from ._outputs import Output
from ._signature import Kind
from ._specs import AssignSpec, WaitSpec
from ._tags import ANY_TAG, DEAD_LETTERS, LATENCIES, OutputTag
from ._task import OUTPUT_BYTES, OUTPUT_LINGER
from ._watermarks import WatermarkGenerator
from ._writer import RecordWriterOutput

__all__ = ("ArrowSinks", "Envelope", "Plain", "Request", "SideKinds", "SourceReader", "without_rows")

REST_ROWS = 1000  # rows of a side output that nobody has named yet, kept as one value
ERROR_PART = Part.of("dead letters", pa.struct([("error", error_type(LETTER_FIELDS))]), "error")


class SourceReader:
    """Makes the elements of each batch of a task: what the chain's first operator sees of its rows."""

    def __init__(self, plan: Plan) -> None:
        self._columns: tuple[int, ...] | None = None
        self._names: tuple[str, ...] | None = None
        self._function = ""
        if plan.head is not None and isinstance(spec := plan.head.spec, WaitSpec):
            self._columns = spec.positions
            self._names = spec.names if spec.work.spec.kind is Kind.ASYNC_FUNCTION else None
            self._function = spec.name
        self._generator: WatermarkGenerator | None = None
        self._mark: int | None = None
        if isinstance(assign := plan.start.spec, AssignSpec):
            self._generator, self._mark = WatermarkGenerator.of(assign.strategy), assign.position

    def __call__(self, batch: pa.RecordBatch) -> Iterable[Fed]:
        origins = zip(repeat(SourceRows(batch)), range(batch.num_rows))
        values: Iterable[Any] = repeat(None)
        if self._columns is not None:
            values = rows_of(self._function, [batch.column(i) for i in self._columns], self._names)
        if self._generator is None:
            return records_of(values, origins)
        marks = repeat(None) if self._mark is None else watermark_marks(batch.column(self._mark))
        return self._generator.weave(zip(values, origins, strict=False), marks)


class Seal(Protocol):
    """Makes the batch for Spark of one result's columns."""

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch: ...


@dataclasses.dataclass(frozen=True)
class Plain:
    """The columns themselves: for a chain of one result."""

    names: tuple[str, ...]

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), list(self.names))


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Several results in one DataFrame: a struct column for each, of which the row has one, and its number."""

    number: int
    kinds: tuple[Any, ...]  # of all results

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        count, kind = len(columns[0]), self.kinds[self.number]
        arrays: list[pa.Array] = [pa.nulls(count, other) for other in self.kinds]
        fields = [kind.field(i) for i in range(kind.num_fields)]  # which the columns follow but for their time zone
        arrays[self.number] = pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )
        numbers = pa.repeat(pa.scalar(self.number, pa.int32()), count)
        return pa.RecordBatch.from_arrays([numbers, *arrays], ["result", *(f"r{i}" for i in range(len(arrays)))])


@dataclasses.dataclass(frozen=True)
class Request:
    """Somebody reads a stream, or a side output of all operators on the way to it.

    Args:
        node: the stream.
        tag: None for the stream itself.
        kind: the struct of the rows.
        written: the type of the values that are written to the tag.
        rest: whether it is for all side outputs that have no request.
    """

    node: Node
    tag: OutputTag | None
    kind: Any
    seal: Seal
    written: Any
    rest: bool


class SideKinds:
    """The checks of what is written to side outputs, by tag; of those that nobody reads there are none.

    Args:
        kind_of: the Arrow type of a tag's rows, where no request says it.
        requests: what is read; None: everything.
    """

    def __init__(self, kind_of: Callable[[OutputTag], Any], requests: Sequence[Request] | None = None) -> None:
        self._kind_of = kind_of
        self._known = {request.tag: request.written for request in requests or () if request.tag is not None}
        self._keeps_rest = requests is None or any(request.rest for request in requests)
        self._fits: dict[OutputTag, Callable[[Any], Any] | None] = {}

    def __call__(self, tag: OutputTag) -> Callable[[Any], Any] | None:
        if tag not in self._fits:
            kind = self._known.get(tag) or (self._kind_of(tag) if self._keeps_rest else None)
            self._fits[tag] = None if kind is None else fitter(f"side output {tag.name!r}", kind, row=True)
        return self._fits[tag]


class ArrowSinks:
    """Writes what is asked for as batches for Spark.

    Args:
        emit: takes a batch.
        rows: of a full batch.
        kind_of: the Arrow type of a tag's rows, where no request says it.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        emit: Callable[[pa.RecordBatch], None],
        rows: int,
        loop: asyncio.AbstractEventLoop,
        kind_of: Callable[[OutputTag], Any],
    ) -> None:
        self._requests = requests
        self._paths = {request.node: set(request.node.path()) for request in requests}
        self._emit = emit
        self._rows = rows
        self._loop = loop
        self._kind_of = kind_of
        self._latencies = [
            (request, self._writer(Layout.anew(Part.of("latencies", request.kind, "")), request))
            for request in requests
            if request.tag == LATENCIES
        ]

    def latencies(self, node: Node) -> list[Output]:
        return [writer for request, writer in self._latencies if node in self._paths[request.node]]

    def close(self) -> None:
        for _, writer in self._latencies:
            writer.close()

    def outputs(self, node: Node) -> Iterator[Output]:
        for request in self._requests:
            if request.rest:
                if node in self._paths[request.node] and node.spec is not None and node.spec.may_write(ANY_TAG):
                    yield _RestOutput(partial(self._rest_writer, request))
            elif request.tag is None:
                if request.node is node:
                    yield self._writer(node.layout, request)
            elif node.spec is not None and node in self._paths[request.node] and node.spec.may_write(request.tag):
                yield self._writer(_side_layout(node, request.tag, request.written), request)

    def _writer(self, layout: Layout, request: Request) -> RecordWriterOutput:
        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            self._emit(request.seal(_arranged(layout, request.kind, layout.columns(values, origins))))

        return self._record_writer(write, self._rows, layout, request.tag)

    def _record_writer(
        self, write: Callable[..., None], rows: int, layout: Layout, tag: OutputTag | None
    ) -> RecordWriterOutput:
        return RecordWriterOutput(write, rows, OUTPUT_LINGER, self._loop, tag, layout.weigher(), OUTPUT_BYTES)

    def _rest_writer(self, request: Request, tag: OutputTag) -> RecordWriterOutput:
        part = Part.of(tag.name, self._kind_of(tag), "value")
        layout = Layout.anew(part)

        def write(values: Sequence[Any], origins: Sequence[Any]) -> None:
            batch = pa.RecordBatch.from_arrays(layout.columns(values, origins), list(part.names))
            self._emit(request.seal([pa.array([tag.name]), pa.array([_packed(batch)], pa.binary())]))

        return self._record_writer(write, min(self._rows, REST_ROWS), layout, tag)


def without_rows(request: Request, source: pa.Schema) -> pa.RecordBatch:
    """A batch like those that are written for a request, but empty; `source` is the schema of the task's input."""
    layout = Layout.anew(Part.of("nothing", request.kind, ""))
    if request.tag is None and not request.rest:
        layout = request.node.layout
    elif request.tag == DEAD_LETTERS:
        writers = (node for node in request.node.path() if node.spec is not None and node.spec.may_write(DEAD_LETTERS))
        layout = next((_side_layout(node, DEAD_LETTERS, None) for node in writers), layout)
    return request.seal(_arranged(layout, request.kind, layout.no_rows(source)))


def _side_layout(node: Node, tag: OutputTag, written: Any) -> Layout:
    if tag == DEAD_LETTERS:  # the operator's input, and what went wrong
        return node.parents[0].layout.plus(ERROR_PART)
    return Layout.anew(Part.of(tag.name, written, "value"))


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _arranged(layout: Layout, kind: pa.DataType, columns: list[pa.Array]) -> list[pa.Array]:
    """The columns as the result has them, null where this operator does not have one (dead letters of several)."""
    wanted = [kind.field(i) for i in range(kind.num_fields)]
    if [field.name for field in wanted] == list(layout.names):
        return columns
    known: Mapping[str, pa.Array] = {n.lower(): column for n, column in zip(layout.names, columns, strict=True)}
    nothing = len(columns[0])
    return [known.get(field.name.lower(), pa.nulls(nothing, field.type)) for field in wanted]


class _RestOutput(Output):
    """Takes side rows of any tag of the user's: nobody has asked for them yet, but may."""

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
