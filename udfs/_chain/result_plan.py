"""What is read of a chain, and how it is written for Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from .._arrow.validation import fitter
from .._functions.side_outputs import OutputTag
from .plan import Node

__all__ = (
    "Envelope",
    "Plain",
    "Request",
    "SideKinds",
)


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
