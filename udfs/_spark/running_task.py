"""The task that runs now, as far as its engine says: the query, the partition, the attempt.

Spark says it in its TaskContext. For an engine without one the plan does: the rows of an operator have two columns of
marks behind their own, and a column has the mark of its query as its last argument (`marks` puts them there).
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

MARKS = ["asyncudf query", "asyncudf partition"]
TASKS = 1_000  # of this process, for which it is known how many uses of a function they had

Uses = dict[str, "itertools.count[int]"]  # of each function: the numbers of its operators in a task


@dataclasses.dataclass(frozen=True)
class RunningTask:
    """The identity of a task, and the properties of its job.

    Attributes:
        query: the name of its query, or of its stage if it has no query; None: not known.
        rows: a name for the rows of the query that it works on; another attempt at these rows has the same name.
        stage: None where the engine has none.
        attempt: how often the task was begun before.
        key: the same for all that runs in one attempt in this process.
        property_of: a property of its job, by name.
    """

    query: str | None
    rows: str
    stage: int | None = None
    partition: int = 0
    attempt: int = 0
    key: object = None
    property_of: Callable[[str], str | None] = lambda name: None

    @classmethod
    def now(cls) -> RunningTask:
        """The task of this thread."""
        task = TaskContext.get()
        if task is None:
            return cls(None, uuid.uuid4().hex)
        stage, partition, query = task.stageId(), task.partitionId(), task.getLocalProperty("spark.sql.execution.id")
        return cls(
            f"stage {stage}" if query is None else f"query {query}",
            f"{stage}:{partition}",
            stage,
            partition,
            task.attemptNumber(),
            task.taskAttemptId(),
            task.getLocalProperty,
        )

    @classmethod
    def of_rows(cls, batch: pa.RecordBatch) -> RunningTask:
        """The task that has these rows; there is at least one row."""
        if not _is_marked(batch):
            return cls.now()
        query, partition = (batch.column(name)[0].as_py() for name in MARKS)
        return cls(f"query of {query}", str(partition), partition=partition, key=(query, partition))

    @classmethod
    def of_column(cls, mark: pa.Array) -> RunningTask:
        """The task of a column, by the mark of its query. Of which rows it is does not show."""
        return cls(f"query of {mark[0].as_py()}", uuid.uuid4().hex)

    def uses(self) -> Uses:
        """What all functions of this task count in."""
        return {} if self.key is None else _uses_of(self.key)


# Functions of one task run side by side, each in a chain of its own; and tasks, where they share an interpreter.
_uses: dict[object, Uses] = {}


def _uses_of(key: object) -> Uses:
    uses = _uses.setdefault(key, {})
    for old in list(_uses)[:-TASKS]:
        _uses.pop(old, None)
    return uses


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as they were before they were marked."""
    return batch.select(list(range(batch.num_columns - len(MARKS)))) if _is_marked(batch) else batch


def _is_marked(batch: pa.RecordBatch) -> bool:
    names: Sequence[Any] = batch.schema.names
    return names[-len(MARKS) :] == MARKS


def is_for_want_of_a_context(error: BaseException | None) -> bool:
    """Whether a function has used an attribute of the None that it got in place of a missing TaskContext."""
    return (
        isinstance(error, AttributeError)
        and error.obj is None
        and hasattr(TaskContext, error.name or "")
        and TaskContext.get() is None
    )
