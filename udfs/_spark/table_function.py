"""A function as a SQL table function: `weather(TABLE(t), 'city')`."""

from __future__ import annotations

import dataclasses
import datetime
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as spark
from pyspark.sql.functions import udtf

from asyncudf.queues import StreamRecord

from .._arrow.columns import as_key
from .._arrow.rows import ResultArrays, values_of
from .._arrow.sizes import estimated_size
from .._chain.function_plan import FunctionPlan
from .._engine.loop.bridge import Bridge
from .._engine.operators.input import InputElement
from .._engine.operators.memory import BatchToken, InputBatch
from .._errors.exceptions import AsyncUDFError, FunctionError
from .._errors.safe import type_name
from .._functions.options import Options
from .._functions.signature import FunctionSpec, refuse_dead_letters
from ._compat import SPATIAL, AnalyzeArgument, AnalyzeResult, VariantType, check_table_functions
from .column import check_limits_in_sql
from .monitoring.task_report import TaskReportSpec
from .pickling import Travelling
from .planner import plan_function
from .schemas import arguments, check_table, joined_schema, result_fields
from .second_evaluations import batch_of
from .types import arrow_type
from .worker import ErrorReporting, start_function

TABLE_ROWS = 1000  # rows come one by one; fed this many together


@dataclasses.dataclass
class Analyzed(Travelling, AnalyzeResult):
    """The result of a table function's planning: Spark passes it to a worker, which reads it before the function."""

    parameters: tuple[str, ...] = ()  # those that columns fill
    arguments: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    data_types: tuple[spark.DataType, ...] = ()  # the Spark types of all columns of the table
    mention: str = ""  # tells this mention of the function from all others
    table: str = ""  # the name by which the table is given, if it is


@dataclasses.dataclass(frozen=True)
class TableTask(Travelling):
    """A table function as it travels: planned on the driver for each query, executed in the worker."""

    function_plan: FunctionPlan
    added: Sequence[spark.StructField]  # the columns of a result
    is_struct: bool  # whether these columns are the fields of a result; else the only column is the result itself
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)
    report_spec: TaskReportSpec = dataclasses.field(default_factory=lambda: TaskReportSpec("table function"))

    def analyze(self, given: Sequence[AnalyzeArgument], named: Mapping[str, AnalyzeArgument]) -> Analyzed:
        """Plan one mention in a query: only here the columns of the table are known."""
        spec, named = self.function_plan.spec, dict(named)
        with self.error_reporting:
            # SQL has no argument by position behind one by name: if the table has a name, all others have.
            by_name = "" if given else next((name for name, argument in named.items() if argument.isTable), "")
            table = named.pop(by_name) if by_name else next(iter(given), None)
            if table is None or not table.isTable or not isinstance(table.dataType, spark.StructType):
                raise FunctionError(
                    f"the first argument of {spec.name} is a table: {spec.name}(TABLE(t), 'column', ...)"
                )
            check_table(table.dataType, "the table")
            spec, wanted = spec.with_arguments(given[1:], named)
            fields = table.dataType.fields
            spec, positions = arguments(spec, fields, [_column_name(one, spec) for one in wanted])
            return Analyzed(
                schema=joined_schema(fields, self.added, spec.name),
                parameters=spec.parameters,
                arguments=positions,
                names=tuple(fields[i].name for i in positions),
                data_types=tuple(field.dataType for field in fields),
                mention=uuid.uuid4().hex,
                table=by_name,
            )

    def handler(self) -> type:
        task = self

        # cloudpickle sends a nested class by value. So a worker without this library can load the class, and fails at
        # the task, whose error says how to bring the library. Spark passes arguments by their names in the query: those
        # of the function's parameters, and any for the table.
        class Handler:
            def __init__(self, analyzed: Any) -> None:
                self.run = task.run(analyzed)

            @staticmethod
            def analyze(*given: Any, **named: Any) -> Any:
                return task.analyze(given, named)

            def eval(self, /, *given: Any, **named: Any) -> Any:
                return self.run.eval(given, named)

            def terminate(self) -> Any:
                return self.run.terminate()

            def cleanup(self) -> None:
                self.run.cleanup()

        Handler.__name__ = Handler.__qualname__ = self.function_plan.spec.name
        return Handler

    def run(self, analyzed: Analyzed) -> TableRun:
        return TableRun(self, analyzed)


def _column_name(argument: AnalyzeArgument, spec: FunctionSpec) -> str:
    if argument.isTable or not isinstance(argument.value, str):
        raise FunctionError(
            f"after the table, {spec.name} takes the names of its columns as strings: {spec.name}(TABLE(t), 'city')"
        )
    return argument.value


class TableRun:
    # Spark calls `eval` for each row and `terminate` at the end, and takes what they yield: results can leave only
    # while one of them runs. So rows are fed many together, and results leave when the next rows come.
    #
    # _rows: taken and not fed yet; _bridge: None before the first feed, so a table without rows opens nothing

    def __init__(self, task: TableTask, analyzed: Analyzed) -> None:
        self._task = task
        self._analyzed = analyzed
        plan = task.function_plan
        self._function_plan = dataclasses.replace(plan, spec=plan.spec.with_columns(analyzed.parameters))
        self._writer = ResultArrays(plan.spec.name, plan.written)
        self._from_pickled = [_from_pickled(data_type) for data_type in analyzed.data_types]
        self._rows: list[Any] = []
        self._bridge: Bridge[Iterable[InputElement], list[tuple[Any, ...]]] | None = None

    def eval(self, given: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Take the row among these arguments; every `TABLE_ROWS` rows yield the results that are ready."""
        self._rows.append(given[0] if given else named[self._analyzed.table])
        if len(self._rows) >= TABLE_ROWS:
            for results in self._feed():
                yield from results
                if len(self._rows) < 2 * TABLE_ROWS:
                    return  # Spark gets them when this ends, not before

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        """The table has ended: yield the remaining results."""
        if self._rows:
            yield from chain.from_iterable(self._feed())
        if self._bridge is not None:
            with self._task.error_reporting:
                yield from chain.from_iterable(self._bridge.finish())

    def cleanup(self) -> None:
        """Spark calls this on every path."""
        if self._bridge is not None:
            self._bridge.close()

    def _feed(self) -> Iterator[list[tuple[Any, ...]]]:
        """Feed the rows to the function when it requests them; yields the results that are ready until then."""
        if self._bridge is None:
            name, analyzed = self._function_plan.spec.name, self._analyzed
            arrow_types = [arrow_type(analyzed.data_types[i], name) for i in analyzed.arguments]
            report_spec = dataclasses.replace(self._task.report_spec, mention=self._analyzed.mention)
            self._bridge = start_function(
                self._function_plan, self._write, self._analyzed.names, arrow_types, TABLE_ROWS, report_spec,
                first=batch_of([]) if self._analyzed.mention else None,
            )  # fmt: skip
        with self._task.error_reporting:
            yield from self._bridge.until_requested()
            rows, self._rows = self._rows, []
            self._bridge.feed(self._batch(rows))

    def _batch(self, rows: Sequence[Any]) -> InputBatch:
        token = BatchToken()
        records = [self._record(row, token) for row in rows]
        return InputBatch(records, token, sum(estimated_size(record.origin[1]) for record in records))

    def _record(self, row: Any, token: BatchToken) -> StreamRecord:
        # Convert all columns, also those that the function does not read: Spark would take an hour off a naive
        # timestamp when clocks are set back.
        try:
            row = tuple(convert(value) for convert, value in zip(self._from_pickled, row, strict=True))
        except (TypeError, ValueError, OverflowError) as error:
            raise AsyncUDFError(
                f"a row of the table of {self._function_plan.spec.name} has no Python form ({type_name(error)}): it "
                "has a moment that is not in the years 1 to 9999"
            ) from None
        values = tuple(row[i] for i in self._analyzed.arguments)
        takes_mapping = self._function_plan.spec.takes_mapping
        seen = dict(zip(self._analyzed.names, values, strict=True)) if takes_mapping else values
        return StreamRecord(seen, None, (token, row))

    def _write(self, values: Any, origins: Any) -> list[tuple[Any, ...]]:
        # Through Arrow: Spark's pickled rows turn a whole number for a decimal into null, and lose a StrEnum.
        plan = self._function_plan
        values = values_of(self._writer.array(values), plan.written)
        if not self._task.is_struct:
            return [(*row, value) for (_, row), value in zip(origins, values, strict=True)]
        nulls = (None,) * len(self._task.added)
        return [(*row, *(nulls if v is None else v.values())) for (_, row), v in zip(origins, values, strict=True)]


def _from_pickled(data_type: spark.DataType) -> Callable[[Any], Any]:
    """Converts pickled values, which look different, to those that a function gets at every other entry point."""
    if isinstance(data_type, VariantType):
        return lambda v: v and type(v)(bytes(v.value), bytes(v.metadata))
    if isinstance(data_type, SPATIAL):
        return lambda v: v and type(v)(bytes(v.getBytes()), v.getSrid())
    match data_type:
        case spark.TimestampType():  # naive, in the worker's own zone
            return lambda v: v and _in_utc(v)
        case spark.BinaryType():
            return lambda v: None if v is None else bytes(v)
        case spark.ArrayType():
            item = _from_pickled(data_type.elementType)
            return lambda v: None if v is None else [item(x) for x in v]
        case spark.MapType():
            key, value = _from_pickled(data_type.keyType), _from_pickled(data_type.valueType)
            return lambda v: None if v is None else {as_key(key(k)): value(x) for k, x in v.items()}
        case spark.StructType():
            fields = [(field.name, _from_pickled(field.dataType)) for field in data_type.fields]
            return lambda v: None if v is None else {n: f(x) for (n, f), x in zip(fields, v, strict=True)}
    return lambda v: v


def register_table_function(
    session: SparkSession, name: str, spec: FunctionSpec, options: Options, returns: Any
) -> None:
    refuse_dead_letters(name, options)
    function_plan, data_type = plan_function(spec, options, returns, session)
    check_table_functions(name, session)
    check_limits_in_sql(spec.name, options, session)
    _check_python(session, name)
    added = tuple(result_fields(function_plan, data_type))
    task = TableTask(function_plan, added, isinstance(data_type, spark.StructType))
    session.udtf.register(name, udtf(task.handler(), useArrow=False))  # type: ignore[arg-type]


def _check_python(session: SparkSession, name: str) -> None:
    """Raises FunctionError if the executors' Python, with which Spark plans table functions, is not on the driver."""
    python = session.sparkContext.pythonExec if hasattr(session, "_jsparkSession") else ""
    if os.path.dirname(python) and not os.path.exists(python):
        raise FunctionError(
            f"{name} would be a table function: Spark plans those on the driver, with the Python of the executors, "
            f"and here is no {python}. Unpack the environment of --archives where the driver starts, so that this "
            "path leads to it, or use the operator: asyncudf.unordered_wait(df, function, 'column')"
        )


def _in_utc(naive: datetime.datetime) -> datetime.datetime:
    # Not by `astimezone`: from Python 3.13 on it raises for the last hours of the year 9999 in zones west of UTC.
    seconds = naive.replace(microsecond=0).timestamp()
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=naive.microsecond)
