"""What every operator is to its neighbours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from .outputs import Output

__all__ = ("Marker", "Operator", "emit_marker")

Marker = Watermark | WatermarkStatus | LatencyMarker


def emit_marker(output: Output, marker: Marker) -> None:
    """Hand a marker to the method for its kind."""
    match marker:
        case Watermark():
            output.emit_watermark(marker)
        case WatermarkStatus():
            output.emit_watermark_status(marker)
        case LatencyMarker():
            output.emit_latency_marker(marker)


class Operator:
    """Passes everything on; a subclass says what it does with rows or markers."""

    def __init__(self, output: Output) -> None:
        self._output = output

    @property
    def room(self) -> int:
        return self._output.room

    def process(self, record: StreamRecord) -> None:
        self._output.collect(record)

    def process_marker(self, marker: Marker) -> None:
        emit_marker(self._output, marker)

    def end_of_input(self) -> None:
        self._output.close()

    def abort(self, error: BaseException) -> None:
        """Nothing runs here that had to be stopped."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open; at the end of the block close."""
        yield
