"""The elements that travel through an operator: immutable values that compare by content."""

from __future__ import annotations

import enum
from typing import Any, ClassVar, Final, NamedTuple

new_record = tuple.__new__  # half the cost of calling a NamedTuple, which counts once per row


class StreamRecord(NamedTuple):
    """A row and its event time.

    `timestamp` is in integer microseconds since the epoch, or None. `origin` is any object that the maker of the record
    attaches to it, such as the source row; each result of the record carries the same `origin`. Comparisons ignore it.

    >>> StreamRecord("Oslo", 5) == StreamRecord("Oslo", 5)
    True
    """

    value: Any
    timestamp: int | None = None
    origin: Any = None

    def with_value(self, value: Any) -> StreamRecord:
        """The record of a result: another value, the same timestamp and origin."""
        return new_record(StreamRecord, (value, self.timestamp, self.origin))

    # Tuples would equal any tuple of the same content, also a record a latency marker.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamRecord) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((StreamRecord, self.value, self.timestamp))


class _Timestamp(NamedTuple):
    timestamp: int


class Watermark(_Timestamp):
    """A promise: no row at or before `timestamp` (microseconds since the epoch) follows.

    A source never sends a lower watermark after a higher one. `Watermark.MAX` ends a stream.

    >>> Watermark(5) == Watermark(5), Watermark(5) < Watermark.MAX
    (True, True)
    """

    __slots__ = ()
    MAX: ClassVar[Watermark]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watermark) and self.timestamp == other.timestamp

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Watermark, self.timestamp))


Watermark.MAX = Watermark(2**63 - 1)


class WatermarkStatus(enum.Enum):
    """Whether an input advances time; an idle one must not hold back the others."""

    ACTIVE = "active"
    IDLE = "idle"


class LatencyMarker(NamedTuple):
    """A time stamp made at the source to measure latency; never reaches user code.

    `marked_time` is in seconds of the maker's clock.
    """

    marked_time: float
    operator_id: str
    subtask: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyMarker) and self[:] == other[:]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((LatencyMarker, *self))


# A record, or a plain tuple with the same fields: batches come as plain tuples, and most rows never become records.
AnyRecord = StreamRecord | tuple[Any, int | None, Any]
StreamElement = StreamRecord | Watermark | WatermarkStatus | LatencyMarker
ELEMENT_TYPES: Final = (StreamRecord, Watermark, WatermarkStatus, LatencyMarker)
