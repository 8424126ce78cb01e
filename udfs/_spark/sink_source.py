"""A sink as a data source in Python: `df.write.format(name)` and `df.writeStream.format(name)`."""

from __future__ import annotations

import dataclasses
import logging
import posixpath
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.fs as pfs
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import types as spark

from .._chain.function_plan import SinkPlan, no_micro_batch
from .._errors.exceptions import AsyncUDFError, FunctionError, OptionError
from ._compat import (
    HAS_STREAM_WRITERS,
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    check_data_sources,
)
from .monitoring.task_report import TaskReportSpec
from .sinks import ENTRY_POINT, SinkTask, letters_in, micro_batch_named, sink_task, summed

OF_THE_STREAM = {"checkpointlocation", "queryname"}  # options of `writeStream` that Spark reads, and passes on

logger = logging.getLogger("asyncudf")


def sink_class(name: str, plan: SinkPlan, columns: tuple[str, ...], dead_letters: str | None) -> type[DataSource]:
    """The class for `spark.dataSource.register`; FunctionError if this Spark has no data sources in Python."""
    check_data_sources()
    # Made here, where Spark pickles the class and knows the driver's channels: the process that plans a write does not.
    declared = {"named": name, "plan": plan, "columns": columns, "dead_letters": dead_letters}
    reported = {"report_spec": TaskReportSpec(ENTRY_POINT), "__module__": __name__}
    return type("SinkSource", (_SinkSource,), declared | reported)


class _SinkSource(DataSource):
    """Made in a process of Spark's for each write, which has no session."""

    named: ClassVar[str]
    plan: ClassVar[SinkPlan]
    columns: ClassVar[tuple[str, ...]]
    dead_letters: ClassVar[str | None]  # the folder for rows that fail; None where a failed row fails the write
    report_spec: ClassVar[TaskReportSpec]

    @classmethod
    def name(cls) -> str:
        return cls.named

    def schema(self) -> Any:
        raise FunctionError(f"{self.name()} is a sink: it can be written to, and not read")

    def writer(self, schema: spark.StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(*self._planned(schema, overwrite, set(), no_micro_batch))

    def streamWriter(self, schema: spark.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        if not HAS_STREAM_WRITERS:
            raise FunctionError(
                f"{self.name()} cannot be written to by a stream here, which Spark can do with Arrow batches from "
                "version 4.1 on; use foreachBatch(stream_sink(function, ...))"
            )
        return _StreamWriter(*self._planned(schema, overwrite, OF_THE_STREAM, micro_batch_of_task))

    def _planned(
        self, schema: spark.StructType, overwrite: bool, known: set[str], micro_batch: Callable[[], str]
    ) -> tuple[SinkTask, Callable[[], str], DeadLetterFolder | None]:
        if overwrite:
            raise OptionError(f'{self.named} is a sink, to which rows can only be added: give mode("append")')
        if unknown := sorted(option for option in self.options if option.lower() not in known):
            raise OptionError(
                f"{self.named} takes no option {unknown[0]!r}: options of the sink are those of "
                f"sink_source({self.named!r}, ...)"
            )
        folder = None if self.dead_letters is None else DeadLetterFolder.at(self.dead_letters)
        plan = dataclasses.replace(self.plan, micro_batch=micro_batch)
        return sink_task(plan, schema, self.columns, self.report_spec), micro_batch, folder


@dataclasses.dataclass
class _Ended(WriterCommitMessage):
    micro_batch: str
    ends: list[tuple[str | None, bytes | None]]


class _Ends:
    """What is the same for a DataFrame and for a micro-batch."""

    def __init__(self, task: SinkTask, micro_batch: Callable[[], str], folder: DeadLetterFolder | None) -> None:
        self._task, self._micro_batch, self._folder = task, micro_batch, folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Ended(self._micro_batch(), [end for end in self._task.ends(iterator) if end != (None, None)])

    def commit(self, messages: Sequence[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """All tasks have succeeded: keep the rows that failed. Spark may say so again for the same micro-batch."""
        ended = [message for message in messages if message is not None]
        figures, letters = summed([end for message in ended for end in message.ends])
        if self._folder is not None and letters:
            name = ended[0].micro_batch.replace(" ", "-") or uuid.uuid4().hex
            batches = [batch for packed in letters for batch in letters_in(packed)]
            self._folder.write(f"{name}.parquet", batches, self._task.letters.names)
        logger.info("%s: %s", self._task.plan.functions[0].spec.name, figures.rows)

    def abort(self, messages: Sequence[Any], batchId: int = 0) -> None:  # noqa: N803
        logger.warning(
            "%s: the write has failed; rows that were written stay written, and are sent again if it is run again, "
            "unless a store= has them as acknowledged",
            self._task.plan.functions[0].spec.name,
        )


class _Writer(_Ends, DataSourceArrowWriter): ...


class _StreamWriter(_Ends, DataSourceStreamArrowWriter): ...


@dataclasses.dataclass(frozen=True)
class DeadLetterFolder:
    """A folder of Parquet files, one for each write or micro-batch in which rows have failed."""

    filesystem: Any  # one of pyarrow's
    path: str

    @classmethod
    def at(cls, where: str) -> DeadLetterFolder:
        """The folder at a path or URI, which is made if it is not there; OptionError if there can be none."""
        try:
            filesystem, path = pfs.FileSystem.from_uri(where)
            filesystem.create_dir(path, recursive=True)
        except Exception as error:
            raise OptionError(f"dead_letters: there can be no folder at {where!r}: {error}") from error
        return cls(filesystem, path)

    def write(self, name: str, batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> None:
        table = pa.Table.from_batches(batches).rename_columns(list(names))
        # Under a name that readers skip first: they see a whole file, or none.
        hidden, file = (posixpath.join(self.path, one) for one in (f"_{name}", name))
        pq.write_table(table, hidden, filesystem=self.filesystem)
        self.filesystem.move(hidden, file)


def micro_batch_of_task() -> str:
    task = TaskContext.get()
    names = ("sql.streaming.queryId", "streaming.sql.batchId")
    query, batch = (None if task is None else task.getLocalProperty(name) for name in names)
    if query is None or batch is None:
        raise AsyncUDFError("Spark does not tell which micro-batch this is; use foreachBatch(stream_sink(...))")
    return micro_batch_named(query, int(batch))
