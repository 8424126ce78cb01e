"""LookupTable: the results of a function as a Spark table, which is brought up to date."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack

from .._errors.exceptions import OptionError, ResultError
from .._functions.async_function import AsyncFunction
from .._policies.checks import flag, optional, positive_int, seconds, text
from .._policies.options import CallOptions, OnNullInput
from .._policies.retry import EndedAttempt, RetryStrategy
from .._spark.lookup_table.keys import arguments_of, called_rows, check_ends, free_name, key_batches, keys_of
from .._spark.lookup_table.table import lookup_table
from .._text.safe import safe_repr
from .decorator import AsyncUDF, udf_of
from .monitor import monitor
from .stream import unordered_wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ("LookupTable",)


HOW = ("left", "inner")


@dataclasses.dataclass(frozen=True)
class LookupUpdate:
    """What an update did, counted in distinct arguments.

    Attributes:
        called: the function was called for them, and they are in the table.
        reused: the table had them.
        failed: of those that were called, these have an error.
    """

    called: int
    reused: int
    failed: int


class LookupTable:
    """The results of a function for all arguments that it was ever asked for, as a table of Spark.

    For jobs that outgrow one machine, and clusters without Redis: each distinct arguments are called once, whatever
    happens to the job, and the results can be joined, queried and kept like any other table.

    Rows are only added, a wave at a time, and a wave that was not finished leaves whole rows behind or nothing. So an
    update that was killed is run again, and goes on with what is missing. Two updates at once do no harm, but both may
    call for the same arguments; the newest result counts. Results of a function of another name (with its module), or
    of another `version=`, do not count; all lambdas have one name.

    Whatever `on_error` is, errors are kept beside the arguments. What only stands in for a result is not kept: a row
    that is late has its `AsyncTimeoutError` and not what `on_timeout` gives, and one whose last result
    `retry_if_result` would try again has a `ResultError`.

    Args:
        spark: the session.
        table: a path, taken to the letter, or the name of a table in the catalog, where what is more than letters,
            digits and underscores is in `backticks`. It is made when it is not there. Without Hive or another catalog
            that lasts, Spark forgets a name at the end of the session; the table is then made again over the files
            that it finds where the table was.
        function: an `async_pandas_udf` or a plain function, with one result for a row.
        columns: the names of the columns that the function reads, in the order of its parameters; without them those
            called like its parameters. The same in each DataFrame.
        ttl: seconds, or a timedelta, after which `update` calls again; the older result stays until there is another.
            None: never.
        error_ttl: the same for errors; None: each update calls again.
        format: "parquet", "orc", or what is installed, such as "avro", "delta" or "iceberg". A table of the catalog
            keeps the one that it was made with.
        wave: about how many calls to make before they are added to the table.
        returnType: the type of a result, where `function` does not say it.
        options: as in `async_pandas_udf`; those given here win.

    Raises:
        OptionError: a value that cannot work.
        FunctionError: a function that gives 0..n results, or two of the columns that `to_df` shows have one name.

    >>> airports = LookupTable(spark, "/data/airports", locate, "code", ttl=30 * 24 * 3600)  # doctest: +SKIP
    >>> airports.update(flights)  # doctest: +SKIP
    LookupUpdate(called=353, reused=0, failed=2)
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
        returnType: str | DataType | None = None,  # noqa: N803 - as in async_pandas_udf
        **options: Unpack[CallOptions],
    ) -> None:
        if not hasattr(spark, "createDataFrame") or isinstance(spark, type):
            raise OptionError(f"LookupTable takes the Spark session first, not {safe_repr(spark)}")
        self._spark = spark
        self._ttl, self._error_ttl = optional(seconds)(ttl, "ttl"), optional(seconds)(error_ttl, "error_ttl")
        self._wave = positive_int(wave, "wave")
        self._udf = capturing(udf_of(function, returnType, options))
        spec = self._udf.spec
        self._columns = tuple(text(column, "a column") for column in columns) or spec.parameters[: spec.required]
        if not self._columns:
            raise OptionError(
                f"name the columns that {spec.name} reads: LookupTable(spark, table, {spec.name}, 'city')"
            )
        where, kind = text(table, "table"), text(format, "format")
        self._table = lookup_table(spark, where, kind, spec, self._udf.options, self._udf.returns, self._columns)

    def update(self, df: DataFrame, progress: bool = True) -> LookupUpdate:
        """Call the function for the arguments in `df` that the table has no result for, and add what it gives.

        With `on_null_input="null"` rows with a NULL among the arguments are passed over: a join gives NULL for them.

        Args:
            df: has the columns of the arguments; rows may repeat. Not streaming: of a stream each batch, in
                `foreachBatch`.
            progress: show how far it is, as `monitor(spark, progress=True)` does.

        Raises:
            OptionError: `df` is no DataFrame, or `progress` not True or False.
            FunctionError: `df` is streaming; a column is missing, there twice, or of another type than in the table;
                the table is another one, or cannot be read, or made.
            PySparkException: a job has failed, as by what no `on_error` keeps from it, such as resources that cannot
                be opened, or because the table cannot be written; the batches before stay in the table.
        """
        flag(progress, "progress")
        check_ends(df)
        keys = keys_of(df, self._columns, needs_all=self._udf.options.on_null_input is OnNullInput.NULL).persist()
        try:
            missing = self._table.missing(keys, self._ttl, self._error_ttl).persist()
            try:
                count = missing.count()
                reused = keys.count() - count
                with monitor(self._spark, progress=True) if progress and count else contextlib.nullcontext():
                    called, failed = self._call(missing, count)
            finally:
                missing.unpersist()
        finally:
            keys.unpersist()
        return LookupUpdate(called, reused, failed)

    def _call(self, keys: DataFrame, count: int) -> tuple[int, int]:
        outcome = free_name("outcome", self._columns)
        called = failed = 0
        for part in key_batches(self._spark, keys, count, self._wave) if count else ():
            rows = unordered_wait(arguments_of(part), self._udf, *self._columns, as_=outcome)
            more, errors = self._table.append(called_rows(rows, self._columns, outcome))
            called, failed = called + more, failed + errors
        return called, failed

    def join(self, df: DataFrame, how: Literal["left", "inner"] = "left") -> DataFrame:
        """`df` with the newest result for its arguments, NULLs among them included; nothing is called.

        A struct's fields become columns, anything else one column named after the function. A streaming `df` is joined
        with the table as it is now.

        Args:
            how: "left" keeps rows without a result, with NULLs; "inner" drops them.

        Raises:
            OptionError: `df` is no DataFrame, or `how` is something else.
            FunctionError: a column is missing, there twice, of another type than in the table, or called like one of
                the result's; the table is another one, or cannot be read.
        """
        if how not in HOW:
            raise OptionError(f"how must be one of {', '.join(map(repr, HOW))}, not {safe_repr(how)}")
        return self._table.joined(df, self._udf.spec.name, how)

    def to_df(self) -> DataFrame:
        """A row for each arguments: they, the newest result, the error of the last call if it had one, `called_at`.

        Raises:
            FunctionError: there is no table yet, or it is another one.
        """
        return self._table.shown()

    def __repr__(self) -> str:
        return f"<LookupTable {self._table.where} of {self._udf.spec.name}({', '.join(self._columns)})>"


def capturing(udf: AsyncUDF[..., Any]) -> AsyncUDF[..., Any]:
    """The function with its errors beside its results.

    A row that is late has its error, whatever `on_timeout` would make of it, and so has one whose last result the retry
    strategy would have tried again.
    """
    retry, timeout = udf.options.retry, udf.options.timeout
    if retry is not None and timeout is not None:  # which a strategy needs
        retry = _Exacting(retry, timeout)
    return udf.with_options(on_error="capture", on_timeout=None, retry=retry)


class _Exacting(RetryStrategy):
    """Another strategy, but its last result does not stand if another attempt would have been made for it."""

    def __init__(self, given: RetryStrategy, timeout: float) -> None:
        self._given = given
        self._timeout = timeout
        self.max_retry_after = given.max_retry_after

    @property
    def checks_results(self) -> bool:
        return self._given.checks_results

    def asks_again(self, attempt: EndedAttempt) -> bool:
        return self._given.asks_again(attempt)

    def singles_out(self, error: BaseException) -> bool:
        return self._given.singles_out(error)

    def next_delay(self, attempt: EndedAttempt, rng: random.Random) -> float | None:
        delay = self._given.next_delay(attempt, rng)
        is_last = delay is None or attempt.elapsed + delay >= self._timeout
        if is_last and attempt.error is None and self.asks_again(attempt):
            raise ResultError(
                f"after {attempt.number} attempt{'s' * (attempt.number > 1)} the retry strategy still asks again for "
                "the result, which is therefore not kept"
            )
        return delay
