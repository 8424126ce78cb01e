"""The only door to PySpark: what runs in a worker, and how it is planned on the driver."""

import dataclasses
import datetime
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult
from pyspark.util import PythonEvalType

from asyncudf.queues import StreamElement, StreamRecord

from . import _types
from ._arrow import Codec, ResultWriter, rows_of, source_columns, watermark_marks
from ._bridge import Bridge
from ._errors import FunctionError
from ._options import Options, unknown_name
from ._signature import FunctionSpec, Kind, Vector
from ._task import Work, bridge_to, pipe
from ._watermarks import Source, WatermarkGenerator, WatermarkStrategy

__all__ = (
    "COLUMN_EVAL_TYPE",
    "ColumnTask",
    "column",
    "offline_work",
    "operate",
    "plan_work",
    "register_table_function",
)

COLUMN_EVAL_TYPE = PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF
TABLE_ROWS = 1000  # a table function gets its rows one by one; so many are handed over together
_dumps: Callable[[Any], bytes] = cloudpickle.dumps
_new_record = partial(tuple.__new__, StreamRecord)  # see StreamRecord: once per row

# --- declared types ---------------------------------------------------------------------------------------------------


def plan_work(spec: FunctionSpec, options: Options, returns: Any) -> tuple[Work, spark.DataType]:
    """What travels to the executors, and the Spark type of what comes out for one result.

    Raises:
        FunctionError: the type is unknown, or the function cannot be sent to the executors.
    """
    declared = returns if returns is not None else spec.returns
    if declared is None:
        raise FunctionError(
            f"the return type of {spec.name} cannot be inferred; declare it, as in async_pandas_udf('temp double, sky "
            "string'), or annotate the result with str, int, float, bool, bytes, date, datetime, Decimal, a list or "
            "dict of these, a dataclass, a NamedTuple or a TypedDict"
        )
    if not isinstance(declared, spark.DataType):
        declared = spark.DataType.fromDDL(declared)
    work = Work(spec, options, _arrow_type(declared, spec))
    _check_picklable(work)
    return work, _captured(declared) if work.captures else declared


def offline_work(spec: FunctionSpec, options: Options, returns: Any) -> Work:
    """Work for the test kit, without a session: DDL that only Spark's own parser knows is not checked there."""
    declared = returns if returns is not None else spec.returns
    if isinstance(declared, str):
        try:
            field = {"name": "result", "type": _types.to_json(declared), "nullable": True, "metadata": {}}
            declared = spark.StructType.fromJson({"type": "struct", "fields": [field]})["result"].dataType
        except _types.UnknownTypeError:
            declared = None
    return Work(spec, options, None if declared is None else _arrow_type(declared, spec))


def _arrow_type(declared: spark.DataType, spec: FunctionSpec) -> pa.DataType:
    try:
        return to_arrow_type(declared, timezone="UTC")
    except TypeError as error:
        raise FunctionError(f"{spec.name} is declared to return {declared}, which Arrow does not know") from error


def _captured(value: spark.DataType) -> spark.DataType:
    error = spark.StructType().add("type", "string").add("message", "string")
    error = error.add("attempts", "integer").add("elapsed", "double")
    return spark.StructType().add("value", value).add("error", error)


def _result_fields(work: Work, kind: spark.DataType) -> list[spark.StructField]:
    """The columns that the operator forms append: a struct's fields, anything else as one column."""
    if isinstance(kind, spark.StructType):
        return [spark.StructField(field.name, field.dataType, True) for field in kind.fields]
    return [spark.StructField(work.spec.name, kind, True)]


# --- columns and SQL functions ----------------------------------------------------------------------------------------


class ColumnTask:
    """The worker's side of a column: an iterator of Arrow arrays to one of results, in the same order."""

    def __init__(self, work: Work) -> None:
        # Spark finds out from the type hints that this is an iterator UDF.
        self.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        self.__name__ = work.spec.name
        self._work = work

    def __call__(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return pipe(batches, self._start, self._read)

    def _start(self, first: Any) -> Bridge[Iterable[StreamElement], pa.Array]:
        columns, spec = _columns(first), self._work.spec
        spec.check_column_count(len(columns))
        writer = ResultWriter(spec.name, self._work.written)
        return _bridge(self._work, lambda values, *_: writer.array(values), [column.type for column in columns], None)

    def _read(self, batch: Any) -> Iterable[StreamElement]:
        return map(_new_record, zip(rows_of(_columns(batch), None), repeat(None), repeat(None)))


def _columns(batch: Any) -> tuple[pa.Array, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _bridge(
    work: Work, write: Any, kinds: Sequence[pa.DataType], names: Sequence[str] | None, keep_watermarks: bool = False
) -> Bridge[Iterable[StreamElement], Any]:
    spec = work.spec
    codec = Codec(spec.name, spec.vectors, kinds, names) if spec.vectorized else None
    task = TaskContext.get()
    partition, attempt = (task.partitionId(), task.attemptNumber()) if task is not None else (0, 0)
    return bridge_to(work, write, codec, partition=partition, attempt=attempt, keep_watermarks=keep_watermarks)


def column(spec: FunctionSpec, options: Options, returns: Any, columns: Sequence[Any]) -> Column:
    """The column of a function's results."""
    work, kind = plan_work(spec, options, returns)
    native: Any = arrow_udf(ColumnTask(work), kind)  # type: ignore[call-overload]
    if not options.deterministic:
        native = native.asNondeterministic()
    result: Column = native(*columns)
    return result


# --- the operator forms -----------------------------------------------------------------------------------------------


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
        return _bridge(self.work, partial(self._write, writer), kinds, self.names, keep)

    def _read(self, generator: WatermarkGenerator | None, batch: pa.RecordBatch) -> Iterable[StreamElement]:
        names = self.names if self.work.spec.kind is Kind.ASYNC_FUNCTION else None
        rows = rows_of([batch.column(i) for i in self.arguments], names)
        origins = zip(repeat(batch), range(batch.num_rows))
        if generator is None:
            return map(_new_record, zip(rows, repeat(None), origins))
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
    arguments = _arguments(spec, fields, columns)
    mark = _mark(strategy, fields)
    work, kind = plan_work(spec, options, returns)
    added = _result_fields(work, kind)
    watermark_type = None
    if watermark_column is not None:
        ntz = mark is not None and isinstance(fields[mark].dataType, spark.TimestampNTZType)
        watermark_kind = spark.TimestampNTZType() if ntz else spark.TimestampType()
        watermark_type = _arrow_type(watermark_kind, spec)
        added.append(spark.StructField(watermark_column, watermark_kind, True))
    schema = _joined(fields, added, spec)
    names = tuple(fields[i].name for i in arguments)
    task = BatchTask(work, arguments, names, tuple(schema.names), strategy, mark, watermark_type)
    return df.mapInArrow(task, schema)


def _joined(
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


def _arguments(spec: FunctionSpec, fields: Sequence[spark.StructField], columns: Sequence[str]) -> tuple[int, ...]:
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


# --- table functions --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Analyzed(AnalyzeResult):
    """What a table function's planning tells its execution."""

    arguments: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[spark.DataType, ...] = ()  # the Spark types of the arguments


def _analyze(
    work: Work, added: Sequence[spark.StructField], table: AnalyzeArgument, *columns: Any, **named: Any
) -> _Analyzed:
    spec = work.spec
    if not table.isTable or not isinstance(table.dataType, spark.StructType):
        raise FunctionError(f"the first argument of {spec.name} is a table: {spec.name}(TABLE(t), 'column', ...)")
    wanted = [_column_name(column, spec) for column in columns]
    by_name = [parameter for parameter in spec.parameters[len(wanted) :] if parameter in named]
    wanted.extend(_column_name(named.pop(parameter), spec) for parameter in by_name)
    if named:
        raise FunctionError(unknown_name(f"parameter of {spec.name}", next(iter(named)), spec.parameters))
    fields = table.dataType.fields
    arguments = _arguments(spec, fields, wanted)
    return _Analyzed(
        schema=_joined(fields, added, spec),
        arguments=arguments,
        names=tuple(fields[i].name for i in arguments),
        kinds=tuple(fields[i].dataType for i in arguments),
    )


def _column_name(argument: AnalyzeArgument, spec: FunctionSpec) -> str:
    if argument.isTable or not isinstance(argument.value, str):
        raise FunctionError(
            f"after the table, {spec.name} takes the names of its columns as strings: {spec.name}(TABLE(t), 'city')"
        )
    return argument.value


class TableFunction:
    """The worker's side of a SQL table function; a subclass for each registered function holds its work."""

    work: ClassVar[Work]
    width: ClassVar[int]  # how many columns the results make; 0: one column, not a struct

    def __init__(self, analyzed: _Analyzed) -> None:
        self._analyzed = analyzed
        self._from_pickled = [_from_pickled(kind) for kind in analyzed.kinds]
        self._rows: list[Any] = []
        self._bridge: Bridge[Iterable[StreamElement], list[tuple[Any, ...]]] | None = None

    def eval(self, row: Any, *columns: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
        """Take one row; give the results that are ready now and then."""
        self._rows.append(row)
        if len(self._rows) == TABLE_ROWS:
            yield from self._push()

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        """The table has ended; give the rest."""
        if self._rows:
            yield from self._push()
        if self._bridge is not None:
            for batch in self._bridge.finish():
                yield from batch

    def cleanup(self) -> None:
        """Spark calls this on every path."""
        if self._bridge is not None:
            self._bridge.close()

    def _push(self) -> Iterator[tuple[Any, ...]]:
        if self._bridge is None:
            kinds = [_arrow_type(kind, self.work.spec) for kind in self._analyzed.kinds]
            self._bridge = _bridge(self.work, self._write, kinds, self._analyzed.names)
        rows, self._rows = self._rows, []
        for batch in self._bridge.push([self._record(row) for row in rows]):
            yield from batch

    def _record(self, row: Any) -> StreamRecord:
        positions = zip(self._analyzed.arguments, self._from_pickled, strict=True)
        values = tuple(convert(row[i]) for i, convert in positions)
        if self.work.spec.kind is Kind.ASYNC_FUNCTION:
            return StreamRecord(dict(zip(self._analyzed.names, values, strict=True)), None, row)
        return StreamRecord(values, None, row)

    def _write(self, values: Any, origins: Any, watermarks: Any) -> list[tuple[Any, ...]]:
        if not self.width:
            return [(*row, value) for row, value in zip(origins, values, strict=True)]
        nulls = (None,) * self.width
        return [(*row, *(nulls if v is None else v.values())) for row, v in zip(origins, values, strict=True)]


def _from_pickled(kind: spark.DataType) -> Callable[[Any], Any]:
    """Values that come pickled look different; a function shall see the same ones at every door."""
    match kind:
        case spark.TimestampType():  # naive, in the worker's own zone
            return lambda v: v and v.astimezone(datetime.UTC)
        case spark.BinaryType():
            return lambda v: None if v is None else bytes(v)
        case spark.ArrayType():
            item = _from_pickled(kind.elementType)
            return lambda v: None if v is None else [item(x) for x in v]
        case spark.MapType():
            key, value = _from_pickled(kind.keyType), _from_pickled(kind.valueType)
            return lambda v: None if v is None else {key(k): value(x) for k, x in v.items()}
        case spark.StructType():
            fields = [(field.name, _from_pickled(field.dataType)) for field in kind.fields]
            return lambda v: None if v is None else {n: f(x) for (n, f), x in zip(fields, v, strict=True)}
    return lambda v: v


def register_table_function(
    session: SparkSession, name: str, spec: FunctionSpec, options: Options, returns: Any
) -> None:
    """Make a function callable in SQL as `name(TABLE(t), 'column', ...)`."""
    work, kind = plan_work(spec, options, returns)
    added = _result_fields(work, kind)
    body = {
        "work": work,
        "width": len(added) if isinstance(kind, spark.StructType) else 0,
        "analyze": staticmethod(partial(_analyze, work, added)),
    }
    session.udtf.register(name, udtf(type(spec.name, (TableFunction,), body), useArrow=False))  # type: ignore[arg-type]


# --- what can be sent -------------------------------------------------------------------------------------------------


def _check_picklable(work: Work) -> None:
    try:
        _dumps(work)
    except Exception as error:
        raise FunctionError(
            f"{work.spec.name} cannot be sent to the executors: {_culprit(work)} cannot be pickled "
            f"({type(error).__name__}: {error}). Make such an object on the executor: with resources=..., or in "
            "AsyncFunction.open()"
        ) from error


def _culprit(work: Work) -> str:
    spec = work.spec
    for name, value in _reachable(work):
        try:
            _dumps(value)
        except Exception:
            return f"{name} ({type(value).__name__})"
    return f"the function {spec.name}"


def _reachable(work: Work) -> Iterator[tuple[str, Any]]:
    """The things that a function takes with it, by the names that the user gave them."""
    spec, options = work.spec, work.options
    for name, factory in spec.resources.items():
        yield from _variables(factory, f"resource {name!r}: ")
        yield f"resource {name!r}", factory
    for option in ("on_timeout", "retry"):
        value = getattr(options, option)
        yield from _variables(value, f"{option}: ")
        yield option, value
    yield from _variables(spec.function, "")


def _variables(function: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if callable(function) and inspect.isfunction(inspect.unwrap(function)):
        variables = inspect.getclosurevars(inspect.unwrap(function))
        for name, value in {**variables.nonlocals, **variables.globals}.items():
            yield f"{prefix}its variable {name!r}", value
    else:
        for name, value in getattr(function, "__dict__", {}).items():
            yield f"{prefix}its attribute {name!r}", value
