"""Outputs that note what they are given."""

from __future__ import annotations

from typing import Any

from asyncudf import OutputTag
from asyncudf._engine.operators.outputs import StreamOutput
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus


class Emitted:
    """An output that remembers what it was given."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.collect = self.emit_watermark = self.emit_watermark_status = self.emit_latency_marker = (
            self.elements.append
        )

    @property
    def values(self) -> list[Any]:
        return [e.value if isinstance(e, StreamRecord) else e for e in self.elements]


class Taken(StreamOutput):
    """Notes what it takes; with a tag only that tag's records."""

    def __init__(self, tag: OutputTag | None = None, available: int = 10) -> None:
        super().__init__(tag)
        self.all: list[Any] = []
        self._available = available
        self.closed = 0

    @property
    def available(self) -> int:
        return self._available

    @available.setter
    def available(self, available: int) -> None:
        self._available = available

    def collect(self, record: StreamRecord) -> None:
        self.all.append(record)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        if tag == self.tag:
            self.all.append((tag, record))

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        self.all.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.all.append(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self.all.append(marker)

    def close(self) -> None:
        self.closed += 1
