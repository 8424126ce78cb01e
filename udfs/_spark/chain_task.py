"""The worker's side of a chain: what `mapInArrow` calls with the batches of a partition."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from .._chain.chain import SourceReader
from .._chain.plan import ChainPlan
from .._chain.results import ArrowOutputs, ResultPlan, side_output_validators, without_rows
from .._engine.loop.bridge import Bridge, pipe
from .._functions.side_outputs import OutputTag
from .monitoring.task_report import TaskReportSpec, WaitingReport
from .pickling import Travelling
from .running_task import RunningTask, unmarked
from .worker import ErrorReporting, start_bridge

# A worker loads it with what it imports: nothing of what plans a chain, and no pandas.


@dataclasses.dataclass(frozen=True)
class ChainTask(Travelling):
    """The worker's side of a chain, for `mapInArrow`."""

    plan: ChainPlan
    results: tuple[ResultPlan, ...]
    side_output_type: Callable[[OutputTag], Any]  # the Arrow type of one whose rows are not read yet
    token: str  # differs for each evaluation: Spark would persist equal ones once, and serve both from it
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)
    report_spec: TaskReportSpec = dataclasses.field(default_factory=lambda: TaskReportSpec("operator"))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.run(batches)

    def run(self, batches: Iterable[pa.RecordBatch], **how: Any) -> Iterator[pa.RecordBatch]:
        """Run the chain; `query` replaces that of the task, and `start_bridge` has the rest."""
        # Another chain sends empty batches as a sign of life. The first batch says how large batches are, so drop them.
        filled = (batch for batch in batches if batch.num_rows)
        functions, reader = self.plan.functions, SourceReader(self.plan)
        read = lambda batch: reader(unmarked(batch))  # noqa: E731
        report = partial(WaitingReport, self.report_spec, functions[0]) if functions else None
        with self.error_reporting:
            yield from pipe(filled, partial(self._start, **how), read, self.plan.name, report)

    def _start(
        self, first: pa.RecordBatch, waited: float, query: str | None = None, **how: Any
    ) -> Bridge[Any, pa.RecordBatch]:
        task, first = RunningTask.of_rows(first), unmarked(first)
        # Where nothing tells the task it is of the evaluation that this was planned for.
        task = dataclasses.replace(task, query=query or task.query or self.token)

        def outputs_of(loop: asyncio.AbstractEventLoop, emit: Callable[[pa.RecordBatch], None]) -> ArrowOutputs:
            return ArrowOutputs(self.results, emit, first.num_rows, loop, self.side_output_type)

        nothing = partial(without_rows, self.results, first.schema)
        side_types = side_output_validators(self.side_output_type, self.results)
        return start_bridge(
            self.plan, outputs_of, nothing, self.report_spec, side_types, waited, first=first, task=task, **how
        )
