"""The calls of a rehearsal, made in Spark's tasks: results go to the function's store, and records to the driver."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from .._chain.chain import Chain
from .._engine.calls.recorder import AttemptRecord, Recorder
from .._rehearsal.service_model import TaskSample
from .evaluations import ChainTask
from .pickling import with_import_help

SCHEMA = "record string"


@dataclasses.dataclass(frozen=True)
class RehearsalTask:
    """The worker's side, for `mapInArrow`: runs a chain of one function, and gives what its calls came to."""

    task: ChainTask
    calls: int | None  # at most, in all tasks; None: one for each row
    tasks: int
    query: str  # of both parts: a budget of one query is for both

    def __reduce__(self) -> Any:
        return with_import_help(self)

    @property
    def most(self) -> int:
        """Calls of this task."""
        if self.calls is None:
            return sys.maxsize
        context = TaskContext.get()
        assert context is not None
        return self.calls // self.tasks + (context.partitionId() < self.calls % self.tasks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        recorders: list[Recorder] = []
        totals: list[Any] = []

        def built(chain: Chain) -> None:
            for operator in chain.counted.values():
                recorders.append(Recorder(operator.counters, self.most))
                totals.append(operator.counters.totals)
                operator.observe(recorders[-1])

        with self.task.error_reporting:
            size = sum(batch.nbytes for batch in self.task.run(batches, built=built, query=self.query))
            found = []
            for recorder, total in zip(recorders, totals, strict=True):
                without = total.unpaid + recorder.not_called  # rows that failed as a budget or the sample was used up
                rows, failed = total.rows - without, total.failures - without
                figures = [rows, total.store_hits, failed, size, recorder.processor, total.errors, total.examples]
                found.append(json.dumps([recorder.records, *figures]))
            yield pa.RecordBatch.from_pydict({"record": pa.array(found, pa.string())})


class Part(NamedTuple):
    """What the tasks of one part of a sample did."""

    tasks: list[TaskSample]
    seconds: float  # of the query

    @property
    def startup(self) -> float:
        """Seconds of the query beside the calls."""
        records = [one for task in self.tasks for one in task.records]
        if not records:
            return self.seconds
        calls = max(one.began + one.seconds for one in records) - min(one.began for one in records)
        return max(0.0, self.seconds - calls)


def run_part(df: DataFrame, task: RehearsalTask) -> Part:
    """Make the calls of these rows."""
    began = time.monotonic()
    numbered = df.toDF(*map(str, range(len(df.columns))))  # the task knows their names; Spark takes none with dots here
    rows = numbered.mapInArrow(task, SCHEMA).collect()
    return Part([_sample(json.loads(row[0])) for row in rows], time.monotonic() - began)


def _sample(plain: Any) -> TaskSample:
    records, *figures = plain
    return TaskSample([_record(*record) for record in records], *figures)


def _record(*values: Any) -> AttemptRecord:
    record = AttemptRecord(*values)
    return record._replace(costs=tuple(record.costs), keys=tuple(record.keys))
