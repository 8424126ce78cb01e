"""Watermarks from an event-time column."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from asyncudf.queues import StreamElement, StreamRecord, Watermark

from ._errors import OptionError
from ._options import positive_int

__all__ = ("WatermarkGenerator", "WatermarkStrategy")

DEFAULT_INTERVAL = 1000
_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
_UNITS["day"] = 24 * _UNITS["hour"]


class Source(enum.Enum):
    """What a strategy reads off its column."""

    TIMES = "times"
    PUNCTUATION = "punctuation"
    WATERMARKS = "watermarks"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class WatermarkStrategy:
    """Where the fences stand that no row of an unordered operator passes; made with one of its class methods.

    `interval`: at most one watermark every so many rows, and one at the end of each Arrow batch; each only when
    it advances. As in Flink a watermark is the largest timestamp seen, less the delay, less one microsecond.

    >>> WatermarkStrategy.for_bounded_out_of_orderness("ts", "10 seconds").delay
    10000000
    """

    source: Source
    column: str | None = None
    delay: int = 0  # microseconds
    interval: int = DEFAULT_INTERVAL

    @classmethod
    def for_monotonous_timestamps(cls, column: str, *, interval: int = DEFAULT_INTERVAL) -> WatermarkStrategy:
        """For rows that come in the order of their timestamps."""
        return cls(Source.TIMES, _column(column), 0, positive_int(interval, "interval"))

    @classmethod
    def for_bounded_out_of_orderness(
        cls, column: str, delay: str | float | timedelta, *, interval: int = DEFAULT_INTERVAL
    ) -> WatermarkStrategy:
        """For rows that come late by at most `delay`: "10 seconds", seconds as a number, or a timedelta."""
        return cls(Source.TIMES, _column(column), _microseconds(delay), positive_int(interval, "interval"))

    @classmethod
    def for_punctuation(cls, column: str) -> WatermarkStrategy:
        """A watermark follows each row that the column marks: True in a boolean column (such watermarks are
        numbered 1, 2, ...), or a timestamp, which is the watermark, in a timestamp column."""
        return cls(Source.PUNCTUATION, _column(column))

    @classmethod
    def per_batch(cls) -> WatermarkStrategy:
        """Each Arrow batch ends with a watermark; they are numbered 1, 2, ..."""
        return cls(Source.NOTHING)

    @classmethod
    def from_column(cls, column: str) -> WatermarkStrategy:
        """The watermarks that an earlier operator has written with `with_watermark_column`."""
        return cls(Source.WATERMARKS, _column(column))


class WatermarkGenerator:
    """Weaves the watermarks of one task between its rows.

    >>> generator = WatermarkGenerator(WatermarkStrategy.for_monotonous_timestamps("ts", interval=1))
    >>> list(generator.weave([("a", None), ("b", None)], [10, 20]))[1::2]
    [Watermark(timestamp=9), Watermark(timestamp=19)]
    """

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._last: int | None = None  # the last watermark sent
        self._highest: int | None = None  # the largest timestamp seen
        self._count = 0  # of numbered watermarks
        self._weave = {
            Source.TIMES: self._by_time,
            Source.PUNCTUATION: self._by_punctuation,
            Source.WATERMARKS: self._by_column,
            Source.NOTHING: self._by_batch,
        }[strategy.source]

    def weave(self, rows: Iterable[tuple[Any, Any]], marks: Sequence[Any]) -> Iterator[StreamElement]:
        """The elements of one batch, from (value, origin) pairs and the column's values (microseconds or flags)."""
        return self._weave(rows, marks)

    def _by_time(self, rows: Iterable[tuple[Any, Any]], marks: Sequence[int | None]) -> Iterator[StreamElement]:
        since = 0
        for (value, origin), time in zip(rows, marks, strict=True):
            yield StreamRecord(value, time, origin)
            if time is not None and (self._highest is None or time > self._highest):
                self._highest = time
            since += 1
            if since == self._strategy.interval:
                since = 0
                yield from self._watermark()
        yield from self._watermark()

    def _watermark(self) -> Iterator[Watermark]:
        if self._highest is not None:
            yield from self._advance(self._highest - self._strategy.delay - 1)

    def _by_punctuation(self, rows: Iterable[tuple[Any, Any]], marks: Sequence[Any]) -> Iterator[StreamElement]:
        for (value, origin), mark in zip(rows, marks, strict=True):
            if isinstance(mark, bool):
                yield StreamRecord(value, None, origin)
                if mark:
                    yield from self._numbered()
            else:
                yield StreamRecord(value, mark, origin)
                if mark is not None:
                    yield from self._advance(mark)

    def _by_column(self, rows: Iterable[tuple[Any, Any]], marks: Sequence[int | None]) -> Iterator[StreamElement]:
        for (value, origin), mark in zip(rows, marks, strict=True):
            if mark is not None:
                yield from self._advance(mark)
            yield StreamRecord(value, None, origin)

    def _by_batch(self, rows: Iterable[tuple[Any, Any]], marks: Sequence[Any]) -> Iterator[StreamElement]:
        for value, origin in rows:
            yield StreamRecord(value, None, origin)
        yield from self._numbered()

    def _numbered(self) -> Iterator[Watermark]:
        self._count += 1
        yield from self._advance(self._count)

    def _advance(self, timestamp: int) -> Iterator[Watermark]:
        if self._last is None or timestamp > self._last:
            self._last = timestamp
            yield Watermark(timestamp)


def _column(name: str) -> str:
    if not isinstance(name, str):
        raise OptionError(f"a watermark strategy takes the name of a column, not {name!r}")
    return name


def _microseconds(delay: str | float | timedelta) -> int:
    if isinstance(delay, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", delay.lower())
        if match is None or match[2] not in _UNITS:
            raise OptionError(f"delay must be like '10 seconds' ({', '.join(_UNITS)}), not {delay!r}")
        return round(float(match[1]) * _UNITS[match[2]])
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay < float("inf"):
        raise OptionError(f"delay must be 0 or more seconds, not {delay!r}")
    return round(delay * 1_000_000)
