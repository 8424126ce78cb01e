"""batch_handler: a function as an iterator of pandas Series, which Unity Catalog's SQL functions are made of."""

from __future__ import annotations

import dataclasses
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Unpack

import pyarrow as pa

from asyncudf.queues._public import public

from ..._arrow.rows import ResultArrays, records_of
from ..._arrow.series import as_pandas, bytes_of, is_batch, values_of_series
from ..._chain.function_plan import FunctionPlan
from ..._engine.loop.bridge import Bridge, pipe
from ..._engine.operators.input import InputElement
from ..._engine.operators.memory import BatchToken, InputBatch
from ..._errors.exceptions import FunctionError, OptionError
from ..._errors.safe import type_name
from ..._functions.annotations import function_hints, without_none
from ..._functions.key_names import key_name
from ..._functions.options import FunctionOptions, Options, limits_of, shows_options
from ..._functions.signature import behind_decorators
from ..._limits.coordinator.names import CoordinatorConfig
from ..._stores.base import need
from ..._stores.redis import checked_url
from ..column import MIN_BATCH_ROWS
from ..monitoring.task_report import TaskReportSpec
from ..pickling import Travelling
from ..planner import not_inferred, plan_function_offline
from ..worker import ErrorReporting, start_function
from .decorator import udf_of


@public("asyncudf")
@shows_options(FunctionOptions)
def batch_handler(
    function: Any,
    returnType: Any = None,  # noqa: N803 - as in async_pandas_udf
    **options: Unpack[FunctionOptions],
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Make a function a handler of batches: an iterator of Series in, an iterator of Series out.

    This is what `HANDLER` names in a SQL function of Unity Catalog with `PARAMETER STYLE PANDAS`, and what an iterator
    UDF of PySpark is. Calls of one batch overlap with those of the next; results come in the order of the rows, in one
    Series for each that was given, of its length. See docs/platforms/databricks.md.

    Each call of the handler is a task of its own: it has `capacity` calls in flight, opens `resources` and closes them
    at the end, on an error, or when its iterator is closed. There is no driver that it could ask: `store` must be one
    that all processes reach, and limits of the whole job need `coordinator` and a name.

    Args:
        function: an `async def`, an `async_pandas_udf`, or a plain `def`, with one result for each row.
        returnType, options: as in `async_pandas_udf`; those given here win.

    Returns:
        A function of an iterator of Series, or of tuples of Series for several parameters. A struct is a DataFrame, and
        the function gets a dict. A missing value is None; a parameter that is annotated `int` gets whole numbers also
        where pandas has made floats of them, as it does beside a NULL. Timestamps are what pandas has: those of Spark
        are in the session's time zone and do not say so. A NULL for a result that is a struct has NULL in each field.

    Raises:
        OptionError: a value that cannot work, such as `job_capacity`, for which there is no job.
        FunctionError: a function that gives 0..n results for a row, or declares no type.

    >>> import pandas as pd
    >>> async def shout(word: str) -> str:
    ...     return word.upper()
    >>> handler = batch_handler(shout, capacity=50)
    >>> [list(results) for results in handler(iter([pd.Series(["oslo", "bergen"]), pd.Series(["bodø"])]))]
    [['OSLO', 'BERGEN'], ['BODØ']]
    """
    udf = udf_of(function, returnType, options)
    udf.spec.check_column_function(udf.options)
    udf.spec.check_takes_columns()
    _check_limits(udf.spec.name, udf.options)
    plan = plan_function_offline(udf.spec, udf.options, udf.returns)
    if plan.declared is None:
        raise not_inferred(udf.spec)
    return BatchHandler(plan)


def _check_limits(function: str, options: Options) -> None:
    """Raises OptionError for limits that calls of a handler, which know nothing of each other, cannot share."""
    shared = [one for limit, _ in reversed(limits_of(options)) for one in limit.of_job]
    for one in shared:
        if not one.takes_name:
            raise OptionError(
                f"{one.what} of {function} counts the calls of a query, and a handler does not know its query; bound "
                "the calls of each task with capacity, or of all with a RateLimit or a Budget that has a name"
            )
    if not shared:
        return
    if options.coordinator is None:
        raise OptionError(
            f"{shared[0].what} of {function} needs coordinator='redis://...' here: a handler has no driver that could "
            "start one; or RateLimit(..., scope='task') for a limit of each task"
        )
    if what := next((one.what for one in shared if one.name is None), None):
        raise OptionError(
            f"{what} of {function} needs a name here, by which all calls of the handler share it: name='...'"
        )
    need("a limit of the whole job", "coordinator", "redis")
    checked_url(options.coordinator, "coordinator")


class BatchHandler(Travelling):
    # Results come as calls finish, in batches of any size: `_resized` gives them the sizes of the batches that came in.

    def __init__(self, plan: FunctionPlan) -> None:
        hints = function_hints(behind_decorators(plan.spec.function))
        self.__name__ = plan.spec.name
        self._plan = plan
        self._are_whole = [without_none(hints.get(name)) is int for name in plan.spec.parameters]
        self._error_reporting = ErrorReporting()

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        sizes: deque[int] = deque()

        def given() -> Iterator[tuple[Any, ...]]:
            for batch in batches:
                columns = batch if isinstance(batch, tuple) else (batch,)
                sizes.append(self._rows_in(columns))
                if sizes[-1]:
                    yield columns

        with self._error_reporting:
            yield from map(as_pandas, self._resized(pipe(given(), self._start, self._read, self.__name__), sizes))

    def _rows_in(self, columns: Sequence[Any]) -> int:
        if not is_batch(columns):
            kinds = ", ".join(map(type_name, columns)) or "nothing"
            raise FunctionError(
                f"the handler of {self.__name__} takes an iterator of pandas Series, or of tuples of them, not of "
                f"{kinds}"
            )
        self._plan.spec.check_column_count(len(columns))
        if len({*map(len, columns)}) > 1:
            raise FunctionError(f"the Series of one batch of {self.__name__} have different lengths")
        return len(columns[0])

    def _start(self, first: Sequence[Any], waited: float) -> Bridge[Iterable[InputElement], pa.Array]:
        plan, names = self._of_process(), self._plan.spec.parameters
        writer = ResultArrays(plan.spec.name, plan.written)
        rows, no_types = max(len(first[0]), MIN_BATCH_ROWS), [None] * len(first)
        return start_function(
            plan, lambda values, _: writer.array(values), names, no_types, rows, TaskReportSpec("handler"), waited
        )

    def _of_process(self) -> FunctionPlan:
        options = self._plan.options
        if options.coordinator is None:
            return self._plan
        config = CoordinatorConfig(options.coordinator, uuid.uuid4().hex, key_name(self._plan.spec.function))
        return dataclasses.replace(self._plan, coordinator=config)

    def _read(self, columns: Sequence[Any]) -> InputBatch:
        token, who = BatchToken(), self.__name__
        whole = [*self._are_whole, *repeat(False, len(columns))]
        values = [values_of_series(column, f"column {i + 1} of {who}", whole[i]) for i, column in enumerate(columns)]
        size = sum(map(bytes_of, columns))
        return InputBatch(records_of(zip(*values, strict=True), repeat(token)), token, size)

    def _resized(self, results: Iterator[pa.Array], sizes: deque[int]) -> Iterator[pa.Array]:
        rest = ResultArrays(self._plan.spec.name, self._plan.written).array([])
        for array in results:
            rest = pa.concat_arrays([rest, array])
            while sizes and sizes[0] <= len(rest):
                size = sizes.popleft()
                yield rest[:size]
                rest = rest[size:]
        while sizes:  # batches without rows at the end
            yield rest[: sizes.popleft()]
