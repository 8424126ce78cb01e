"""Watermarks: the column they are read from, and their places among the rows of a task."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from asyncudf.queues import StreamElement, StreamRecord, Watermark
from asyncudf.queues._public import public

from .._errors.checks import positive_int, seconds, span
from .._errors.exceptions import OptionError
from .._errors.safe import safe_repr

DEFAULT_INTERVAL = 1000
_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
_UNITS["day"] = 24 * _UNITS["hour"]


class WatermarkSource(enum.Enum):
    """What the column of a strategy holds."""

    TIMES = "times"
    PUNCTUATION = "punctuation"
    WATERMARKS = "watermarks"
    NOTHING = "nothing"


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class WatermarkStrategy:
    """Where watermarks stand among the rows: no row of an unordered operator passes one. Made by its class methods.

    As in Flink, a watermark is the largest timestamp seen, less the delay, less one microsecond. `interval`: at most
    one watermark every so many rows, and one at the end of each Arrow batch; each only when it advances.

    >>> WatermarkStrategy.for_bounded_out_of_orderness("ts", "10 seconds").delay
    10000000
    """

    source: WatermarkSource
    column: str | None = None
    delay: int = 0  # microseconds
    interval: int = DEFAULT_INTERVAL
    idleness: float | None = None  # seconds

    @classmethod
    def for_monotonous_timestamps(cls, column: str, *, interval: int = DEFAULT_INTERVAL) -> WatermarkStrategy:
        """For rows in the order of their timestamps."""
        return cls(WatermarkSource.TIMES, _column(column), 0, positive_int(interval, "interval"))

    @classmethod
    def for_bounded_out_of_orderness(
        cls, column: str, delay: str | float | timedelta, *, interval: int = DEFAULT_INTERVAL
    ) -> WatermarkStrategy:
        """For rows that come late by at most `delay`: "10 seconds", seconds as a number, or a timedelta."""
        return cls(WatermarkSource.TIMES, _column(column), _microseconds(delay), positive_int(interval, "interval"))

    @classmethod
    def for_punctuation(cls, column: str) -> WatermarkStrategy:
        """A watermark follows each row that the column marks.

        A boolean column marks a row by True, and these watermarks are numbered 1, 2, ...; a timestamp column marks it
        by the timestamp of the watermark.
        """
        return cls(WatermarkSource.PUNCTUATION, _column(column))

    @classmethod
    def per_batch(cls) -> WatermarkStrategy:
        """Each Arrow batch ends with a watermark; they are numbered 1, 2, ..."""
        return cls(WatermarkSource.NOTHING)

    @classmethod
    def from_column(cls, column: str) -> WatermarkStrategy:
        """The watermarks that an earlier operator has written with `with_watermark_column`."""
        return cls(WatermarkSource.WATERMARKS, _column(column))

    def with_idleness(self, timeout: float | timedelta) -> WatermarkStrategy:
        """A copy whose input is idle when no row has come for `timeout` seconds.

        In a union, an idle input does not hold back the watermark of the other inputs. Its next row makes it active.
        """
        return dataclasses.replace(self, idleness=seconds(timeout, "timeout"))


class WatermarkGenerator:
    """Puts the watermarks of one task at their places among its rows.

    >>> generator = WatermarkGenerator(WatermarkStrategy.for_monotonous_timestamps("ts", interval=1))
    >>> list(generator.weave([("a", None), ("b", None)], [10, 20]))[1::2]
    [Watermark(timestamp=9), Watermark(timestamp=19)]
    """

    # Each task has its own, for Spark's tasks do not communicate: a watermark says nothing about other partitions.
    #
    # _last: the last watermark sent; never decreases
    # _highest, _since: the largest timestamp seen, and the rows since the last chance for a watermark

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._source, self._delay, self._interval = strategy.source, strategy.delay, strategy.interval
        self._last: int | None = None
        self._highest: int | None = None
        self._since = 0

    def before(self, mark: Any) -> Watermark | None:
        """The watermark before a row with this mark (microseconds, or a flag)."""
        # The column has the watermark that was in force when the row came to an earlier operator.
        return self._advance(mark) if self._source is WatermarkSource.WATERMARKS else None

    def timestamp(self, mark: Any) -> int | None:
        """The row's event time."""
        has_time = self._source in (WatermarkSource.TIMES, WatermarkSource.PUNCTUATION) and not isinstance(mark, bool)
        return mark if has_time else None

    def after(self, mark: Any) -> Watermark | None:
        """The watermark after the row."""
        if self._source is WatermarkSource.TIMES:
            if mark is not None and (self._highest is None or mark > self._highest):
                self._highest = mark
            self._since += 1
            return self.end_of_batch() if self._since == self._interval else None
        if self._source is WatermarkSource.PUNCTUATION:
            if not isinstance(mark, bool):
                return self._advance(mark)
            return self._next() if mark else None
        return None

    def end_of_batch(self) -> Watermark | None:
        """The watermark after the last row of a batch."""
        if self._source is WatermarkSource.TIMES:
            self._since = 0
            return None if self._highest is None else self._advance(self._highest - self._delay - 1)
        return self._next() if self._source is WatermarkSource.NOTHING else None

    def weave(self, rows: Iterable[tuple[Any, Any]], marks: Iterable[Any]) -> Iterator[StreamElement]:
        """The elements of one batch, from (value, origin) pairs and the marks of the rows."""
        for (value, origin), mark in zip(rows, marks, strict=False):
            if (watermark := self.before(mark)) is not None:
                yield watermark
            yield StreamRecord(value, self.timestamp(mark), origin)
            if (watermark := self.after(mark)) is not None:
                yield watermark
        if (watermark := self.end_of_batch()) is not None:
            yield watermark

    def _advance(self, timestamp: int | None) -> Watermark | None:
        if timestamp is None or (self._last is not None and timestamp <= self._last):
            return None
        self._last = timestamp
        return Watermark(timestamp)

    def _next(self) -> Watermark | None:
        """Watermarks without a time are numbered."""
        return self._advance((self._last or 0) + 1)


def _column(name: str) -> str:
    if not isinstance(name, str):
        raise OptionError(f"a watermark strategy takes the name of a column, such as 'ts', not {safe_repr(name)}")
    return name


def _microseconds(delay: str | float | timedelta) -> int:
    if isinstance(delay, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", delay.lower())
        if match is None or match[2] not in _UNITS:
            raise OptionError(f"delay must be like '10 seconds' ({', '.join(_UNITS)}), not {safe_repr(delay)}")
        return round(float(match[1]) * _UNITS[match[2]])
    return round(span(delay, "delay") * 1_000_000)
