"""What is read of a chain, and how it is written for Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from .._arrow.validation import validator
from .._functions.side_outputs import OutputTag
from .plan import StreamNode

__all__ = (
    "ResultPlan",
    "SideOutputValidators",
    "SingleResult",
    "TaggedUnion",
)


class BatchEncoder(Protocol):
    """Makes the batch for Spark of one result's columns."""

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch: ...


@dataclasses.dataclass(frozen=True)
class SingleResult:
    """The columns themselves: for a chain of one result."""

    names: tuple[str, ...]

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), list(self.names))


@dataclasses.dataclass(frozen=True)
class TaggedUnion:
    """Several results in one DataFrame: a struct column for each, of which the row has one, and its number."""

    number: int
    struct_types: tuple[Any, ...]  # of all results

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        count, struct_type = len(columns[0]), self.struct_types[self.number]
        arrays: list[pa.Array] = [pa.nulls(count, other) for other in self.struct_types]
        fields = [
            struct_type.field(i) for i in range(struct_type.num_fields)
        ]  # which the columns follow but for their time zone
        arrays[self.number] = pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )
        numbers = pa.repeat(pa.scalar(self.number, pa.int32()), count)
        return pa.RecordBatch.from_arrays([numbers, *arrays], ["result", *(f"r{i}" for i in range(len(arrays)))])


@dataclasses.dataclass(frozen=True)
class ResultPlan:
    """Somebody reads a stream, or a side output of all operators on the way to it.

    Args:
        node: the stream.
        tag: None for the stream itself.
        struct_type: the struct of the rows.
        written: the type of the values that are written to the tag.
        rest: whether it is for all side outputs that have no request.
    """

    node: StreamNode
    tag: OutputTag | None
    struct_type: Any
    encode: BatchEncoder
    written: Any
    undeclared: bool


class SideOutputValidators:
    """The checks of what is written to side outputs, by tag; of those that nobody reads there are none.

    Args:
        type_of: the Arrow type of a tag's rows, where no request says it.
        requests: what is read; None: everything.
    """

    def __init__(self, type_of: Callable[[OutputTag], Any], requests: Sequence[ResultPlan] | None = None) -> None:
        self._type_of = type_of
        self._known = {request.tag: request.written for request in requests or () if request.tag is not None}
        self._keeps_undeclared = requests is None or any(request.undeclared for request in requests)
        self._fits: dict[OutputTag, Callable[[Any], Any] | None] = {}

    def __call__(self, tag: OutputTag) -> Callable[[Any], Any] | None:
        if tag not in self._fits:
            struct_type = self._known.get(tag) or (self._type_of(tag) if self._keeps_undeclared else None)
            self._fits[tag] = (
                None if struct_type is None else validator(f"side output {tag.name!r}", struct_type, row=True)
            )
        return self._fits[tag]
