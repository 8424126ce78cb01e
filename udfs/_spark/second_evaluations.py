"""Warns where an engine reads rows a second time, so that each of their calls is made and paid again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from .._chain.plan import ChainPlan
from .monitoring.task_report import TaskReportSpec
from .running_task import RunningTask

ONCE_A_ROW = ("operator", "column", "table function")  # sinks and handlers run where Spark writes
ROWS, ROW_BYTES = 64, 1 << 20  # at most, at the begin and at the end of a batch: they tell it from others
RECORD = struct.Struct("!8sQ8s")  # the query, the stage and one, the first batch
USES = 1_000  # about: so many files stay in the folder
REMEDIES = (
    "To pay once: store=ResultStore.executor() for the function; or persist() the DataFrame before what reads it. To "
    "write to a table with a sort order, set write.distribution-mode=none for it. To MERGE, write the results to a "
    "table first, or set spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled=false"
)

REMEDIES_HERE = (
    "To pay once: store=ResultStore.executor() for the function; or write the results, and read them back; cache() and "
    "persist() keep nothing"
)
PARTS = 10_000  # of this process, for which it is known that they were evaluated

logger = logging.getLogger("asyncudf")


@dataclasses.dataclass(frozen=True)
class EvaluationHere:
    """The same as `Evaluation` where marks tell an operator its partition, and nothing a stage.

    There all tasks share this process, and none is tried again: what has ended once is paid again, whatever reads it.
    """

    functions: str
    use: str
    partition: int

    def warn(self) -> None:
        if (self.use, self.partition) in _evaluated:
            self._log()

    def ended(self) -> None:
        """Log if another task has evaluated the rows meanwhile, as in a union."""
        if _evaluated.setdefault((self.use, self.partition), self) is not self:
            self._log()
        for old in list(_evaluated)[:-PARTS]:
            _evaluated.pop(old, None)

    def _log(self) -> None:
        """Log once for each use."""
        if _told.setdefault(self.use, one := object()) is one:
            logger.warning(
                "%s: the same rows are evaluated a second time; each call is made and paid again. %s",
                self.functions, REMEDIES_HERE,
            )  # fmt: skip
        for old in list(_told)[:-USES]:
            _told.pop(old, None)


_evaluated: dict[tuple[str, int], EvaluationHere] = {}
_told: dict[str, object] = {}  # the uses


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A task that evaluates the rows of a partition for one use of functions, which is one place in a plan.

    `warn` logs if this executor has evaluated them to their end before, in another stage; `ended` says that this is so
    now. A task that is tried again, a copy of it and a stage that is tried again are all of the same stage. Rows that
    Spark has persisted or shuffled are not evaluated again. What has failed, or was stopped by a LIMIT, does not count.
    """

    # All workers of an executor share a file for each use, with a record for each partition at its number. It is in the
    # folder where Spark keeps the blocks of the executor: of one that is lost the records are gone too. So to evaluate
    # its rows anew is no second evaluation.
    #
    # first_batch: a digest of the rows that Spark has sent first
    # is_frame: the use reads one DataFrame. A column may be used for several, and a function of SQL for any: then the
    # partition must begin with the same batch as well.

    file: Path
    functions: str  # those that pay
    partition: int
    stage: int
    query: bytes
    first_batch: bytes
    is_frame: bool

    @classmethod
    def of(
        cls, task: RunningTask, folder: str | None, spec: TaskReportSpec, plan: ChainPlan, first: pa.RecordBatch
    ) -> Evaluation | EvaluationHere | None:
        """The evaluation of a task; None where each function has a store, or where it cannot be told."""
        paid = [one.spec.full_name for one in plan.functions if one.options.store is None]
        functions = ", ".join(dict.fromkeys(paid))
        if task.stage is None and task.key is not None and spec.entry_point == "operator" and paid:
            return EvaluationHere(functions, spec.place, task.partition)
        if task.stage is None or folder is None or spec.entry_point not in ONCE_A_ROW or not paid:
            return None
        micro_batch = task.property_of("streaming.sql.batchId")  # each one of a stream has the same plan
        run = "" if micro_batch is None else f"{task.property_of('spark.jobGroup.id')} {micro_batch}"
        return cls(
            Path(folder, "evaluations", f"{spec.place}{spec.mention}"),
            functions,
            task.partition,
            task.stage,
            _digest(run.encode()),
            _digest(*_samples(first)),
            spec.entry_point == "operator" or bool(spec.mention),
        )

    def warn(self) -> None:
        """Before the first call: log if the rows were evaluated before."""
        with contextlib.suppress(OSError), self.file.open("rb") as file:
            file.seek(self.partition * RECORD.size)
            query, stage, first_batch = RECORD.unpack(file.read(RECORD.size).ljust(RECORD.size, b"\0"))
            is_same = query == self.query and (self.is_frame or first_batch == self.first_batch)
            if stage and stage != self.stage + 1 and is_same:
                self._log(f"in stage {self.stage}, after stage {stage - 1}")

    def ended(self) -> None:
        """All rows are evaluated. Log if a plan has the same DataFrame at two places of one stage, as a union."""
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            is_first = not self.file.exists()
            file = os.open(self.file, os.O_RDWR | os.O_CREAT)
            try:
                os.lseek(file, self.partition * RECORD.size, os.SEEK_SET)
                os.write(file, RECORD.pack(self.query, self.stage + 1, self.first_batch))
                if self.is_frame and (earlier := self._twin(self.file.read_bytes())) is not None:
                    self._log(f"as partition {self.partition} of stage {self.stage}, after partition {earlier}")
            finally:
                os.close(file)
            if is_first:
                self._delete_old()

    def _twin(self, records: bytes) -> int | None:
        """The partition of this stage with the same rows; None unless all others repeat each other in the same way.

        In a union of a DataFrame with itself the second half of the partitions repeats the first. One partition that
        begins like another is no sign of it: the data may repeat itself.
        """
        whole = len(records) - len(records) % RECORD.size  # a full disk takes a part of the last one
        digests = {
            number: first_batch
            for number, (query, stage, first_batch) in enumerate(RECORD.iter_unpack(records[:whole]))
            if (query, stage) == (self.query, self.stage + 1)
        }
        same = (number for number, digest in digests.items() if digest == self.first_batch and number != self.partition)
        if (other := next(same, None)) is None:
            return None
        distance = abs(other - self.partition)
        pairs = {(one, digests[number + distance]) for number, one in digests.items() if number + distance in digests}
        is_union = len(pairs) > 1 and all(one == again for one, again in pairs)
        return min(other, self.partition) if is_union else None

    def _delete_old(self) -> None:
        """Of a stream that makes a DataFrame for each of its micro-batches, each is another use."""
        files = sorted(self.file.parent.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in files[:-USES]:
            file.unlink()

    def _log(self, where: str) -> None:
        """Log once for each use and executor."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{self.file}.told", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            logger.warning(
                "%s: Spark evaluates the same rows a second time, %s; each call is made and paid again. %s",
                self.functions,
                where,
                REMEDIES,
            )


def _samples(batch: pa.RecordBatch) -> tuple[bytes, pa.Buffer, pa.Buffer]:
    """The number of rows, the first rows, and the last rows, as bytes."""
    rows = max(1, min(ROWS, ROW_BYTES * batch.num_rows // max(1, batch.nbytes)))
    last = batch.slice(max(0, batch.num_rows - rows))
    return b"%d" % batch.num_rows, batch.slice(0, rows).serialize(), last.serialize()


def _digest(*data: bytes | pa.Buffer) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in data:
        digest.update(part)
    return digest.digest()


def batch_of(columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), [str(number) for number in range(len(columns))])
