"""Sinks: a chain of which a job gets nothing but its dead letters and its figures."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from .._arrow.layout import ColumnGroup
from .._chain.chain import Chain
from .._chain.function_plan import ACKNOWLEDGED, SinkPlan, no_micro_batch
from .._chain.plan import ChainPlan, StreamNode, WaitFactory
from .._chain.results import ERROR_GROUP, ResultPlan, packed
from .._errors.safe import named_error
from .._functions.options import Options
from .._functions.side_outputs import DEAD_LETTERS
from .._functions.signature import FunctionSpec
from .._observe.function_metrics import FunctionMetrics, SinkRows
from .coordinators import coordinator_config
from .evaluations import ChainTask, arrow_struct, findable, findable_schema
from .monitoring.task_report import TaskReportSpec
from .pickling import check_picklable
from .planner import rows_node
from .schemas import arguments, as_nullable, check_source, column_names, joined_schema
from .types import parsed_offline, side_output_type

LETTERS_AT_ONCE = 4 * 2**20  # bytes of dead letters that a task packs into one row
COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)
ENTRY_POINT = "sink"  # in reports
EXAMPLES = 20  # reasons of which a message is kept
STAGE = spark.StructType().add("figures", "string").add("letters", "binary")
ENDS = pa.schema({"figures": pa.string(), "letters": pa.binary()})  # the same for Arrow
ERROR: spark.StructField = parsed_offline(DEAD_LETTERS.schema).fields[0]  # type: ignore[attr-defined]


def plan_sink(spec: FunctionSpec, options: Options, micro_batch: Callable[[], str] = no_micro_batch) -> SinkPlan:
    """The plan of a function that writes rows; `micro_batch` is asked in each task."""
    plan = SinkPlan(spec, options, ACKNOWLEDGED, coordinator=coordinator_config(spec, options), micro_batch=micro_batch)
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
        """Count rows that failed, by the reason and the message of each."""
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

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for figures, letters in self.ends(batches):
            rows = [] if figures is None and letters is None else [{"figures": figures, "letters": letters}]
            yield pa.RecordBatch.from_pylist(rows, ENDS)

    def ends(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str | None, bytes | None]]:
        """Run the function over the batches: packed dead letters, and at the end the figures.

        (None, None) is a sign of life.
        """
        figures, chains, held = SinkFigures(), list[Chain](), list[pa.RecordBatch]()
        for letters in self.run(batches, built=chains.append):
            if not letters.num_rows:
                yield None, None
                continue
            figures.note_failures(_failures(letters))
            held.append(letters)
            if sum(batch.nbytes for batch in held) >= LETTERS_AT_ONCE:
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


def read_letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for letters in batch.column(0):
            yield from letters_in(letters.as_py())


def sink_task(
    plan: SinkPlan,
    schema: spark.StructType,
    columns: Sequence[Any],
    report_spec: TaskReportSpec,
    df: DataFrame | None = None,
) -> SinkTask:
    """The task of a sink over rows of this schema, of which the function reads these columns; needs no session."""
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
    ends = findable(df).mapInArrow(task, STAGE).collect()
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
    return packed.mapInArrow(read_letters, findable_schema(schema)).toDF(*schema.names)


def stream_of(df: DataFrame) -> str | None:
    """The id of the streaming query whose micro-batch this is; None if Spark does not say."""
    session = df.sparkSession
    if not hasattr(session, "_jsparkSession"):
        return None
    return session.sparkContext.getLocalProperty("sql.streaming.queryId")


def micro_batch_named(stream: str, batch_id: int) -> str:
    """What `SinkPlan.micro_batch` says of this micro-batch."""
    return f"{stream} {batch_id}"
