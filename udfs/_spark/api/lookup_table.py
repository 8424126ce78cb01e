"""LookupTable: the results of a function as a Spark table, which `update` completes.

The rows are at a path or in a table of the catalog, by Spark's own reader and writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from asyncudf.queues._public import public

from ..._errors.checks import flag, optional, positive_int, seconds, text
from ..._errors.exceptions import BudgetSpentError, FunctionError, OptionError, ResultError
from ..._errors.safe import safe_repr
from ..._functions.async_function import AsyncFunction
from ..._functions.attempts import EndedAttempt
from ..._functions.key_names import key_name
from ..._functions.options import CallOptions, OnNullInput, shows_options
from ..._functions.retry import RetryStrategy
from .._compat import condition_of, setting, slots_of
from ..keeping import keep
from ..planner import plan_function
from ..result_table import WAVE, ResultTable, counted, wave_name
from ..schemas import (
    as_nullable,
    check_frame,
    check_source,
    column_position,
    is_comparable,
    joined_schema,
    result_fields,
)
from .decorator import AsyncUDF, udf_of
from .monitor import monitor
from .stream import unordered_wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The arguments are one struct: so their names do not clash with those of other columns, and NULL equals NULL in them.
KEY, RESULT, ERROR, CALLED_AT = "arguments", "result", "error", "called_at"
FUNCTION, VERSION = "function", "version"
COLUMNS = (KEY, RESULT, ERROR, CALLED_AT, FUNCTION, VERSION, WAVE)
SUCCEEDED_AT = "succeeded_at"  # of `_newest`
IS_KNOWN = "is_known"  # of `_looked_up`
OUTCOME, JOIN_KEY = "asyncudf outcome", "asyncudf key"  # for a moment beside the user's columns
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of columns
NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"  # says a format for which a path is the name of a table, such as Iceberg
ROWS_PER_TASK = 1_000
MAX_TTL = 1e10  # seconds: no row is older than 300 years, and Spark has no longer interval
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


@public("asyncudf")
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
        format: "parquet", "orc", or what is installed, such as "avro", "delta" or "iceberg", which needs the name of a
            table. A table of the catalog keeps the format that it was created with.
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

    # _fields: the columns of a result in `join` and `to_df`

    @shows_options(CallOptions, on_error="capture")
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
        self._where, self._format = os.path.expanduser(text(table, "table")), text(format, "format")
        self._table = ResultTable(spark, self._where, self._format)
        if format.lower() in NOT_FORMATS:
            raise OptionError(
                "format must be one that keeps the types of columns, such as 'parquet', 'orc' or 'delta', not "
                f"{safe_repr(format)}"
            )
        if spec.many_results:
            raise FunctionError(
                f"{spec.name} gives 0..n results: a LookupTable keeps one for each arguments; make it a list"
            )
        self._function, self._version = key_name(spec.function), self._udf.options.version or "1"
        plan, captured = plan_function(spec, self._udf.options, self._udf.returns, spark)
        assert isinstance(captured, StructType)
        self._result, self._error = captured["value"].dataType, captured["error"].dataType
        self._fields = result_fields(plan, self._result)
        others = [StructField(name, StringType()) for name in (*self._columns, ERROR, CALLED_AT)]
        joined_schema([], [*others, *self._fields], f"the LookupTable of {spec.name}")  # `to_df` has all of these

    def update(self, df: DataFrame, progress: bool = True) -> LookupUpdate:
        """Call the function for the arguments in `df` without a result in the table, and add the results.

        With `on_null_input="null"` it skips rows with a NULL among the arguments: a join gives NULL for them.

        Args:
            df: a DataFrame with the columns of the arguments; rows may repeat. For a stream, update with each batch in
                `foreachBatch`.
            progress: show the progress, as `monitor(spark, progress=True)` does.

        Raises:
            OptionError: `df` is not a DataFrame, or `progress` is not True or False; Spark makes no table of the format
                at a path.
            FunctionError: a column is missing, or of another type than in the table; it is no table of a LookupTable;
                the format cannot keep a type, or the table takes no NULL and there is one. Nothing was called then.
            PySparkException: `df` is streaming; Spark cannot read, create or write the table; a job has failed, such as
                by resources that cannot be opened. The waves before stay in the table.
        """
        flag(progress, "progress")
        with contextlib.ExitStack() as stack:
            # Both: Spark makes `found` anew whenever the table has changed, and `df` is read once.
            needs_all = self._udf.options.on_null_input is OnNullInput.NULL
            keys = stack.enter_context(keep(keys_of(df, self._columns, needs_all=needs_all)))
            check_source(keys.select(f"{KEY}.*").schema, "the DataFrame")
            self._make(keys.schema[KEY].dataType)
            self._check_nulls(keys)
            found = stack.enter_context(keep(self._looked_up(keys, self._ttl, self._error_ttl)))
            [reused, count] = found.agg(sf.count_if(IS_KNOWN), sf.count_if(~sf.col(IS_KNOWN))).collect()[0]
            missing, done = found.where(~sf.col(IS_KNOWN)), Counter[str]()
            if progress and count:
                stack.enter_context(monitor(self._spark, progress=True))
            for wave in waves_of(self._spark, missing, count, self._wave):
                rows = unordered_wait(wave.select(f"{KEY}.*"), self._udf, *self._columns, as_=OUTCOME)
                done.update(self._append(rows))
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
        keys = keys_of(df, self._columns)
        joined_schema(df.schema.fields, self._fields, self._udf.spec.name)
        known = self._newest(keys.schema[KEY].dataType)
        found = known.where(sf.col(SUCCEEDED_AT).isNotNull()).select(sf.col(KEY).alias(JOIN_KEY), self._as_columns)
        return df.withColumn(JOIN_KEY, key_of(self._columns)).join(found, on=JOIN_KEY, how=how).drop(JOIN_KEY)

    def to_df(self) -> DataFrame:
        """A row for distinct arguments: these, the newest result, the error of the last call if any, and `called_at`.

        Raises:
            FunctionError: nothing is at the path yet, or it is no table of a LookupTable.
            PySparkException: Spark cannot read the table, or there is none of this name.
        """
        return self._newest().select(f"{KEY}.*", self._as_columns, ERROR, CALLED_AT)

    def __repr__(self) -> str:
        return f"<LookupTable {self._where} of {self._udf.spec.name}({', '.join(self._columns)})>"

    def _make(self, arguments: DataType) -> None:
        """Create the table of the catalog, and write no rows to it: so a mistake is seen before anything is called.

        A table that cannot take the rows is dropped again.
        """
        catalog, schema = self._spark.catalog, self._schema(arguments)
        if self._table.is_path or catalog.tableExists(self._where):
            return
        try:
            catalog.createTable(self._where, source=self._format, schema=schema)
        except Exception as error:  # of Spark or of Java
            if catalog.tableExists(self._where):  # another job was faster; or it is Sail's, which has made the table
                self._newest(arguments)
                return
            if isinstance(error, PySparkException) and condition_of(error):
                raise  # one of Spark's own messages
            raise FunctionError(
                f"{self._format} cannot keep {self._where} with arguments of the type {arguments.simpleString()} and "
                f"results of the type {self._result.simpleString()} ({_reason(error)}); cast what it does not know, "
                "such as to a string, or take another format"
            ) from error
        try:
            self._newest(arguments)
            self._table.add(self._spark.createDataFrame([], schema), wave_name())
        except BaseException:
            self._spark.sql(f"DROP TABLE {self._where}")
            raise

    def _check_nulls(self, keys: DataFrame) -> None:
        """Raises FunctionError if the table has no place for a NULL among the arguments, as one that others made."""
        if self._table.is_path:
            return
        kept = next((field.dataType for field in self._spark.read.table(self._where).schema if field.name == KEY), None)
        fields = kept.fields if isinstance(kept, StructType) else []
        required = [(name, one.name) for name, one in zip(self._columns, fields, strict=False) if not one.nullable]
        for name, place in required:
            if keys.where(sf.col(KEY).getField(name).isNull()).head(1):
                raise FunctionError(
                    f"column {name!r} has a NULL, and {self._where} takes none there; nothing was called. Let it: "
                    f"ALTER TABLE {self._where} ALTER COLUMN {KEY}.{place} DROP NOT NULL"
                )

    def _schema(self, arguments: DataType) -> StructType:
        """The columns of the table. Each takes NULL at every depth, whatever the first DataFrame says of its own."""
        types = {KEY: arguments, RESULT: self._result, ERROR: self._error, CALLED_AT: TimestampType()}
        return StructType([StructField(name, as_nullable(types.get(name, StringType()))) for name in COLUMNS])

    def _read(self, arguments: DataType | None) -> DataFrame:
        """All rows; none if nothing is at the path, unless there has to be a table."""
        try:
            rows = self._table.rows()
        except PySparkException as error:
            if not self._table.is_path or NO_TABLE not in (condition_of(error) or str(error)):
                raise
            raise OptionError(
                f"there is no table of {self._format} at {self._where}, and Spark makes none at a path: "
                f"name a table of a catalog, as in LookupTable(spark, 'catalog.database.table', {self._udf.spec.name}, "
                f"format={self._format!r})"
            ) from None
        if rows is not None:
            return rows
        if arguments is None:
            raise FunctionError(f"there is no table {self._where} yet; update(df) makes it")
        return self._spark.createDataFrame([], self._schema(arguments))

    def _newest(self, arguments: DataType | None = None) -> DataFrame:
        """A row for each key: the newest result, and the error of the last call if it failed.

        `arguments`: the type that they must have; None where there has to be a table.
        """
        rows = self._read(arguments)
        found = {field.name: field.dataType for field in rows.schema.fields}
        if missing := [name for name in COLUMNS if name not in found]:
            raise FunctionError(f"{self._where} is not a table of a LookupTable: it has no column {missing[0]!r}")
        if not keeps(found[RESULT], self._result):
            raise FunctionError(
                f"{self._where} has results of the type {found[RESULT].simpleString()}, and the function gives "
                f"{self._result.simpleString()}; take another table for it"
            )
        kept = found[KEY]
        assert isinstance(kept, StructType)
        if [name.casefold() for name in kept.names] == [name.casefold() for name in self._columns]:
            named = zip(self._columns, kept.fields, strict=True)
            kept = StructType([StructField(name, field.dataType) for name, field in named])
        if arguments is not None and not keeps(kept, arguments):
            raise FunctionError(
                f"{self._where} has arguments of the type {kept.simpleString()}, not {arguments.simpleString()}; "
                "cast the columns, or take another table"
            )
        succeeded_at = sf.when(sf.col(ERROR).isNull(), sf.col(CALLED_AT))
        is_ours = (sf.col(FUNCTION) == sf.lit(self._function)) & (sf.col(VERSION) == sf.lit(self._version))
        return (
            rows.where(is_ours)
            .withColumn(KEY, sf.col(KEY).cast(kept if arguments is None else as_nullable(arguments)))
            .withColumn(RESULT, sf.col(RESULT).cast(as_nullable(self._result)))
            .groupBy(KEY)
            .agg(
                sf.max_by(RESULT, succeeded_at).alias(RESULT),
                sf.max_by(ERROR, CALLED_AT).alias(ERROR),
                sf.max(CALLED_AT).alias(CALLED_AT),
                sf.max(succeeded_at).alias(SUCCEEDED_AT),
            )
        )

    def _looked_up(self, keys: DataFrame, ttl: float | None, error_ttl: float | None) -> DataFrame:
        """The keys, and whether each `IS_KNOWN`: has a result or an error that counts.

        They count for so many seconds; with None a result always does, and an error never.
        """
        known = self._newest(keys.schema[KEY].dataType)
        counts = sf.col(SUCCEEDED_AT).isNotNull() if ttl is None else sf.col(SUCCEEDED_AT) > _before(ttl)
        if error_ttl is not None:
            counts = counts | (sf.col(ERROR).isNotNull() & (sf.col(CALLED_AT) > _before(error_ttl)))
        found = keys.join(known.select(KEY, counts.alias(IS_KNOWN)), on=KEY, how="left")
        return found.select(KEY, sf.coalesce(IS_KNOWN, sf.lit(False)).alias(IS_KNOWN))

    @property
    def _as_columns(self) -> Any:
        """The columns of a result: the fields of a struct, or the result itself."""
        is_struct = isinstance(self._result, StructType)
        return sf.col(f"{RESULT}.*") if is_struct else sf.col(RESULT).alias(self._fields[0].name)

    def _append(self, df: DataFrame) -> dict[str, int]:
        """Add rows, all of them or nothing: arguments, and the struct of value and error in `OUTCOME`.

        Returns how many were called, failed, or are unpaid: these are left out, or they would count as failed until
        their `error_ttl` is over.
        """
        wave = wave_name()
        value, error = (sf.col(OUTCOME).getField(name) for name in ("value", "error"))
        rows = df.select(key_of(self._columns), value.alias(RESULT), error.alias(ERROR))
        unpaid = sf.col(ERROR).getField("type").eqNullSafe(BudgetSpentError.__name__)
        counts = {"rows": sf.lit(1), "errors": sf.col(ERROR), "unpaid": sf.when(unpaid, 1)}
        texts = {FUNCTION: self._function, VERSION: self._version, WAVE: wave}
        with counted(rows, *(sf.count(column).alias(name) for name, column in counts.items())) as (rows, tell):
            texts_of = (sf.lit(text).alias(name) for name, text in texts.items())
            self._table.add(rows.where(~unpaid).select("*", sf.current_timestamp().alias(CALLED_AT), *texts_of), wave)
            told = tell()
        rest = told["unpaid"]
        return {"called": told["rows"] - rest, "failed": told["errors"] - rest, "unpaid": rest}


def _before(seconds: float) -> Any:
    return sf.current_timestamp() - sf.make_dt_interval(secs=sf.lit(min(seconds, MAX_TTL)).cast("decimal(18,6)"))


def keeps(kept: DataType, wanted: DataType) -> bool:
    """Whether a table with this type has values of the wanted one: Iceberg keeps a tinyint and a smallint as an int."""
    return as_nullable(kept) in (as_nullable(wanted), as_nullable(wanted, _not_small))


def _not_small(data_type: DataType) -> DataType:
    return IntegerType() if isinstance(data_type, (ByteType, ShortType)) else data_type


def _reason(error: Exception) -> str:
    """What an error says; one of Java would show its stack."""
    return str(getattr(error, "java_exception", error)).strip().partition("\n")[0]


def keys_of(df: DataFrame, columns: Sequence[str], *, needs_all: bool = False) -> DataFrame:
    """The distinct arguments in these columns; with `needs_all` only those without a NULL."""
    check_frame(df, "a LookupTable")
    for column in columns:
        column_position(column, df.columns)  # raises FunctionError
    keys = df.select(key_of(columns))
    for field in keys.select(f"{KEY}.*").schema.fields:
        if not is_comparable(field.dataType):
            raise FunctionError(
                f"column {field.name!r}, a {field.dataType.simpleString()}, cannot be looked up: Spark compares "
                "none; make it an array of structs, or a text with to_json(...)"
            )
        if needs_all:
            keys = keys.where(sf.col(KEY).getField(field.name).isNotNull())
    return keys.distinct()


def key_of(columns: Sequence[str]) -> Any:
    """The arguments in these columns, as the table's column of arguments."""
    literally = ("`" + column.replace("`", "``") + "`" for column in columns)
    return sf.struct(*(sf.col(name).alias(column) for name, column in zip(literally, columns, strict=True))).alias(KEY)


def waves_of(spark: SparkSession, keys: DataFrame, count: int, size: int) -> Iterator[DataFrame]:
    """The keys in waves of about `size`, each in as many partitions as it can keep busy."""
    waves = math.ceil(count / size)
    cores = slots_of(spark) or 1
    partitions = int(setting(spark, "spark.sql.shuffle.partitions") or 1)
    for number in range(waves):
        wave = keys if waves == 1 else keys.where(sf.pmod(sf.xxhash64(KEY), sf.lit(waves)) == number)
        yield wave.repartition(max(cores, min(partitions, count // waves // ROWS_PER_TASK)))


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
