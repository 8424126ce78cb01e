"""How a row looks on its way through a chain: what stays Arrow, what operators have added, who sees what of it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from asyncudf.queues import StreamRecord

from .._errors.exceptions import FunctionError
from .results import ResultWriter
from .rows import source_columns
from .sizes import may_be_large, weight

__all__ = (
    "Layout",
    "Part",
    "View",
    "WatermarkPart",
)


Getter = Callable[[StreamRecord], Any]
View = Callable[[StreamRecord], StreamRecord]


@dataclasses.dataclass(frozen=True)
class Part:
    """What one operator adds to a row: a struct's fields, or anything else as one column."""

    function: str
    kind: Any  # Arrow's type
    names: tuple[str, ...]
    spreads: bool  # a struct's fields are the columns

    @classmethod
    def of(cls, function: str, kind: pa.DataType, name: str, *, whole: bool = False) -> Part:
        """`name` is the column's, where the type is not a struct, or with `whole` where it stays one."""
        if pa.types.is_struct(kind) and not whole:
            return cls(function, kind, tuple(kind.field(i).name for i in range(kind.num_fields)), True)
        return cls(function, kind, (name,), False)

    @property
    def kinds(self) -> list[pa.DataType]:
        """The types of its columns."""
        return [self.kind.field(i).type for i in range(self.kind.num_fields)] if self.spreads else [self.kind]

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        """Its columns of some records' values."""
        array = ResultWriter(self.function, self.kind).array(values)
        return array.flatten() if self.spreads else [array]

    def getter(self, index: int) -> Callable[[Any], Any]:
        """Finds a column in the part's value."""
        if not self.spreads:
            return lambda value: value
        name = self.names[index]
        return lambda value: None if value is None else value[name]


class WatermarkPart(Part):
    """The watermark in force at a row: microseconds since the epoch, as long as nobody looks at it."""

    def getter(self, index: int) -> Callable[[Any], Any]:
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC if self.kind.tz else None)
        return lambda value: None if value is None else epoch + datetime.timedelta(microseconds=value)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a stream: those of the source, if they are still the same rows, then a part for each operator.

    A record's `value` is that of the newest part. Its `origin` leads to the parts before it: the record as it was
    before the newest part, and at the end of that line (rows, number), a row of the source. So an operator that
    adds columns makes one new record and copies nothing, and the source's columns stay Arrow.
    """

    source_names: tuple[str, ...] | None  # None: the first part replaced the rows
    source_kinds: tuple[Any, ...]
    parts: tuple[Part, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.source_names or ()) + tuple(name for part in self.parts for name in part.names)

    @property
    def kinds(self) -> list[Any]:
        return [*self.source_kinds, *(kind for part in self.parts for kind in part.kinds)]

    @property
    def is_source(self) -> bool:
        """Whether its records are bare rows of the source."""
        return not self.parts

    def plus(self, part: Part) -> Layout:
        """With the columns that an operator adds."""
        return dataclasses.replace(self, parts=(*self.parts, part))

    @classmethod
    def anew(cls, part: Part) -> Layout:
        """Of rows that an operator has made itself."""
        return cls(None, (), (part,))

    def arguments(self, positions: Sequence[int]) -> View:
        """Shows a record as a tuple of some of its columns."""
        getters = [self._getter(position) for position in positions]
        origin = self._origin_of
        if len(getters) == 1:
            only = getters[0]
            return lambda record: StreamRecord((only(record),), record.timestamp, origin(record))
        return lambda record: StreamRecord(tuple(get(record) for get in getters), record.timestamp, origin(record))

    def mapping(self, positions: Sequence[int]) -> View:
        """Shows a record as a dict of some of its columns."""
        names = [self.names[position] for position in positions]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FunctionError(f"a row with two columns called {twice!r} cannot be a mapping; rename one of them")
        getters = [(name, self._getter(position)) for name, position in zip(names, positions, strict=True)]
        origin = self._origin_of
        return lambda record: StreamRecord({n: get(record) for n, get in getters}, record.timestamp, origin(record))

    def whole(self) -> View:
        """Shows a record as a dict of all its columns."""
        return self.mapping(range(len(self.names)))

    def is_mutable(self, positions: Sequence[int]) -> bool:
        """Whether a value of these columns can be edited in place, as a list can and a string cannot."""
        kinds = self.kinds
        return any(pa.types.is_nested(kinds[position]) for position in positions)

    def weigher(self) -> Callable[[Any, Any], int] | None:
        """About how many bytes operators have added to a record, given as its value and its origin; None: few."""
        are_large = [may_be_large(part.kind) for part in reversed(self.parts)]
        if not any(are_large):
            return None

        def weigh(value: Any, origin: Any) -> int:
            added = weight(value) if are_large[0] else 0
            for is_large in are_large[1:]:
                added += weight(origin.value) if is_large else 0
                origin = origin.origin
            return added

        return weigh

    def no_rows(self, source: pa.Schema) -> list[pa.Array]:
        """The columns of no records, as `columns` would make them; `source` is that of the source's batches."""
        kinds = [] if self.source_names is None else source.types
        return [pa.array([], kind) for kind in (*kinds, *(kind for part in self.parts for kind in part.kinds))]

    def _origin_of(self, record: StreamRecord) -> Any:
        return record if self.parts else record.origin

    def unseen(self, seen: StreamRecord) -> StreamRecord:
        """The record that a view was made of."""
        return seen.origin if self.parts else seen.with_value(None)

    def _getter(self, position: int) -> Getter:
        before = len(self.source_names or ())
        if position < before:
            return _from_source(position, len(self.parts))
        position -= before
        for number, part in enumerate(self.parts):
            if position < len(part.names):
                return _from_part(part.getter(position), len(self.parts) - 1 - number)
            position -= len(part.names)
        raise IndexError(position)

    def columns(self, values: Sequence[Any], origins: Sequence[Any]) -> list[pa.Array]:
        """Arrow columns of records, given as their values and their origins."""
        found: list[list[pa.Array]] = []
        for number, part in reversed(list(enumerate(self.parts))):
            found.append(part.columns(values))
            if number:
                values, origins = [before.value for before in origins], [before.origin for before in origins]
        if self.source_names is not None:
            found.append(source_columns(origins))
        return [column for columns in reversed(found) for column in columns]


def _from_source(position: int, hops: int) -> Getter:
    if hops <= 1:
        return lambda record: record.origin[0].column(position)[record.origin[1]]

    def get(record: StreamRecord) -> Any:
        origin: Any = record
        for _ in range(hops):
            origin = origin.origin
        return origin[0].column(position)[origin[1]]

    return get


def _from_part(get: Callable[[Any], Any], hops: int) -> Getter:
    if not hops:
        return lambda record: get(record.value)

    def older(record: StreamRecord) -> Any:
        for _ in range(hops):
            record = record.origin
        return get(record.value)

    return older
