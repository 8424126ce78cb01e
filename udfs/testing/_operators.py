"""The operators of the test kit, over plain values."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterable, Iterator
from typing import Any

from asyncudf.queues import LatencyMarker, StreamElement, StreamRecord, Watermark, WatermarkStatus

from .._api.decorator import AsyncUDF
from .._chain.chain import Chain
from .._chain.environment import TaskEnvironment
from .._chain.plan import ChainPlan
from .._chain.sinks import OutputSink, SideOutputValidators
from .._functions.side_outputs import DEAD_LETTERS, OutputTag
from .._operators.outputs import Output
from .._spark.planner import plan_function_offline
from .._spark.types import side_output_type

__all__ = ("ListOutput", "chain_of", "elements_of")


class ListOutput(Output):
    """Keeps what leaves a chain, for a test to look at."""

    def __init__(self, side_outputs: dict[OutputTag, list[Any]] | None = None) -> None:
        super().__init__()
        self.everything: list[Any] = []
        self._sides = {} if side_outputs is None else side_outputs

    @property
    def collected(self) -> list[Any]:
        """Results and watermarks, in the order of emission."""
        return [item for item in self.everything if not isinstance(item, (WatermarkStatus, LatencyMarker))]

    def collect(self, record: StreamRecord) -> None:
        self.everything.append(record.value)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        row = {"input": record.origin, **record.value} if tag == DEAD_LETTERS else record.value
        self._sides.setdefault(tag, []).append(row)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        if watermark != Watermark.MAX:
            self.everything.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.everything.append(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self.everything.append(marker)


def chain_of(udf: AsyncUDF[..., Any], output: Output, loop: asyncio.AbstractEventLoop) -> Chain:
    """The chain of a function, as Spark runs it; its results are checked, and stay what the function returned."""
    # keeps_results: a test compares with what its function returned, not with what Arrow takes in its place.
    # Random(0): a run is the same each time, jitter included.
    plan = dataclasses.replace(plan_function_offline(udf.spec, udf.options, udf.returns), keeps_results=True)
    names = udf.spec.parameters
    environment = TaskEnvironment(loop, random.Random(0), side_types=SideOutputValidators(side_output_type))
    return Chain(ChainPlan.of_function(plan, names, [None] * max(1, len(names))), environment, OutputSink(output))


def elements_of(udf: AsyncUDF[..., Any], rows: Iterable[Any]) -> Iterator[StreamElement]:
    """Rows as a user writes them down, as the elements that an operator takes."""
    spec = udf.spec
    several = spec.variadic or len(spec.parameters) > 1
    for row in rows:
        if isinstance(row, (Watermark, WatermarkStatus, LatencyMarker)):
            yield row
            continue
        record = row if isinstance(row, StreamRecord) else StreamRecord(row)
        if spec.takes_mapping:
            yield StreamRecord(record.value, record.timestamp, record.value)
            continue
        arguments = record.value if several and isinstance(record.value, tuple) else (record.value,)
        spec.check_column_count(len(arguments))
        yield StreamRecord(arguments, record.timestamp, arguments)
