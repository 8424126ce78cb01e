"""Sinks: a chain that gives a job its dead letters and its figures, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import logging
import posixpath
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.fs as pfs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from .._arrow.layout import ColumnGroup
from .._chain.chain import Chain
from .._chain.function_plan import ACKNOWLEDGED, SinkPlan, no_micro_batch
from .._chain.plan import ChainPlan, StreamNode, WaitFactory
from .._chain.results import ERROR_GROUP, ResultPlan, packed
from .._engine.loop.bridge import SignsOfLife
from .._errors.exceptions import AsyncUDFError, FunctionError, OptionError
from .._errors.safe import named_error
from .._functions.options import Options
from .._functions.side_outputs import DEAD_LETTERS
from .._functions.signature import FunctionSpec
from .._observe.function_metrics import FunctionMetrics, SinkRows
from ._compat import check_data_sources, engine_of, spark_schema
from .chain_task import ChainTask
from .coordinators import coordinator_config
from .data_sources import (
    HAS_STREAM_WRITERS,
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from .evaluations import arrow_struct, check_rows
from .monitoring.task_report import TaskReportSpec
from .pickling import check_picklable
from .planner import rows_node
from .running_task import RunningTask
from .schemas import arguments, as_nullable, check_source, column_names, joined_schema, mapped
from .types import parsed_offline, side_output_type

LETTERS_AT_ONCE = 4 * 2**20  # bytes of dead letters that a task packs into one row
COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)
ENTRY_POINT = "sink"  # in reports
EXAMPLES = 20  # a message is kept for so many reasons
STAGE = spark.StructType().add("figures", "string").add("letters", "binary")
ENDS = pa.schema({"figures": pa.string(), "letters": pa.binary()})  # the same for Arrow
ERROR: spark.StructField = parsed_offline(DEAD_LETTERS.schema).fields[0]  # type: ignore[attr-defined]
OF_THE_STREAM = {"checkpointlocation", "queryname"}  # options of `writeStream` that Spark reads, and passes on

logger = logging.getLogger("asyncudf")


def plan_sink(
    spec: FunctionSpec,
    options: Options,
    micro_batch: Callable[[], str] = no_micro_batch,
    session: SparkSession | None = None,
) -> SinkPlan:
    """The plan of a function that writes rows; `micro_batch` is asked in each task. `session` as in `plan_function`."""
    coordinator = coordinator_config(spec, options, session)
    plan = SinkPlan(spec, options, ACKNOWLEDGED, coordinator=coordinator, micro_batch=micro_batch)
    plan.check_stored()
    check_picklable(plan)
    return plan


class SinkFigures:
    """What a sink did, in one task or in many: the figures of its function, and why rows failed."""

    def __init__(self) -> None:
        self.metrics = FunctionMetrics()
        self.reasons: Counter[str] = Counter()  # how many rows failed for each
        self.examples: dict[str, str] = {}  # a message for each reason

    def note_failures(self, failures: Iterable[tuple[str, str]]) -> None:
        for reason, message in failures:
            self.reasons[reason] += 1
            self._keep_example(reason, message)

    def _keep_example(self, reason: str, message: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.setdefault(reason, message)

    @property
    def rows(self) -> SinkRows:
        return SinkRows.of(vars(self.metrics))

    def to_json(self) -> str:
        return json.dumps([self.metrics.to_plain(), self.reasons, self.examples])

    @classmethod
    def of_tasks(cls, texts: Iterable[str]) -> SinkFigures:
        total = cls()
        for text in texts:
            metrics, reasons, examples = json.loads(text)
            total.metrics.merge(FunctionMetrics.from_plain(metrics))
            total.reasons.update(reasons)
            for reason, message in examples.items():
                total._keep_example(reason, message)
        return total


def warn_of_lost_sorts(name: str, session: Any) -> None:
    """Log for a data source whose writes lose a sort on the engine of the session: only a write has a DataFrame."""
    if session is not None and not (engine := engine_of(session)).keeps_sorts:
        logger.warning(
            "%s: %s takes a sort before a write out of the plan, and rows would be sent as they were before. Write "
            "df.orderBy(...).offset(0), with offset directly after the sort: that keeps the order, in one partition; "
            "or .limit(2**31 - 1), which takes longer and is kept also where the query has subqueries",
            name, engine.name,
        )  # fmt: skip


def check_micro_batches(name: str, session: Any) -> None:
    """Raises FunctionError where the engine of the session has no foreachBatch."""
    if session is not None and not (engine := engine_of(session)).batches_streams:
        raise FunctionError(
            f"stream_sink({name}, ...) is for foreachBatch, and {engine.name} has none, nor another way to give a "
            f"stream to a function that writes: use async_sink(df, {name}, ...) for DataFrames that end"
        )


def summed(ends: Sequence[tuple[str | None, bytes | None]]) -> tuple[SinkFigures, list[bytes]]:
    """The figures and the dead letters of all tasks, of what `SinkTask.ends` gave in each."""
    figures = SinkFigures.of_tasks(figures for figures, _ in ends if figures is not None)
    return figures, [bytes(letters) for _, letters in ends if letters is not None]


@dataclasses.dataclass(frozen=True)
class SinkTask(ChainTask):
    """The worker's side of a sink: one task's dead letters, packed, and at its end its figures."""

    # A job that is only read by `collect` gives each partition's rows once, those of the attempt that succeeded. So the
    # figures and the dead letters are true whatever was run again, and nothing is left on executors that could be lost
    # and then be computed, and sent, once more. Packed, dead letters need no column that Spark can name.

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        signs = SignsOfLife()
        for figures, letters in self.ends(arrow_batches):
            is_empty = figures is None and letters is None
            rows = [] if is_empty and not signs.are_due() else [{"figures": figures, "letters": letters}]
            yield pa.RecordBatch.from_pylist(rows, ENDS)

    def ends(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str | None, bytes | None]]:
        """Run the function over the batches: packed dead letters, and at the end the figures.

        (None, None) is a sign of life.
        """
        figures, chains, held = SinkFigures(), list[Chain](), list[pa.RecordBatch]()
        for letters in self.run(arrow_batches, built=chains.append):
            yield None, None
            if not letters.num_rows:
                continue
            figures.note_failures(_failures(letters))
            held.append(letters)
            if sum(arrow_batch.nbytes for arrow_batch in held) >= LETTERS_AT_ONCE:
                yield None, packed(held, COMPRESSED)
                held.clear()
        for chain in chains:
            (operator,) = chain.counted.values()
            figures.metrics = operator.counters.totals
            yield figures.to_json(), packed(held, COMPRESSED) if held else None

    @property
    def letters(self) -> spark.StructType:
        schema: spark.StructType = self.results[0].schema
        return schema


def _failures(letters: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    errors = letters.column(letters.num_columns - 1)
    columns = (errors.field(name).to_pylist() for name in ("type", "status", "message"))
    for kind, status, message in zip(*columns, strict=True):
        yield named_error(kind, status), message


def letters_in(letters: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(letters) as stream:
        return [*stream]


def read_letters(arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for arrow_batch in arrow_batches:
        for letters in arrow_batch.column(0):
            yield from letters_in(letters.as_py())


def sink_task(
    plan: SinkPlan,
    schema: spark.StructType,
    columns: Sequence[Any],
    report_spec: TaskReportSpec,
    df: DataFrame | None = None,
) -> SinkTask:
    """The task of a sink over rows of this schema, whose function reads these columns; needs no session."""
    check_source(schema, "the DataFrame")
    source = rows_node(schema)
    spec, positions = arguments(plan.spec, schema.fields, column_names(columns, schema, df))
    letters = joined_schema(schema.fields, [ERROR], f"a dead letter of {spec.name}")
    names = tuple(schema.names[position] for position in positions)
    group = ColumnGroup.of(spec.name, plan.written, spec.name)
    factory = WaitFactory(dataclasses.replace(plan, spec=spec), positions, names)
    node = StreamNode(factory, (source,), source.layout.with_columns(group), None)
    result = ResultPlan(node, DEAD_LETTERS, False, letters, arrow_struct(letters), ERROR_GROUP.arrow_type)
    return SinkTask(ChainPlan((source, node)), (result,), side_output_type, uuid.uuid4().hex, report_spec=report_spec)


def run_sink(plan: SinkPlan, df: DataFrame, columns: Sequence[Any]) -> tuple[SinkFigures, DataFrame]:
    """Write the rows of a DataFrame in one job: what it did, and the rows that failed."""
    df = without_old_errors(df)
    task = sink_task(plan, df.schema, columns, TaskReportSpec(ENTRY_POINT), df)
    check_rows(df, task.plan.name)
    ends = mapped(df, task, STAGE).where("figures IS NOT NULL OR letters IS NOT NULL").collect()
    figures, letters = summed(ends)
    return figures, letters_frame(df.sparkSession, letters, task.letters)


def without_old_errors(df: DataFrame) -> DataFrame:
    """The DataFrame; if its rows are dead letters of a sink, which are sent again, without their errors."""
    fields = df.schema.fields
    is_letter = len(fields) > 1 and fields[-1].name == ERROR.name
    return df.drop(ERROR.name) if is_letter and as_nullable(fields[-1].dataType) == ERROR.dataType else df


def letters_frame(session: SparkSession, letters: Sequence[bytes], schema: spark.StructType) -> DataFrame:
    """Dead letters as a DataFrame, which needs no executor that has them."""
    packed = session.createDataFrame([(one,) for one in letters], "letters binary")
    return mapped(packed, read_letters, schema)


def stream_of(df: DataFrame) -> str | None:
    """The id of the streaming query whose micro-batch this is; None if Spark does not say."""
    session = df.sparkSession
    if not hasattr(session, "_jsparkSession"):
        return None
    return session.sparkContext.getLocalProperty("sql.streaming.queryId")


def micro_batch_named(stream: str, batch_id: int) -> str:
    """What `SinkPlan.micro_batch` says of this micro-batch."""
    return f"{stream} {batch_id}"


# As a data source in Python: `df.write.format(name)` and `df.writeStream.format(name)`.


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
        return sink_task(plan, spark_schema(schema), self.columns, self.report_spec), micro_batch, folder


@dataclasses.dataclass
class _Ended(WriterCommitMessage):
    micro_batch: str
    ends: list[tuple[str | None, bytes | None]]


class _Ends:
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
            arrow_batches = [arrow_batch for packed in letters for arrow_batch in letters_in(packed)]
            self._folder.write(f"{name}.parquet", arrow_batches, self._task.letters.names)
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

    def write(self, name: str, arrow_batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> None:
        table = pa.Table.from_batches(arrow_batches).rename_columns(list(names))
        # Under a name that readers skip first: they see a whole file, or none.
        hidden, file = (posixpath.join(self.path, one) for one in (f"_{name}", name))
        pq.write_table(table, hidden, filesystem=self.filesystem)
        self.filesystem.move(hidden, file)


def micro_batch_of_task() -> str:
    query, micro_batch = map(RunningTask.now().property_of, ("sql.streaming.queryId", "streaming.sql.batchId"))
    if query is None or micro_batch is None:
        raise AsyncUDFError("Spark does not tell which micro-batch this is; use foreachBatch(stream_sink(...))")
    return micro_batch_named(query, int(micro_batch))
