"""Where results go: collectors and outputs."""

from __future__ import annotations

import asyncio
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from ._errors import OptionError

__all__ = ("Collector", "Output", "OutputTag", "RecordWriterOutput")


@dataclasses.dataclass(frozen=True)
class OutputTag:
    """Names a side output and the schema of its rows. Equal tags mean the same output.

    Args:
        name: told apart from all other side outputs by it.
        schema: DDL such as "city string, reason string", or a `StructType`.

    Raises:
        OptionError: the name is empty or no text.

    >>> OutputTag("rejects", "city string, reason string") == OutputTag("rejects", "city string, reason string")
    True
    """

    name: str
    schema: Any

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"an OutputTag needs a name, not {self.name!r}")


class Collector(ABC):
    """Takes records."""

    @abstractmethod
    def collect(self, record: StreamRecord) -> None:
        """Take one record."""

    def close(self) -> None:
        """Nothing follows; pass on what is still held."""


class Output(Collector):
    """Takes records and the elements that travel between them. Markers are dropped unless a class keeps them."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Take a watermark at its place among the records."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take a status at its place among the records."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Take a latency marker at its place among the records."""


class RecordWriterOutput(Output):
    """Leaves the operator: gathers results and hands them to `write` in batches.

    A batch goes out when it is full, `linger` seconds after its first row, and at the end, so that a slow
    service does not keep finished rows from Spark.

    Args:
        write: takes the values, their origins, and the watermark at each (empty unless `keep_watermarks`).
        rows: how many make a full batch.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Any], Sequence[Any], Sequence[int | None]], None],
        rows: int,
        linger: float,
        loop: asyncio.AbstractEventLoop,
        *,
        keep_watermarks: bool = False,
    ) -> None:
        self._write = write
        self._rows = rows
        self._linger = linger
        self._loop = loop
        self._keep_watermarks = keep_watermarks
        self._watermark: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._values: list[Any] = []
        self._origins: list[Any] = []
        self._watermarks: list[int | None] = []

    def collect(self, record: StreamRecord) -> None:
        # Not the record itself: thousands of live tuples would keep the garbage collector busy.
        values = self._values
        if not values:
            self._timer = self._loop.call_later(self._linger, self._flush_in_time)
        values.append(record.value)
        self._origins.append(record.origin)
        if self._keep_watermarks:
            self._watermarks.append(self._watermark)
        if len(values) >= self._rows:
            self.flush()

    def emit_watermark(self, watermark: Watermark) -> None:
        self._watermark = watermark.timestamp

    def _flush_in_time(self) -> None:
        try:
            self.flush()
        except Exception as error:  # a timer's exception would only be logged: the next call raises it
            self._failure = error

    def flush(self) -> None:
        """Write what is held."""
        if self._failure is not None:
            raise self._failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._values:
            held = self._values, self._origins, self._watermarks
            self._values, self._origins, self._watermarks = [], [], []
            self._write(*held)

    def close(self) -> None:
        self.flush()
