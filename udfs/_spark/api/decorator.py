"""async_pandas_udf: reads a function, checks its options, and makes the object for Spark's entry points."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from asyncudf.queues._public import public

from ..._errors.exceptions import FunctionError, OptionError
from ..._errors.safe import safe_repr
from ..._functions.annotations import UnknownTypeError, from_annotation, has_fields
from ..._functions.async_function import AsyncFunction
from ..._functions.options import FunctionOptions, Options, OutputMode, shows_options
from ..._functions.signature import FunctionSpec, is_coroutine_function, read_function
from .._compat import COLUMN_EVAL_TYPE, check_columns, column_function, column_type, engine_of
from ..column import ColumnTask, check_limits_in_sql, column, warn_of_repeated_calls
from ..planner import check_declared, plan_function, result_keys, result_type
from ..table_function import register_table_function
from ..types import active_session

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

P = ParamSpec("P")
R = TypeVar("R")


@public("asyncudf")
class AsyncUDF(Generic[P, R]):
    """An async function at Spark's entry points; made by `async_pandas_udf`.

    Call it with columns for a column, give it to `spark.udf.register`, to its own `register`, or to
    `ordered_wait` and `unordered_wait`. `__wrapped__` is the plain function with its attributes, for unit tests.
    """

    __wrapped__: Callable[P, R]
    __name__: str

    def __init__(self, spec: FunctionSpec, options: Options, returns: Any) -> None:
        check_declared(spec, returns)
        self.spec: FunctionSpec = spec
        self.options: Options = options
        self.returns: Any = returns
        named: Any = type(spec.function) if isinstance(spec.function, AsyncFunction) else spec.function
        functools.update_wrapper(self, named, updated=())  # not its attributes, which would hide ours
        self.__wrapped__ = cast("Callable[P, R]", spec.function)
        self.__name__ = spec.name

    def __call__(self, *columns: Column | str, **named: Column | str) -> Column:
        """The column of the function's results, one for each row, in the order of the rows.

        Raises:
            FunctionError: the function is UNORDERED or gives 0..n results, cannot take these columns, has no
                return type, or cannot be sent to the executors.
        """
        self.spec.check_column_function(self.options)
        spec, arguments = self.spec.with_arguments(columns, named)
        spec.check_column_count(len(arguments))
        return column(AsyncUDF(spec, self.options, self.returns), arguments)

    def register(self, spark: SparkSession, name: str) -> AsyncUDF[P, R]:
        """Make the function callable in SQL under `name`.

        An ORDERED function of one result per row becomes a SQL function: `SELECT w.temp, w.sky FROM (SELECT
        weather(city) AS w FROM trips)`. Every mention is a call, so name it once and take its fields outside.
        An UNORDERED one, or one of 0..n results, becomes a table function, which keeps the table's columns and
        appends the result's: `SELECT * FROM weather(TABLE(trips), 'city')`.

        A table function takes arguments by name too: `weather(TABLE(trips), city => 'town')`. A SQL function does not:
        Spark refuses `weather(city => town)`, as for its own functions of an iterator of batches.

        Wrong arguments: for a table function the error comes when Spark analyses the query. For a SQL function Spark
        accepts any number of columns, so the error comes with the first row, from the executor.

        Raises:
            OptionError: not a session, or not a name.
        """
        if not hasattr(spark, "udf") or isinstance(spark, type) or not (name and isinstance(name, str)):
            raise OptionError(
                f"register takes the Spark session and a name, as in {self.__name__}.register(spark, "
                f"{self.__name__!r}), not {safe_repr(spark)} and {safe_repr(name)}"
            )
        if self.options.output_mode is OutputMode.UNORDERED or self.spec.many_results:
            register_table_function(spark, name, self.spec, self.options, self.returns)
        else:
            given: Any = _InSession(self, spark)
            spark.udf.register(name, given)
        return self

    @shows_options(FunctionOptions, **dict.fromkeys(Options.names(), ...))  # unless given, as they were
    def with_options(self, **options: Unpack[FunctionOptions]) -> AsyncUDF[P, R]:
        """A copy with other options.

        Raises:
            OptionError: an unknown option, or a value that cannot work.
        """
        return AsyncUDF(*_read(self.spec.function, self.options.replace(options)), self.returns)

    def store_key(self, *arguments: Any, **named: Any) -> bytes:
        """The key of the result for these arguments in a `ResultStore`, for its `delete`.

        Args:
            arguments: the arguments as the function gets them: for a `timestamp` column an aware datetime in UTC, for
                an `AsyncFunction` the one dict.
            named: those that were given by name.

        Raises:
            FunctionError: the function cannot take these arguments.
            AsyncUDFError: a value cannot be part of a key.
        """
        spec, given = self.spec.with_arguments(arguments, named)
        keys = result_keys(spec, self.options, self.returns)
        return keys.of(given[0] if spec.takes_mapping else tuple(given))

    # spark.udf.register takes any object with the attributes below. So you can register the function itself.

    @property
    def func(self) -> Callable[..., Any]:
        return self._sql_function(active_session())

    def _sql_function(self, session: SparkSession | None) -> Callable[..., Any]:
        self.spec.check_column_function(self.options)
        check_limits_in_sql(self.spec.name, self.options, session)
        function_plan, data_type = plan_function(self.spec, self.options, self.returns, session)
        check_columns(self.spec.name, session)
        warn_of_repeated_calls(self.spec.name, self.options, session)
        in_parts = session is None or engine_of(session).takes_parts
        return column_function(ColumnTask(function_plan, in_parts=in_parts), data_type)

    @property
    def returnType(self) -> DataType:
        return column_type(result_type(self.spec, self.options, self.returns))

    @property
    def evalType(self) -> int:
        self.spec.check_column_function(self.options)
        return COLUMN_EVAL_TYPE

    @property
    def deterministic(self) -> bool:
        return self.options.deterministic

    def asNondeterministic(self) -> AsyncUDF[P, R]:
        return self.with_options(deterministic=False)

    def __repr__(self) -> str:
        return f"<async_pandas_udf {self.spec.name} ({self.spec.kind.value}, {self.options.output_mode.value})>"


class _InSession:
    """A function with the attributes that `spark.udf.register` asks for, in the session that asks."""

    def __init__(self, udf: AsyncUDF[..., Any], session: SparkSession) -> None:
        self.func = udf._sql_function(session)
        self.returnType, self.evalType = udf.returnType, udf.evalType
        self.deterministic, self.asNondeterministic = udf.deterministic, udf.asNondeterministic


class _Decorator(Protocol):
    # A class is callable too, so the overload for AsyncFunction comes first.
    @overload
    def __call__(self, function: AsyncFunction | type[AsyncFunction], /) -> AsyncUDF[..., Any]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncUDF[P, R]: ...


@overload
def async_pandas_udf(
    f: AsyncFunction | type[AsyncFunction],
    returnType: str | DataType | type[Any] | None = None,
    **options: Unpack[FunctionOptions],
) -> AsyncUDF[..., Any]: ...
@overload
def async_pandas_udf(  # type: ignore[overload-overlap]  # a class can be called, too, and here it is a type
    f: type[Any], returnType: None = None, **options: Unpack[FunctionOptions]
) -> _Decorator: ...
@overload
def async_pandas_udf(
    f: Callable[P, R], returnType: str | DataType | type[Any] | None = None, **options: Unpack[FunctionOptions]
) -> AsyncUDF[P, R]: ...
@overload
def async_pandas_udf(
    f: str | DataType | None = None,
    returnType: str | DataType | type[Any] | None = None,
    **options: Unpack[FunctionOptions],
) -> _Decorator: ...
@public("asyncudf")
@shows_options(FunctionOptions)
def async_pandas_udf(f: Any = None, returnType: Any = None, **options: Any) -> Any:
    """Make an `async def` a Spark function that keeps many calls in flight, in the promised order.

    Use it with or without parentheses. The return type comes first, as in `pandas_udf`; leave it out if the annotation
    of the result declares it. The function is one of: `async def` of scalars; `async def` with
    `yield` (0..n results per row); `async def` of `pd.Series`, `pd.DataFrame` or `pa.Array` (one call for many
    rows); a plain `def` (runs in a thread); an `AsyncFunction`.

    Most functions need the first eight options, from `capacity` to `resources`.

    Args:
        f: the function, when used without parentheses.
        returnType: of one result: DDL, a `DataType`, or a class whose fields have types: a dataclass, a NamedTuple, a
            TypedDict or a Pydantic model.
        capacity: how many calls may be in flight at once, in each task; 100 unless given. "auto", or an
            `AdaptiveCapacity`, finds how many the service can take.
        timeout: seconds for a row from its first call to its result, all attempts and back-offs included; 180 unless
            given, None for no limit. At the deadline the call is cancelled and the row is done at once.
        attempt_timeout: seconds for one attempt; no limit unless given.
        retry: a `RetryStrategy` or a tenacity retrying object.
        on_error: "raise" fails the task at once, "null" gives null, "capture" makes the result a struct of `value` and
            `error` (type, message, attempts, elapsed, status), where `status` is that of an HTTP error, and
            "dead_letter", for `AsyncStream` only, sends the row to `side_output(DEAD_LETTERS)`.
        rate_limit: a `RateLimit`, or a list of them that all hold: how many calls may begin in a second, minute, hour
            or day, in the whole job. Each attempt counts. docs/limits.md is about this, and about the options from
            `job_capacity` on.
        store: a `ResultStore`, which stores results by their arguments: equal arguments are called once in this query,
            in this job, or as long as the store lasts. See docs/once.md.
        resources: async context managers that each task opens once, on the loop of the calls: a function with the name
            of the parameter, or a dict from parameter names to functions or classes.
        output_mode: "ordered", or "unordered" for the operator and table forms.
        queue_size: how many rows may be in flight or wait for their turn, in each task. Leave it out, and memory alone
            is the bound. With `queue_size=capacity` a slow row stops all new calls.
        max_buffered_bytes: how much memory these rows may take, in each task: 256 MiB unless given. What counts are the
            results that wait, also for Spark to read them, the input batches that rows keep alive, and about 400 bytes
            for each row. At this size no row enters until others have left, but always as many as `capacity` calls
            need, unless Spark does not read. Results of calls in flight come on top. None for no limit but
            `queue_size`, which is then 100 * capacity (or capacity full batches).
        on_timeout: the result of a row whose deadline has passed: a value, or a function of the row's arguments.
        on_null_input: "call" calls the function for every row. With "null" a row with any NULL argument has the result
            NULL, as SQL's RETURNS NULL ON NULL INPUT: no call, no permit, no lookup in the store, no failure
            (captured: a NULL value and a NULL error). The arguments of an `AsyncFunction` are its columns.
        extra_fields: what happens to fields of structs in a result that are not declared: "drop" leaves them out, and
            logs their names once a task; "error" makes such a result an error of its row.
        redact: keeps inputs out of messages. True shows their types only. A function of the input (the value, the
            tuple of several arguments, or the dict of an `AsyncFunction`) returns what to show. A result of the wrong
            type is then shown by its type only. Messages of your own exceptions stay as they are, but URLs lose their
            user part and their query in every message, with or without `redact`.
        batch_size: rows in a call of a vectorized function; 100 unless given.
        batch_linger: seconds after which a batch that is not full is called; at the end of the input unless given.
        batch_weight: a plain function of a row's arguments that gives its weight, such as bytes or tokens.
        max_batch_weight: what the rows of a call may weigh together; a row that is heavier has a call of its own.
        split_failed: calls the halves of a batch whose call has failed as a whole, and their halves, until only the
            rows because of which it fails are left: at most two calls for each halving and each such row. Attempts
            that `retry` has left come first. Rows that have succeeded are never called again.
        open_timeout: seconds for each resource, and for `AsyncFunction.open`, to open; 60 unless given, None for no
            limit. What is not open by then fails the task. See docs/hangs.md.
        deterministic: lets Spark's optimizer copy the function to where its result is used, which calls it more than
            once for a row, or push filters past it. It saves calls only where one SELECT names the function twice.
        loop: the event loop of the calls: "auto", which is uvloop on executors that have it, "asyncio", or "uvloop"
            (the extra `asyncudf[fast]`).
        version: change it when the function changes: results of another version do not count. Without it it is "1".
        on_store_error: what happens to rows if the store fails: "call", with a warning, or "fail", which ends the job.
        store_timeout: seconds for a lookup of a batch, or a write; 1 unless given.
        job_capacity: how many calls may be in flight at once in the whole job, beside `capacity` in each task; or a
            `KeyCapacity`, how many of each key.
        max_calls: how many calls a query may make in all, as a budget of calls: `on_spent` says what comes then.
        budget: a `Budget`, or a list of them: what the calls of the job may cost, in money, tokens or another unit. See
            docs/budgets.md.
        on_spent: what happens to rows for which no budget is left: "raise" ends the job with one error, with "null"
            their results are NULL (under `on_error="capture"` with the reason), and with "dead_letter" they go to the
            side output.
        coordinator: the URL of a Redis or Valkey server at which tasks agree on limits of the job, such as
            "redis://:password@host:6379"; unless given, the driver starts a server if a limit needs one (the extra
            `asyncudf[coordinator]`).
        breaker: a `CircuitBreaker`: rows wait while the service is down, and use up no attempt.
        max_failures: how many rows may fail before the job ends: a count, or a share such as 0.02 after 100 rows.

    Raises:
        OptionError: a value that cannot work. It is also a ValueError.
        FunctionError: a function that cannot be run. It is also a TypeError.

    >>> @async_pandas_udf("temp double, sky string", capacity=200, timeout=5.0, on_error="null")
    ... async def weather(city: str) -> dict:
    ...     return {"temp": 12.5, "sky": "clear"}
    >>> from asyncudf.testing import run_rows
    >>> run_rows(weather, ["Oslo"])
    [{'temp': 12.5, 'sky': 'clear'}]
    """
    if is_type(f) or (f is not None and not callable(f) and not isinstance(f, AsyncFunction)):
        if returnType is not None:
            raise OptionError(f"two return types: {safe_repr(f)} and {safe_repr(returnType)}")
        f, returnType = None, f
    checked, returns = Options.of(options), checked_type(returnType)
    if f is None:
        return lambda function: AsyncUDF(*_read(function, checked), returns)
    return AsyncUDF(*_read(f, checked), returns)


def udf_of(function: Any, returns: Any, options: Mapping[str, Any]) -> AsyncUDF[..., Any]:
    """The AsyncUDF of a plain function with these options, or a copy of an AsyncUDF with them."""
    _refuse_columns_by_name(function, options)
    if isinstance(function, AsyncUDF):
        changed = function.with_options(**options)
        if returns is not None:
            changed.returns = checked_type(returns)
        return changed
    return AsyncUDF(*_read(function, Options.of(options)), checked_type(returns))


def _refuse_columns_by_name(function: Any, given: Mapping[str, Any]) -> None:
    """Raises OptionError for a column that is given by the name of its parameter: that is the place of options."""
    if not (unknown := given.keys() - Options.names()):
        return
    known = {name: value for name, value in given.items() if name not in unknown}
    spec = function.spec if isinstance(function, AsyncUDF) else read_function(function, Options.of(known))
    if by_name := [parameter for parameter in spec.parameters if parameter in unknown]:
        wanted = spec.parameters[: spec.parameters.index(by_name[-1]) + 1]
        columns = (safe_repr(given[name]) if name in by_name else f"<the column of {name}>" for name in wanted)
        raise OptionError(
            f"{spec.name} takes columns by position and not by name, which is for options: write {', '.join(columns)} "
            f"after the function, in the order of its parameters ({', '.join(spec.parameters)})"
        )


def _read(function: Any, options: Options) -> tuple[FunctionSpec, Options]:
    """A function and its options, each checked against the other."""
    if isinstance(function, AsyncUDF):
        raise FunctionError(f"{function.spec.name} is an async_pandas_udf already; use with_options(...)")
    if options.on_timeout is not None and is_coroutine_function(options.on_timeout):
        raise OptionError("on_timeout must be a value or a plain def: it is called at the deadline and may not wait")
    return read_function(function, options), options


def is_type(given: Any) -> bool:
    """Whether what can be called is a type: a class with fields that is no function, or such as `list[int]`."""
    is_function = isinstance(given, type) and issubclass(given, AsyncFunction)  # it may be a dataclass
    return typing.get_origin(given) is not None or (has_fields(given) and not is_function)


def checked_type(returns: Any) -> Any:
    """A declared type as DDL or as a DataType. Raises OptionError for what is no type."""
    # By attribute and not by class, so that this module does not import PySpark.
    if returns is None or isinstance(returns, str) or hasattr(returns, "simpleString"):
        return returns
    why = ""
    if isinstance(returns, type) or typing.get_origin(returns) is not None:
        try:
            return from_annotation(returns)
        except UnknownTypeError as error:
            why = f": {error}"
    raise OptionError(
        "returnType must be DDL such as 'temp double, sky string', a DataType, or a class whose fields have types, "
        f"such as a dataclass or a Pydantic model, not {safe_repr(returns)}{why}"
    )
