"""A function as a SQL table function: `weather(TABLE(t), 'city')`."""

from __future__ import annotations

import dataclasses
import datetime
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql import types as spark
from pyspark.sql.functions import udtf

from asyncudf.queues import StreamRecord

from .._arrow.results import ResultWriter
from .._arrow.rows import as_key, read_back
from .._chain.function_plan import FunctionPlan
from .._errors.exceptions import AsyncUDFError, FunctionError
from .._functions.signature import FunctionSpec, refuse_dead_letters
from .._loop.bridge import Bridge
from .._operators.input_buffer import InputElement
from .._policies.options import Options
from .._text.safe import type_name
from ._compat import AnalyzeArgument, AnalyzeResult, check_table_functions
from .errors import ErrorReporting
from .metrics import TaskReportSpec
from .planner import plan_function
from .schemas import arguments, check_columns, joined_schema, result_fields
from .types import arrow_type
from .worker import start_function

__all__ = ("TableFunction", "register_table_function", "table_arguments")


TABLE_ROWS = 1000  # rows come one by one; so many are handed over together


@dataclasses.dataclass
class _Analyzed(AnalyzeResult):
    """What a table function's planning tells its execution."""

    parameters: tuple[str, ...] = ()  # those that columns fill
    arguments: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    data_types: tuple[spark.DataType, ...] = ()  # the Spark types of all columns of the table
    mention: str = ""  # tells this mention of the function from all others


def table_arguments(analyzed: Any) -> tuple[str, ...] | None:
    """The names of the columns that a mention reads, of what its planning has told; None if it was another's."""
    return analyzed.names if isinstance(analyzed, _Analyzed) else None


def _analyze(
    error_reporting: ErrorReporting,
    function_plan: FunctionPlan,
    added: Sequence[spark.StructField],
    table: AnalyzeArgument | None = None,
    *columns: Any,
    **named: Any,
) -> _Analyzed:
    with error_reporting():
        return _analyzed(function_plan, added, table, columns, named)


def _analyzed(
    function_plan: FunctionPlan,
    added: Sequence[spark.StructField],
    table: AnalyzeArgument | None,
    columns: Sequence[Any],
    named: dict[str, Any],
) -> _Analyzed:
    # On the driver, for each query: here alone the columns of the table are known.
    spec = function_plan.spec
    if table is None or not table.isTable or not isinstance(table.dataType, spark.StructType):
        raise FunctionError(f"the first argument of {spec.name} is a table: {spec.name}(TABLE(t), 'column', ...)")
    check_columns(table.dataType, "the table")
    spec, given = spec.placed(columns, named)
    fields = table.dataType.fields
    spec, positions = arguments(spec, fields, [_column_name(column, spec) for column in given])
    return _Analyzed(
        schema=joined_schema(fields, added, spec.name),
        parameters=spec.parameters,
        arguments=positions,
        names=tuple(fields[i].name for i in positions),
        data_types=tuple(field.dataType for field in fields),
        mention=uuid.uuid4().hex,
    )


def _column_name(argument: AnalyzeArgument, spec: FunctionSpec) -> str:
    if argument.isTable or not isinstance(argument.value, str):
        raise FunctionError(
            f"after the table, {spec.name} takes the names of its columns as strings: {spec.name}(TABLE(t), 'city')"
        )
    return argument.value


class TableFunction:
    """The worker's side of a SQL table function; a subclass for each registered function holds its plan."""

    # Spark calls `eval` for each row and `terminate` at the end, and takes what they yield: results can leave only
    # while one of them runs. So rows are gathered and handed over together, and results leave when the next rows come.
    #
    # _rows: taken and not yet handed over; _bridge: None before the first time, so a table without rows opens nothing

    function_plan: ClassVar[FunctionPlan]
    error_reporting: ClassVar[ErrorReporting]
    report_spec: ClassVar[TaskReportSpec]
    width: ClassVar[int | None]  # how many columns a struct makes; None: the result is one column, not a struct

    def __init__(self, analyzed: _Analyzed) -> None:
        self._analyzed = analyzed
        self._function_plan = dataclasses.replace(
            self.function_plan, spec=self.function_plan.spec.reading(analyzed.parameters)
        )
        self._from_pickled = [_from_pickled(data_type) for data_type in analyzed.data_types]
        self._rows: list[Any] = []
        self._bridge: Bridge[Iterable[InputElement], list[tuple[Any, ...]]] | None = None

    def eval(self, row: Any, *columns: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
        """Take one row; give the results that are ready now and then."""
        self._rows.append(row)
        if len(self._rows) >= TABLE_ROWS:
            for results in self._hand_over():
                yield from results
                if len(self._rows) < 2 * TABLE_ROWS:
                    return  # Spark gets them when this ends, not before

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        """The table has ended; give the rest."""
        if self._rows:
            yield from chain.from_iterable(self._hand_over())
        if self._bridge is not None:
            with self.error_reporting():
                yield from chain.from_iterable(self._bridge.finish())

    def cleanup(self) -> None:
        """Spark calls this on every path."""
        if self._bridge is not None:
            self._bridge.close()

    def _hand_over(self) -> Iterator[list[tuple[Any, ...]]]:
        """Give the rows to the function once it wants them; yields the results that are ready until then."""
        if self._bridge is None:
            arrow_types = [
                arrow_type(self._analyzed.data_types[i], self.function_plan.spec.name) for i in self._analyzed.arguments
            ]
            report_spec = dataclasses.replace(self.report_spec, mention=self._analyzed.mention)
            self._bridge = start_function(
                self._function_plan, self._write, self._analyzed.names, arrow_types, TABLE_ROWS, report_spec
            )
        with self.error_reporting():
            yield from self._bridge.until_wanted()
            rows, self._rows = self._rows, []
            self._bridge.feed([self._record(row) for row in rows])

    def _record(self, row: Any) -> StreamRecord:
        # Also columns that nobody reads: Spark would take an hour off a naive timestamp when clocks are set back.
        try:
            row = tuple(convert(value) for convert, value in zip(self._from_pickled, row, strict=True))
        except (TypeError, ValueError, OverflowError) as error:
            raise AsyncUDFError(
                f"a row of the table of {self.function_plan.spec.name} has no Python form ({type_name(error)}): it has "
                "a moment that is not in the years 1 to 9999"
            ) from None
        values = tuple(row[i] for i in self._analyzed.arguments)
        if self.function_plan.spec.takes_mapping:
            return StreamRecord(dict(zip(self._analyzed.names, values, strict=True)), None, row)
        return StreamRecord(values, None, row)

    def _write(self, values: Any, origins: Any) -> list[tuple[Any, ...]]:
        # By way of Arrow: Spark's pickled rows make null of a whole number for a decimal, and worse of a StrEnum.
        values = read_back(
            self.function_plan.spec.name,
            ResultWriter(self.function_plan.spec.name, self.function_plan.written).array(values),
        )
        if self.width is None:
            return [(*row, value) for row, value in zip(origins, values, strict=True)]
        nulls = (None,) * self.width
        return [(*row, *(nulls if v is None else v.values())) for row, v in zip(origins, values, strict=True)]


def _from_pickled(data_type: spark.DataType) -> Callable[[Any], Any]:
    """Values that come pickled look different; a function shall see the same ones at every entry point."""
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
    """Make a function callable in SQL as `name(TABLE(t), 'column', ...)`."""
    refuse_dead_letters(name, options)
    function_plan, data_type = plan_function(spec, options, returns)
    check_table_functions(name)
    _check_python(session, name)
    added = result_fields(function_plan, data_type)
    error_reporting = ErrorReporting()
    body = {
        "function_plan": function_plan,
        "error_reporting": error_reporting,
        "report_spec": TaskReportSpec("table function"),
        "width": len(added) if isinstance(data_type, spark.StructType) else None,
        "analyze": staticmethod(partial(_analyze, error_reporting, function_plan, added)),
    }
    session.udtf.register(name, udtf(type(spec.name, (TableFunction,), body), useArrow=False))  # type: ignore[arg-type]


def _check_python(session: SparkSession, name: str) -> None:
    """Spark runs `analyze` on the driver with the executors' Python, whose path may lead nowhere here."""
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
