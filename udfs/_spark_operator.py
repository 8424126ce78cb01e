"""ordered_wait and unordered_wait as a `mapInArrow` stage."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from asyncudf.queues import StreamElement

from ._arrow import ResultWriter, records_of, rows_of, source_columns, watermark_marks
from ._bridge import Bridge
from ._errors import FunctionError
from ._options import Options, unknown_name
from ._signature import FunctionSpec, Kind, Vector
from ._spark import arrow_type, plan_work, start_bridge
from ._task import Work, pipe
from ._watermarks import Source, WatermarkGenerator, WatermarkStrategy

__all__ = ("argument_positions", "joined_schema", "operate", "result_fields")


@dataclasses.dataclass(frozen=True)
class BatchTask:
    """The worker's side of `ordered_wait` and `unordered_wait`, for `mapInArrow`."""

    work: Work
    arguments: tuple[int, ...]  # positions of the columns that the function reads
    names: tuple[str, ...]  # and their names
    output: tuple[str, ...]  # names of all columns that come out
    strategy: WatermarkStrategy | None
    mark: int | None  # position of the strategy's column
    watermark_type: pa.DataType | None  # of the watermark column, if there is one

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        generator = WatermarkGenerator(self.strategy) if self.strategy is not None else None
        filled = (batch for batch in batches if batch.num_rows)
        return pipe(filled, self._start, partial(self._read, generator))

    def _start(self, first: pa.RecordBatch) -> Bridge[Iterable[StreamElement], pa.RecordBatch]:
        kinds = [first.column(i).type for i in self.arguments]
        writer = ResultWriter(self.work.spec.name, self.work.written)
        keep = self.watermark_type is not None
        return start_bridge(self.work, partial(self._write, writer), kinds, self.names, first.num_rows, keep)

    def _read(self, generator: WatermarkGenerator | None, batch: pa.RecordBatch) -> Iterable[StreamElement]:
        names = self.names if self.work.spec.kind is Kind.ASYNC_FUNCTION else None
        rows = rows_of(self.work.spec.name, [batch.column(i) for i in self.arguments], names)
        origins = zip(repeat(batch), range(batch.num_rows))
        if generator is None:
            return records_of(rows, origins)
        marks = [] if self.mark is None else watermark_marks(batch.column(self.mark))
        return generator.weave(zip(rows, origins, strict=True), marks)

    def _write(self, writer: ResultWriter, values: Any, origins: Any, watermarks: Any) -> pa.RecordBatch:
        columns = source_columns(origins) + writer.columns(values)
        if self.watermark_type is not None:
            columns.append(pa.array(watermarks, type=self.watermark_type))
        return pa.RecordBatch.from_arrays(columns, list(self.output))


def operate(
    df: DataFrame,
    spec: FunctionSpec,
    options: Options,
    returns: Any,
    columns: Sequence[str],
    strategy: WatermarkStrategy | None,
    watermark_column: str | None,
) -> DataFrame:
    """`df` with a function's results beside its columns."""
    fields = df.schema.fields
    arguments = argument_positions(spec, fields, columns)
    mark = _mark(strategy, fields)
    work, kind = plan_work(spec, options, returns)
    added = result_fields(work, kind)
    watermark_type = None
    if watermark_column is not None:
        ntz = mark is not None and isinstance(fields[mark].dataType, spark.TimestampNTZType)
        watermark_kind = spark.TimestampNTZType() if ntz else spark.TimestampType()
        watermark_type = arrow_type(watermark_kind, spec)
        added.append(spark.StructField(watermark_column, watermark_kind, True))
    schema = joined_schema(fields, added, spec)
    names = tuple(fields[i].name for i in arguments)
    task = BatchTask(work, arguments, names, tuple(schema.names), strategy, mark, watermark_type)
    # PySpark finds the columns by name, which fails for names with its own syntax in them; we go by position.
    plain = df if not any(set(".`") & set(name) for name in df.columns) else df.toDF(*map(str, range(len(fields))))
    return plain.mapInArrow(task, schema)


def joined_schema(
    fields: Sequence[spark.StructField], added: Sequence[spark.StructField], spec: FunctionSpec
) -> spark.StructType:
    seen = {field.name.lower() for field in fields}
    for field in added:
        if field.name.lower() in seen:
            raise FunctionError(
                f"{spec.name} would add a column {field.name!r}, but there is one of that name already; rename it "
                f"first, for example df.withColumnRenamed({field.name!r}, ...), or rename the result's field"
            )
        seen.add(field.name.lower())
    return spark.StructType([*fields, *added])


def argument_positions(
    spec: FunctionSpec, fields: Sequence[spark.StructField], columns: Sequence[str]
) -> tuple[int, ...]:
    """Positions of the columns that a function reads: those named, else those called like its parameters."""
    names = [field.name for field in fields]
    takes_all = spec.kind is Kind.ASYNC_FUNCTION or spec.vectors == (Vector.FRAME,)
    if columns:
        positions = tuple(_position(column, names) for column in columns)
        if not takes_all:
            spec.check_column_count(len(positions))
        return positions
    if takes_all:
        return tuple(range(len(names)))
    lower = [name.lower() for name in names]
    wanted = [p for i, p in enumerate(spec.parameters) if i < spec.required or p.lower() in lower]
    if not wanted:
        raise FunctionError(f"{spec.name} takes at least one column; name the columns that it shall read")
    return tuple(_position(parameter, names) for parameter in wanted)


def _position(column: Any, names: Sequence[str]) -> int:
    if not isinstance(column, str):
        raise FunctionError(f"columns are given by name, not as {column!r}; add it to the DataFrame first: withColumn")
    exact = [i for i, name in enumerate(names) if name == column]
    found = exact or [i for i, name in enumerate(names) if name.lower() == column.lower()]
    if not found:
        raise FunctionError(unknown_name("column", column, names))
    if len(found) > 1:
        raise FunctionError(f"column {column!r} is there {len(found)} times; rename all but one")
    return found[0]


_MARK_TYPES: Mapping[Source, tuple[type[spark.DataType], ...]] = {
    Source.TIMES: (spark.TimestampType, spark.TimestampNTZType, spark.DateType, spark.LongType),
    Source.PUNCTUATION: (spark.BooleanType, spark.TimestampType, spark.TimestampNTZType, spark.LongType),
    Source.WATERMARKS: (spark.TimestampType, spark.TimestampNTZType, spark.LongType),
}


def _mark(strategy: WatermarkStrategy | None, fields: Sequence[spark.StructField]) -> int | None:
    if strategy is None or strategy.column is None:
        return None
    position = _position(strategy.column, [field.name for field in fields])
    kind = fields[position].dataType
    allowed = _MARK_TYPES[strategy.source]
    if not isinstance(kind, allowed):
        names = ", ".join(t.typeName() for t in allowed)
        raise FunctionError(f"watermarks cannot be read from {strategy.column!r}, a {kind.simpleString()}; use {names}")
    return position


def result_fields(work: Work, kind: spark.DataType) -> list[spark.StructField]:
    """The columns that the operator forms append: a struct's fields, anything else as one column."""
    if isinstance(kind, spark.StructType):
        return [spark.StructField(field.name, field.dataType, True) for field in kind.fields]
    return [spark.StructField(work.spec.name, kind, True)]
