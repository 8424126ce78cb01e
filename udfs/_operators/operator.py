"""What every operator is to its neighbours."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from .outputs import Downstream, Output

__all__ = ("ChainedOperator", "Marker", "Operator", "emit_marker")

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


class Operator(ABC):
    """What a chain opens, runs and ends."""

    @abstractmethod
    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Open; at the end of the block wait until the input has ended and everything is emitted, and close."""

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """End with an error; the first one counts."""


class ChainedOperator(Operator):
    """An operator that gets its rows from another one."""

    # By plain calls, on one stack: a row passes from operator to operator without a queue or a task between them. Only
    # an async operator keeps it, and returns at once.

    @property
    @abstractmethod
    def room(self) -> int:
        """How many rows may come now."""

    @abstractmethod
    def process(self, record: StreamRecord, /) -> None:
        """Take a row."""

    @abstractmethod
    def process_marker(self, marker: Marker, /) -> None:
        """Take a marker at its place among the rows."""

    @abstractmethod
    def end_of_input(self) -> None:
        """Nothing follows."""

    def input(self) -> Downstream:
        """What one of those before it hands its rows to."""
        return self  # a union has an input of its own for each
