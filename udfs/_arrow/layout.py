"""The layout of rows in a chain: the source's Arrow columns, the columns of operators, and what each operator sees."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from asyncudf.queues import StreamRecord

from .._errors.exceptions import FunctionError
from .building import array
from .columns import has_plain_values
from .objects import fields_of, has_objects, stored_type
from .rows import ResultArrays, reader, source_columns
from .sizes import fixed_size, size_estimate

RECORD_BYTES = 112  # bytes of a record and of its place in the origin of the next one

Getter = Callable[[StreamRecord], Any]
Projection = Callable[[StreamRecord], StreamRecord]


@dataclasses.dataclass(frozen=True)
class ColumnGroup:
    """The columns that one operator adds to a row: a struct's fields, or one column of any other type."""

    function: str  # the operator's name, for messages
    arrow_type: Any  # of the operator's value in a record
    names: tuple[str, ...]
    spreads: bool  # a struct's fields are the columns

    @classmethod
    def of(cls, function: str, arrow_type: pa.DataType, name: str, *, whole: bool = False) -> ColumnGroup:
        """The group of a type; `name` is for the only column of a type that is no struct, or of a `whole` struct."""
        if pa.types.is_struct(arrow_type) and not whole:
            return cls(function, arrow_type, tuple(field.name for field in fields_of(arrow_type)), True)
        return cls(function, arrow_type, (name,), False)

    @property
    def arrow_types(self) -> list[pa.DataType]:
        return [field.type for field in fields_of(self.arrow_type)] if self.spreads else [self.arrow_type]

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        array = ResultArrays(self.function, self.arrow_type).array(values)
        return array.flatten() if self.spreads else [array]

    def getter(self, index: int) -> Callable[[Any], Any]:
        arrow_type, name = self.arrow_types[index], self.names[index]
        if has_objects(arrow_type):
            read, spreads = reader(arrow_type), self.spreads
            return lambda value: None if value is None else read(value[name] if spreads else value)
        if not self.spreads:
            return lambda value: value
        return lambda value: None if value is None else value[name]


class WatermarkColumnGroup(ColumnGroup):
    """The watermark in force at a row: microseconds since the epoch, and a datetime for an operator that reads it."""

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        return [array(values, pa.int64()).view(self.arrow_type)]

    def getter(self, index: int) -> Callable[[Any], Any]:
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC if self.arrow_type.tz else None)
        return lambda value: None if value is None else epoch + datetime.timedelta(microseconds=value)


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The columns of a stream: first the source's, unless an operator made new rows, then a group for each operator.

    A record's `value` is the value of the newest group. Its `origin` is the record as it was before that group was
    added, and so on; the last origin is (rows, number), a row of the source. So an operator that adds columns makes one
    new record and copies nothing, and the source's columns stay Arrow.
    """

    # Not one dict or tuple of all columns per row: each operator would copy what earlier operators have added, and the
    # source's columns would become Python values and Arrow again, which is slow and not always exact.
    #
    # len(source_names or ()) == len(source_types); positions count the source's columns, then those of each group
    # The origins of a record with n groups: n - 1 records, then (rows, number), or None if an operator made new rows

    source_names: tuple[str, ...] | None  # None: the first group replaced the rows
    source_types: tuple[Any, ...]
    groups: tuple[ColumnGroup, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source_names or ()) + tuple(name for group in self.groups for name in group.names)

    @property
    def arrow_types(self) -> list[Any]:
        return [*self.source_types, *(arrow_type for group in self.groups for arrow_type in group.arrow_types)]

    @property
    def is_source(self) -> bool:
        """Whether its records are bare rows of the source."""
        return not self.groups

    def with_columns(self, group: ColumnGroup) -> RowLayout:
        return dataclasses.replace(self, groups=(*self.groups, group))

    @classmethod
    def of_new_rows(cls, group: ColumnGroup) -> RowLayout:
        return cls(None, (), (group,))

    def arguments(self, positions: Sequence[int]) -> Projection:
        """Projects a record to a tuple of some of its columns."""
        getters = [self._getter(position) for position in positions]
        origin = self._origin_of
        if len(getters) == 1:
            only = getters[0]
            return lambda record: StreamRecord((only(record),), record.timestamp, origin(record))
        return lambda record: StreamRecord(tuple(get(record) for get in getters), record.timestamp, origin(record))

    def mapping(self, positions: Sequence[int]) -> Projection:
        names = [self.names[position] for position in positions]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FunctionError(f"a row with two columns called {twice!r} cannot be a mapping; rename one of them")
        getters = [(name, self._getter(position)) for name, position in zip(names, positions, strict=True)]
        origin = self._origin_of
        return lambda record: StreamRecord({n: get(record) for n, get in getters}, record.timestamp, origin(record))

    def whole(self) -> Projection:
        return self.mapping(range(len(self.names)))

    def unprojected(self, seen: StreamRecord) -> StreamRecord:
        """The record that a projection was made of."""
        return seen.origin if self.groups else seen.with_value(None)

    def is_mutable(self, positions: Sequence[int]) -> bool:
        """Whether a value of these columns can be edited in place, as a list can and a string cannot."""
        arrow_types = self.arrow_types
        found = [arrow_types[position] for position in positions]
        # None: no declared type
        return any(one is None or pa.types.is_nested(one) or has_objects(one) for one in found)

    def is_plain(self, positions: Sequence[int]) -> bool:
        """Whether these columns come from Arrow, and their values become keys of stores without a look."""
        if self.source_names is None:
            return False
        types = dict(enumerate(self.source_types))
        return all(types.get(position) is not None and has_plain_values(types[position]) for position in positions)

    @property
    def size_of_value(self) -> Callable[[Any], int] | None:
        """`weigher` for one value, where only one operator adds bytes; None: `weigher` says."""
        return size_estimate(self.groups[0].arrow_type) if len(self.groups) == 1 else None

    def weigher(self) -> Callable[[Sequence[Any], Sequence[Any]], int] | None:
        """A function of values and origins that estimates the bytes added by operators; None: always few."""
        sizes = [size_estimate(group.arrow_type) for group in reversed(self.groups)]
        if not any(sizes):
            return None

        def weigh(values: Sequence[Any], origins: Sequence[Any]) -> int:
            added = 0
            for number, size in enumerate(sizes):
                if number:
                    values, origins = [before.value for before in origins], [before.origin for before in origins]
                if size is not None:
                    added += sum(map(size, values))
            return added

        return weigh

    @property
    def size_of_place(self) -> int:
        """The bytes that operators have added to a record, without the part that `weigher` estimates."""
        return sum(RECORD_BYTES + (fixed_size(group.arrow_type) or 0) for group in self.groups)

    def columns(self, values: Sequence[Any], origins: Sequence[Any]) -> list[pa.Array]:
        found: list[list[pa.Array]] = []
        for number, group in reversed(list(enumerate(self.groups))):
            found.append(group.columns(values))
            if number:
                values, origins = [before.value for before in origins], [before.origin for before in origins]
        if self.source_names is not None:
            found.append(source_columns(origins))
        return [column for columns in reversed(found) for column in columns]

    def no_rows(self, source: pa.Schema) -> list[pa.Array]:
        """Empty columns, as `columns` makes them of no records; `source` is the schema of the source's batches."""
        arrow_types = [] if self.source_names is None else list(source.types)
        arrow_types += [arrow_type for group in self.groups for arrow_type in group.arrow_types]
        return [pa.nulls(0, stored_type(arrow_type)) for arrow_type in arrow_types]

    def _origin_of(self, record: StreamRecord) -> Any:
        # Before the first operator a record has no value to keep: its own origin is enough.
        return record if self.groups else record.origin

    def _getter(self, position: int) -> Getter:
        """A function that reads a column from a record; the number of hops is found here, not in each row."""
        before = len(self.source_names or ())
        if position < before:
            return _from_source(position, len(self.groups))
        position -= before
        for number, group in enumerate(self.groups):
            if position < len(group.names):
                return _from_group(group.getter(position), len(self.groups) - 1 - number)
            position -= len(group.names)
        raise IndexError(position)


def _from_source(position: int, hops: int) -> Getter:
    """Reads a column of the source, `hops` records back."""
    if hops <= 1:
        return lambda record: record.origin[0].column(position)[record.origin[1]]

    def get(record: StreamRecord) -> Any:
        origin: Any = record
        for _ in range(hops):
            origin = origin.origin
        return origin[0].column(position)[origin[1]]

    return get


def _from_group(get: Callable[[Any], Any], hops: int) -> Getter:
    """Reads what an operator has added, `hops` records back."""
    if not hops:
        return lambda record: get(record.value)

    def older(record: StreamRecord) -> Any:
        for _ in range(hops):
            record = record.origin
        return get(record.value)

    return older
