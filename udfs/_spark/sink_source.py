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
from .sinks import ENTRY_POINT, SinkFigures, SinkTask, letters_in, micro_batch_named, sink_task

OF_THE_STREAM = {"checkpointlocation", "queryname"}  # options of `writeStream` that Spark reads, and passes on

logger = logging.getLogger("asyncudf")


@dataclasses.dataclass(frozen=True)
class SinkDeclaration:
    """What `sink_source` was called with."""

    name: str
    plan: SinkPlan
    columns: tuple[str, ...]
    dead_letters: str | None  # the folder for rows that fail; None where a failed row fails the write
    # Made here, where Spark pickles the class and knows the driver's channels: the process that plans a write does not.
    report_spec: TaskReportSpec = dataclasses.field(default_factory=lambda: TaskReportSpec(ENTRY_POINT))

    def as_class(self) -> type[DataSource]:
        """The class for `spark.dataSource.register`; FunctionError if this Spark has no data sources in Python."""
        check_data_sources()
        return type("SinkSource", (_SinkSource,), {"declared": self, "__module__": __name__})


class _SinkSource(DataSource):
    """Made in a process of Spark's for each write, which has no session."""

    declared: ClassVar[SinkDeclaration]

    @classmethod
    def name(cls) -> str:
        return cls.declared.name

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
    ) -> tuple[SinkTask, DeadLetterFolder | None]:
        declared = self.declared
        if overwrite:
            raise OptionError(f'{declared.name} is a sink, to which rows can only be added: give mode("append")')
        if unknown := sorted(option for option in self.options if option.lower() not in known):
            raise OptionError(
                f"{declared.name} takes no option {unknown[0]!r}: options of the sink are those of "
                f"sink_source({declared.name!r}, ...)"
            )
        folder = None if declared.dead_letters is None else DeadLetterFolder.at(declared.dead_letters)
        plan = dataclasses.replace(declared.plan, micro_batch=micro_batch)
        return sink_task(plan, schema, declared.columns, declared.report_spec), folder


@dataclasses.dataclass
class _Ended(WriterCommitMessage):
    micro_batch: str = ""
    figures: list[str] = dataclasses.field(default_factory=list)
    letters: list[bytes] = dataclasses.field(default_factory=list)


class _Ends:
    """What is the same for a DataFrame and for a micro-batch."""

    def __init__(self, task: SinkTask, folder: DeadLetterFolder | None) -> None:
        self._task, self._folder = task, folder

    def _write(self, batches: Iterator[pa.RecordBatch], micro_batch: str) -> _Ended:
        ended = _Ended(micro_batch)
        for figures, letters in self._task.ends(batches):
            if figures is not None:
                ended.figures.append(figures)
            if letters is not None:
                ended.letters.append(letters)
        return ended

    def _commit(self, messages: Sequence[Any], name: str) -> None:
        """All tasks have succeeded: keep the rows that failed. Spark may say so again for the same micro-batch."""
        ended = [message for message in messages if message is not None]
        figures = SinkFigures.of_tasks(text for message in ended for text in message.figures)
        letters = [batch for message in ended for packed in message.letters for batch in letters_in(packed)]
        if self._folder is not None and letters:
            self._folder.write(f"{name}.parquet", letters, self._task.letters.names)
        logger.info("%s: %s", self._task.plan.functions[0].spec.name, figures.rows)

    def abort(self, messages: Sequence[Any], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        logger.warning(
            "%s: the write has failed; rows that were written stay written, and are sent again if it is run again, "
            "unless a store= has them as acknowledged",
            self._task.plan.functions[0].spec.name,
        )


class _Writer(_Ends, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, "")

    def commit(self, messages: Sequence[Any]) -> None:
        self._commit(messages, uuid.uuid4().hex)


class _StreamWriter(_Ends, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, micro_batch_of_task())

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        named = next((message.micro_batch for message in messages if message is not None), f"{batchId}")
        self._commit(messages, named.replace(" ", "-"))


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
