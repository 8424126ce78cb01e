"""What is read of a chain, how it is written for Spark, and the checks of what goes to side outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from .._arrow.rows import normalized
from .._arrow.validation import validator
from .._functions.side_outputs import OutputTag
from .plan import StreamNode

__all__ = ("ResultPlan", "SideOutputValidators", "are_ambiguous", "encoders_of")


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

    # mapInArrow gives one DataFrame, and to evaluate once for each result would call the service as often. Not one
    # struct of all columns: two results may have a column of one name and different types.

    number: int
    struct_types: tuple[Any, ...]  # of all results

    def __call__(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        count, struct_type = len(columns[0]), self.struct_types[self.number]
        arrays: list[pa.Array] = [pa.nulls(count, other) for other in self.struct_types]
        # The columns follow these fields but for their time zone.
        fields = [struct_type.field(i) for i in range(struct_type.num_fields)]
        arrays[self.number] = pa.StructArray.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, fields, strict=True)], fields=fields
        )
        numbers = pa.repeat(pa.scalar(self.number, pa.int32()), count)
        return pa.RecordBatch.from_arrays([numbers, *arrays], ["result", *(f"r{i}" for i in range(len(arrays)))])


@dataclasses.dataclass(frozen=True)
class ResultPlan:
    """What is read of a chain: a stream, or with a tag the side output of all operators on the way to it.

    Args:
        undeclared: all side outputs of the user's, packed, because they are not known before somebody asks.
        schema: the columns, as a Spark StructType.
        struct_type: the same as an Arrow type, null for a column that Arrow does not know.
        written: the Arrow type of the values that are written to the tag.
    """

    node: StreamNode
    tag: OutputTag | None
    undeclared: bool
    schema: Any = dataclasses.field(compare=False)
    struct_type: Any = dataclasses.field(compare=False)
    written: Any = dataclasses.field(compare=False)


def encoders_of(results: Sequence[ResultPlan]) -> list[BatchEncoder]:
    """How each of the results of a chain is written."""
    if len(results) == 1:
        (result,) = results
        names = result.schema.names
        return [SingleResult(tuple(map(str, range(len(names))) if are_ambiguous(names) else names))]
    # Fields by number: not every name finds its way through a struct.
    struct_types = tuple(_numbered(result.struct_type) for result in results)
    return [TaggedUnion(number, struct_types) for number in range(len(results))]


def are_ambiguous(names: Sequence[str]) -> bool:
    """Whether PySpark would not find each column by its name."""
    return len({name.lower() for name in names}) < len(names) or any(set(".`") & set(name) for name in names)


def _numbered(struct_type: pa.DataType) -> pa.DataType:
    return pa.struct([(str(i), normalized(struct_type.field(i).type)) for i in range(struct_type.num_fields)])


class SideOutputValidators:
    """The checks of what is written to side outputs, by tag; of those that nobody reads there are none.

    Args:
        type_of: the Arrow type of a tag's rows, where it is not read under its name.
        results: what is read; None: everything.
    """

    def __init__(self, type_of: Callable[[OutputTag], Any], results: Sequence[ResultPlan] | None = None) -> None:
        self._type_of = type_of
        self._known = {result.tag: result.written for result in results or () if result.tag is not None}
        self._keeps_undeclared = results is None or any(result.undeclared for result in results)
        self._validators: dict[OutputTag, Callable[[Any], Any] | None] = {}

    def __call__(self, tag: OutputTag) -> Callable[[Any], Any] | None:
        if tag not in self._validators:
            struct_type = self._known.get(tag) or (self._type_of(tag) if self._keeps_undeclared else None)
            self._validators[tag] = (
                None if struct_type is None else validator(f"side output {tag.name!r}", struct_type, row=True)
            )
        return self._validators[tag]
