"""A function as a column: `df.withColumn("w", weather("city"))`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column

from .._arrow.rows import ResultArrays, records_of, rows_of
from .._arrow.sizes import size_as_objects
from .._chain.function_plan import FunctionPlan
from .._engine.loop.bridge import Bridge, pipe
from .._engine.operators.input import InputElement
from .._engine.operators.memory import BatchToken, InputBatch
from .._engine.stored.elements import RowsAsColumns, with_unreadable
from .._errors.exceptions import AsyncUDFError, FunctionError, OptionError
from .._errors.safe import safe_repr
from .._functions.options import Options
from ._compat import check_columns, column_udf, engine_of, is_column
from .marks import query_mark
from .monitoring.task_report import TaskReportSpec, WaitingReport
from .objects import of_batch, user_defined_parameters, user_defined_type
from .pickling import Travelling
from .planner import plan_function
from .running_task import RunningTask
from .second_evaluations import batch_of
from .types import active_session
from .worker import ErrorReporting, start_function

_ITSELF = "to call the function itself, as in a unit test: await f.__wrapped__(...)"
logger = logging.getLogger("asyncudf")
MONTHS = 21  # pyarrow's number of their type, all that it says of an array of them
MIN_BATCH_ROWS = 1000  # results in a batch, also where Spark's input batches are smaller


class ColumnTask(Travelling):
    """The worker's side of a column: turns an iterator of Arrow arrays into one of results, in the same order."""

    # Spark matches results with input rows by their number alone: one result for each row, in the order of the rows,
    # but in batches of any size. So calls of one batch overlap with those of the next.

    # _is_marked: behind the arguments of the function is the mark of the query
    # _in_parts: the results may leave as they come; else as one array for all batches, where the engine sends but one

    def __init__(self, function_plan: FunctionPlan, *, is_marked: bool = False, in_parts: bool = True) -> None:
        # Spark reads from these type hints that this is an iterator UDF.
        self.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        self.__name__ = function_plan.spec.name
        self.function_plan = function_plan
        self._user_defined = user_defined_parameters(function_plan.spec)
        self._is_marked = is_marked
        self._in_parts = in_parts
        self._error_reporting = ErrorReporting()
        self._report_spec = TaskReportSpec("column")

    def __call__(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with self._error_reporting:
            report = partial(WaitingReport, self._report_spec, self.function_plan)
            filled = filter(_has_rows, _given(batches, self.__name__))
            results = pipe(filled, self._start, self._read, self.__name__, report)
            yield from results if self._in_parts else [self._joined(results)]

    def _joined(self, results: Iterable[pa.Array]) -> pa.Array:
        return pa.concat_arrays([ResultArrays(self.__name__, self.function_plan.written).array([]), *results])

    def _start(self, first: Any, waited: float) -> Bridge[Iterable[InputElement], pa.Array]:
        columns, spec = self._arguments(first), self.function_plan.spec
        spec.check_column_count(len(columns))
        writer = ResultArrays(spec.name, self.function_plan.written)
        arrow_types = self._declared(columns)
        # The first batch may be small: another async column below this one emits results early.
        rows = max(len(columns[0]), MIN_BATCH_ROWS)
        return start_function(
            self.function_plan, lambda values, _: writer.array(values), spec.parameters, arrow_types, rows,
            self._report_spec, waited, batch_of(columns) if columns else None,
            RunningTask.of_column(_columns(first)[-1]) if self._is_marked else None,
        )  # fmt: skip

    def _read(self, batch: Any) -> InputBatch:
        columns, token = self._arguments(batch), BatchToken()
        rows, errors = rows_of(self.function_plan.spec.name, columns, None, self._declared(columns))
        elements: Iterable[InputElement] = records_of(rows, repeat(token))
        if errors:
            elements = with_unreadable(elements, errors)
        elif self.function_plan.options.store is not None:
            arguments = [*rows]
            elements = RowsAsColumns(arguments, [token] * len(arguments))
        return InputBatch(elements, token, sum(map(size_as_objects, columns)))

    def _arguments(self, batch: Any) -> tuple[pa.Array, ...]:
        columns = _columns(batch)
        return columns[:-1] if self._is_marked else columns

    def _declared(self, columns: Sequence[pa.Array]) -> list[pa.DataType]:
        # Spark does not tell which columns are of user-defined types: the function's annotations do.
        who, user_defined = self.function_plan.spec.name, self._user_defined
        return [
            of_batch(column.type) if i not in user_defined else user_defined_type(column.type, user_defined[i], who)
            for i, column in enumerate(columns)
        ]


def _given(batches: Iterator[Any], function: str) -> Iterator[Any]:
    """The batches; an empty tuple for a column without arguments, at which Spark's worker before 4.2 fails."""
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except IndexError:
            yield ()
            return
        except KeyError as error:
            if error.args != (MONTHS,):
                raise
            raise AsyncUDFError(
                f"{function} takes a column of year-month intervals, which pyarrow does not know; cast it to a string, "
                "or to its number of months: CAST(i AS INTERVAL MONTH) and then AS INT"
            ) from None


def _has_rows(batch: Any) -> bool:
    columns = _columns(batch)
    return not columns or len(columns[0]) > 0  # another column sends empty batches as a sign of life


def _columns(batch: Any) -> tuple[pa.Array, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


class ColumnOrigin(NamedTuple):
    """What a column is made of; `rehearse` asks for it."""

    udf: Any  # the AsyncUDF
    columns: tuple[Any, ...]


def column(udf: Any, columns: Sequence[Any]) -> Column:
    spec, session = udf.spec, active_session()
    function_plan, data_type = plan_function(spec, udf.options, udf.returns, session)
    for given in columns:
        if not isinstance(given, str) and not is_column(given):
            raise FunctionError(
                f"{spec.name} takes columns or their names, not {safe_repr(given)}, and makes a column; {_ITSELF}"
            )
    check_columns(spec.name, session)
    marks = [query_mark()] if _needs_mark(function_plan, session) else []
    in_parts = session is None or engine_of(session).takes_parts
    native = column_udf(ColumnTask(function_plan, is_marked=bool(marks), in_parts=in_parts), data_type)
    if not udf.options.deterministic:
        native = native.asNondeterministic()
    warn_of_repeated_calls(spec.name, udf.options, session)
    try:
        result: Column = native(*columns, *marks)
        if marks:  # or its name in a schema would tell of them
            result = result.alias(repr(native(*columns)).removeprefix("Column<'").removesuffix("'>"))
    except RuntimeError as error:  # of PySpark's own class from Spark 4.0 on
        if session is not None:
            raise
        raise FunctionError(f"{spec.name}(...) makes a column, and there is no Spark session; {_ITSELF}") from error
    result.__class__ = _not_awaited(type(result))  # type: ignore[arg-type]
    result._asyncudf = ColumnOrigin(udf, tuple(columns))  # type: ignore[attr-defined]
    return result


def _needs_mark(plan: FunctionPlan, session: Any) -> bool:
    """Whether tasks of a column share limits of their query, and only the plan can say which one that is."""
    return plan.coordinator is not None and session is not None and not engine_of(session).tells_tasks


def check_limits_in_sql(name: str, options: Options, session: Any) -> None:
    """Raises OptionError for a function of SQL whose tasks must know their query and cannot."""
    unnamed = any(budget.name is None for budget in options.budgets)
    if unnamed and session is not None and not (engine := engine_of(session)).tells_tasks:
        what = "a budget without a name" if options.max_calls is None else "max_calls"
        raise OptionError(
            f"{name}: {what} is for one query, and {engine.name} does not tell a function of SQL in which query it is. "
            f"Use the operator, asyncudf.ordered_wait(df, {name}, ...), or {name}(...) as a column; or give a budget "
            f"for all queries, with a name: budget=Budget(..., name={name!r})"
        )


def warn_of_repeated_calls(name: str, options: Options, session: Any) -> None:
    """Log for a use of a function as a column that may cost more calls than rows on the engine of the session.

    With a store a row is paid once; `deterministic=True` says that calls may be repeated.
    """
    if session is None or options.store is not None or options.deterministic:
        return
    if not (engine := engine_of(session)).calls_columns_once:
        logger.warning(
            "%s: %s evaluates a column as often as its query mentions it or a field of it, and also for rows that a "
            "filter leaves out; each call is made and paid again, and the order of the rows may change. To call once a "
            "row: asyncudf.ordered_wait(df, %s, ...); with store=ResultStore.executor() no row is called twice",
            name, engine.name, name,
        )  # fmt: skip


@functools.cache
def _not_awaited(column_type: type[Column]) -> type[Column]:
    """A subclass whose `await` says how to call the function itself; Python's own error names Spark's class alone."""

    def refuse(self: Column) -> Any:
        raise FunctionError(f"a decorated function makes a column, which cannot be awaited; {_ITSELF}")

    return type(column_type.__name__, (column_type,), {"__module__": column_type.__module__, "__await__": refuse})
