"""Makes the elements of a chain's first operator of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import pyarrow as pa

from .._arrow.rows import SourceRows, records_of, rows_of, watermark_marks
from .._arrow.sizes import size_as_objects
from .._operators.memory import InputBatch
from .._policies.watermarks import WatermarkGenerator
from .factories import AssignFactory, WaitFactory
from .plan import ChainPlan


class SourceReader:
    """Makes the elements of each batch of a task: what the chain's first operator sees of its rows."""

    # Only the columns that the first operator reads become Python values, a whole column at a time. The others stay
    # Arrow: the origin of each row, (SourceRows, number), leads back to them. Elements are made as they are pulled: of
    # the batch of a task that fails the rest is never made.

    def __init__(self, plan: ChainPlan) -> None:
        self._declared = plan.nodes[0].layout.source_types
        self._columns: tuple[int, ...] | None = None
        self._names: tuple[str, ...] | None = None
        self._function = ""
        if plan.head is not None and isinstance(factory := plan.head.factory, WaitFactory):
            self._columns = factory.positions
            self._names = factory.names if factory.function_plan.spec.takes_mapping else None
            self._function = factory.name
        self._generator: WatermarkGenerator | None = None
        self._mark: int | None = None
        if isinstance(assign := plan.start.factory, AssignFactory):
            self._generator, self._mark = WatermarkGenerator.of(assign.strategy), assign.position

    def __call__(self, batch: pa.RecordBatch) -> InputBatch:
        rows, size = SourceRows(batch, self._declared), batch.nbytes
        origins = zip(repeat(rows), range(batch.num_rows))
        values: Iterable[Any] = repeat(None)
        if self._columns is not None:
            columns, declared = [batch.column(i) for i in self._columns], [self._declared[i] for i in self._columns]
            values = rows_of(self._function, columns, self._names, declared)
            size += sum(map(size_as_objects, columns))
        if self._generator is None:
            return InputBatch(records_of(values, origins), rows, size)
        marks = repeat(None) if self._mark is None else watermark_marks(batch.column(self._mark))
        return InputBatch(self._generator.weave(zip(values, origins, strict=False), marks), rows, size)
