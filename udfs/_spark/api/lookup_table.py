"""LookupTable: the results of a function as a Spark table, which `update` completes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pyspark.sql import functions as sf

from ..._errors.checks import flag, optional, positive_int, seconds, text
from ..._errors.exceptions import OptionError, ResultError
from ..._errors.safe import safe_repr
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OnNullInput
from ..._functions.retry import EndedAttempt, RetryStrategy
from ..lookup_table import IS_KNOWN, KEY, OUTCOME, ResultTable, key_batches, keys_of
from .decorator import AsyncUDF, udf_of
from .monitor import monitor
from .stream import unordered_wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

HOW = ("left", "inner")


@dataclasses.dataclass(frozen=True)
class LookupUpdate:
    """What an update did, counted in distinct arguments.

    Attributes:
        called: arguments for which the function was called; they are in the table now.
        reused: arguments that the table had already.
        failed: arguments among the called ones whose call ended with an error.
        unpaid: arguments that were not called because a budget was spent; the next update calls for them.
    """

    called: int
    reused: int
    failed: int
    unpaid: int = 0


class LookupTable:
    """A Spark table of a function's results for all arguments that you have updated it with.

    For jobs that outgrow one machine, and clusters without Redis: the function is called once for distinct arguments,
    whatever happens to the job, and you can join, query and keep the results like any other table.

    `update` only adds rows, a wave at a time. A wave that was not finished leaves whole rows or nothing. So if an
    update was killed, run it again, and it calls for what is missing. Two updates at once do no harm at a path, or in a
    format with transactions, but both may call for the same arguments; the newest result counts. Results of a function
    of another name (with its module), or of another `version=`, do not count; all lambdas have one name.

    The table keeps errors beside the arguments, whatever `on_error` is. It keeps no stand-ins for results: a row that
    is late has its `AsyncTimeoutError` and not what `on_timeout` gives, and a row whose last result `retry_if_result`
    would try again has a `ResultError`.

    Args:
        spark: the session.
        table: a path, which has a slash, a backslash or a colon and is read literally; or the name of a table in the
            catalog. The table is created if it does not exist. A name needs a lasting catalog, such as Hive's: another
            one forgets it at the end of the session, and Spark then refuses to create it where its files are.
        function: an `async_pandas_udf` or a plain function, with one result for a row.
        columns: the names of the columns that the function reads, in the order of its parameters; unless given, the
            names of its parameters. They are the same in each DataFrame.
        ttl: seconds, or a timedelta, after which `update` calls again; the old result stays until there is a new one.
            None: never.
        error_ttl: the same for errors; None: each update calls again.
        format: "parquet", "orc", or what is installed, such as "avro", "delta" or "iceberg". A table of the catalog
            keeps the format that it was created with.
        wave: about how many calls to make before their results are added to the table.
        returnType: the type of a result, if `function` does not declare it.
        options: as in `async_pandas_udf`; those given here win.

    Raises:
        OptionError: a value that cannot work.
        FunctionError: the function gives 0..n results, or two columns of `to_df` would have one name.

    >>> airports = LookupTable(spark, "/data/airports", locate, "code", ttl=30 * 24 * 3600)  # doctest: +SKIP
    >>> airports.update(flights)  # doctest: +SKIP
    LookupUpdate(called=353, reused=0, failed=2, unpaid=0)
    >>> airports.join(flights).write.parquet("/data/located")  # doctest: +SKIP
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        function: Callable[..., Any] | AsyncFunction,
        *columns: str,
        ttl: float | timedelta | None = None,
        error_ttl: float | timedelta | None = None,
        format: str = "parquet",  # noqa: A002 - as DataFrameWriter calls it
        wave: int = 100_000,
        returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
        **options: Unpack[CallOptions],
    ) -> None:
        if not hasattr(spark, "createDataFrame") or isinstance(spark, type):
            raise OptionError(f"LookupTable takes the Spark session first, not {safe_repr(spark)}")
        self._spark = spark
        self._ttl, self._error_ttl = optional(seconds)(ttl, "ttl"), optional(seconds)(error_ttl, "error_ttl")
        self._wave = positive_int(wave, "wave")
        self._udf = _capturing(udf_of(function, returnType, options))
        spec = self._udf.spec
        spec.check_takes_columns()
        given = tuple(text(column, "the name of a column") for column in columns)
        self._columns = given or spec.parameters[: spec.required]
        if not self._columns:
            raise OptionError(
                f"name the columns that {spec.name} reads: LookupTable(spark, table, {spec.name}, 'city')"
            )
        where, kind = text(table, "table"), text(format, "format")
        self._table = ResultTable(spark, where, kind, spec, self._udf.options, self._udf.returns, self._columns)

    def update(self, df: DataFrame, progress: bool = True) -> LookupUpdate:
        """Call the function for the arguments in `df` without a result in the table, and add the results.

        With `on_null_input="null"` it skips rows with a NULL among the arguments: a join gives NULL for them.

        Args:
            df: a DataFrame with the columns of the arguments; rows may repeat. For a stream, update with each batch in
                `foreachBatch`.
            progress: show the progress, as `monitor(spark, progress=True)` does.

        Raises:
            OptionError: `df` is not a DataFrame, or `progress` is not True or False.
            FunctionError: a column is missing, or of another type than in the table; it is no table of a LookupTable.
            PySparkException: `df` is streaming; Spark cannot read, create or write the table; a job has failed, such as
                by resources that cannot be opened. The waves before stay in the table.
        """
        flag(progress, "progress")
        with contextlib.ExitStack() as stack:
            # Both: Spark makes `found` anew whenever the table has changed, and `df` is read once.
            keys = keys_of(df, self._columns, needs_all=self._udf.options.on_null_input is OnNullInput.NULL).persist()
            stack.callback(keys.unpersist)
            found = self._table.looked_up(keys, self._ttl, self._error_ttl).persist()
            stack.callback(found.unpersist)
            [reused, count] = found.agg(sf.count_if(IS_KNOWN), sf.count_if(~sf.col(IS_KNOWN))).collect()[0]
            missing, done = found.where(~sf.col(IS_KNOWN)), Counter[str]()
            if progress and count:
                stack.enter_context(monitor(self._spark, progress=True))
            for part in key_batches(self._spark, missing, count, self._wave):
                rows = unordered_wait(part.select(f"{KEY}.*"), self._udf, *self._columns, as_=OUTCOME)
                done.update(self._table.append(rows))
        return LookupUpdate(done["called"], reused, done["failed"], done["unpaid"])

    def join(self, df: DataFrame, how: Literal["left", "inner"] = "left") -> DataFrame:
        """`df` with the newest result for its arguments, also for those with a NULL; calls nothing.

        A struct's fields become columns, anything else one column named after the function. A streaming `df` is joined
        with the table as it is now.

        Args:
            how: "left" keeps rows without a result, with NULLs; "inner" drops them.

        Raises:
            OptionError: `df` is not a DataFrame, or `how` is something else.
            FunctionError: a column is missing, of another type than in the table, or has the name of a column of the
                result; the table is not one of a LookupTable.
            PySparkException: Spark cannot read the table; there is none of this name (nothing at a path gives NULLs).
        """
        if how not in HOW:
            raise OptionError(f"how must be one of {', '.join(map(repr, HOW))}, not {safe_repr(how)}")
        return self._table.joined(df, how)

    def to_df(self) -> DataFrame:
        """A row for distinct arguments: these, the newest result, the error of the last call if any, and `called_at`.

        Raises:
            FunctionError: nothing is at the path yet, or it is no table of a LookupTable.
            PySparkException: Spark cannot read the table, or there is none of this name.
        """
        return self._table.shown()

    def __repr__(self) -> str:
        return f"<LookupTable {self._table.where} of {self._udf.spec.name}({', '.join(self._columns)})>"


def _capturing(udf: AsyncUDF[..., Any]) -> AsyncUDF[..., Any]:
    """The function with `on_error="capture"`, and an error wherever an option would give a stand-in for a result."""
    retry, timeout = udf.options.retry, udf.options.timeout
    if retry is not None and timeout is not None:  # a retry strategy needs a timeout
        retry = _StrictRetry(retry, timeout)
    return udf.with_options(on_error="capture", on_timeout=None, retry=retry)


class _StrictRetry(RetryStrategy):
    """A strategy by which a last result that it would try again is an error."""

    def __init__(self, given: RetryStrategy, timeout: float) -> None:
        vars(self).update(vars(given))
        self._timeout = timeout

    def next_delay(self, attempt: EndedAttempt, draw: float) -> float | None:
        delay = super().next_delay(attempt, draw)
        is_last = delay is None or attempt.elapsed + delay >= self._timeout
        if is_last and attempt.error is None and self.asks_again(attempt):
            raise ResultError(
                f"after {attempt.number} attempt{'s' * (attempt.number > 1)} the retry strategy still asks again for "
                "the result, which is therefore not kept"
            )
        return delay
