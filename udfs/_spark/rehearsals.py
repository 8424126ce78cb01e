"""The calls of a rehearsal, made in Spark's tasks: results go to the function's store, and records to the driver."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from .._chain.chain import Chain, SourceReader
from .._engine.calls.recorder import AttemptRecord, Recorder
from .._engine.loop.bridge import pipe
from .._rehearsal.service_model import TaskSample
from .evaluations import ChainTask
from .pickling import with_import_help

SCHEMA = "record string"


@dataclasses.dataclass(frozen=True)
class RehearsalTask:
    """The worker's side, for `mapInArrow`: runs a chain of one function, and gives what its calls came to."""

    task: ChainTask

    def __reduce__(self) -> Any:
        return with_import_help(self)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        recorders: list[Recorder] = []
        totals: list[Any] = []

        def built(chain: Chain) -> None:
            for operator in chain.counted.values():
                recorders.append(Recorder(operator.counters))
                totals.append(operator.counters.totals)
                operator.observe(recorders[-1])

        with self.task.error_reporting:
            size = 0
            for batch in pipe(filled, partial(self.task._start, built=built), SourceReader(self.task.plan)):
                size += batch.nbytes
            found = [
                json.dumps([recorder.records, total.rows, total.store_hits, size, recorder.processor])
                for recorder, total in zip(recorders, totals, strict=True)
            ]
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


def run_part(df: DataFrame, task: ChainTask) -> Part:
    """Make the calls of these rows."""
    began = time.monotonic()
    rows = df.mapInArrow(RehearsalTask(task), SCHEMA).collect()
    return Part([_sample(json.loads(row[0])) for row in rows], time.monotonic() - began)


def _sample(plain: Any) -> TaskSample:
    records, rows, answered, size, processor = plain
    return TaskSample([_record(*record) for record in records], rows, answered, size, processor)


def _record(*values: Any) -> AttemptRecord:
    record = AttemptRecord(*values)
    return record._replace(costs=tuple(record.costs), keys=tuple(record.keys))
