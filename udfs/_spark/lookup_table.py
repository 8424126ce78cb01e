"""The rows of a LookupTable: which results are the newest, which arguments are missing, and the join.

They are at a path or in a table of the catalog, by Spark's own reader and writer.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._errors.exceptions import BudgetSpentError, FunctionError, OptionError
from .._errors.safe import safe_repr
from .._functions.key_names import key_name
from .._functions.options import Options
from .._functions.signature import FunctionSpec
from ._compat import condition_of, setting
from .planner import plan_function
from .row_counts import observed
from .schemas import as_nullable, column_position, is_comparable, joined_schema, result_fields

# The arguments are one struct: so their names do not clash with those of other columns, and NULL equals NULL in them.
KEY, RESULT, ERROR, CALLED_AT = "arguments", "result", "error", "called_at"
FUNCTION, VERSION = "function", "version"
WAVE = "wave"  # tells the batches apart
COLUMNS = (KEY, RESULT, ERROR, CALLED_AT, FUNCTION, VERSION, WAVE)
SUCCEEDED_AT = "succeeded_at"  # a column of `_newest`
IS_KNOWN = "is_known"  # a column of `looked_up`
OUTCOME, JOIN_KEY = "asyncudf outcome", "asyncudf key"  # for a moment beside the user's columns
FILE_FORMATS = ("parquet", "orc", "avro")  # folders of files, without transactions
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of columns
NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")
# Spark writes to a path literally, but reads it as a pattern. Escaping `*` would forbid colons in the path.
LITERAL_PATH = {"__globPaths__": "false"}
ROWS_PER_TASK = 1_000
MAX_TTL = 1e10  # seconds: no row is older than 300 years, and Spark has no longer interval


def wave_name() -> str:
    """A name for a batch of rows: later ones come later, and no two are the same."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex}"


def is_missing(error: Exception) -> bool:
    """Whether Spark says that nothing is at a path; an error of Java says it in its text."""
    found = condition_of(error) if isinstance(error, PySparkException) else None
    named = found or next(iter(re.findall(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))), "")
    return named.partition(".")[0] in NOTHING_THERE


def keys_of(df: DataFrame, columns: Sequence[str], *, needs_all: bool = False) -> DataFrame:
    """The distinct arguments in these columns; with `needs_all` only those without a NULL."""
    if not hasattr(type(df), "mapInArrow"):
        raise OptionError(f"a LookupTable takes a DataFrame, not {safe_repr(df)}")
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
    """The arguments in these columns, as the one column of the table."""
    literally = ("`" + column.replace("`", "``") + "`" for column in columns)
    return sf.struct(*(sf.col(name).alias(column) for name, column in zip(literally, columns, strict=True))).alias(KEY)


def key_batches(spark: SparkSession, keys: DataFrame, count: int, size: int) -> Iterator[DataFrame]:
    """The keys in batches of about `size`, each in as many partitions as it can keep busy."""
    batches = math.ceil(count / size)
    cores = spark.sparkContext.defaultParallelism if hasattr(spark, "_jsparkSession") else 1
    partitions = int(setting(spark, "spark.sql.shuffle.partitions") or 1)
    for number in range(batches):
        batch = keys if batches == 1 else keys.where(sf.pmod(sf.xxhash64(KEY), sf.lit(batches)) == number)
        yield batch.repartition(max(cores, min(partitions, count // batches // ROWS_PER_TASK)))


class ResultTable:
    """A table of a function's results; rows are added and never changed.

    Args:
        where: a path, which has a slash, a backslash or a colon; or the name of a table in the catalog.
        format: the format of a table that is created.
    """

    # _fields: the columns of a result in `joined` and `shown`

    def __init__(
        self,
        session: SparkSession,
        where: str,
        format: str,  # noqa: A002 - as DataFrameWriter calls it
        spec: FunctionSpec,
        options: Options,
        returns: Any,
        columns: tuple[str, ...],
    ) -> None:
        if format.lower() in NOT_FORMATS:
            raise OptionError(
                "format must be one that keeps the types of columns, such as 'parquet', 'orc' or 'delta', not "
                f"{safe_repr(format)}"
            )
        if spec.many_results:
            raise FunctionError(
                f"{spec.name} gives 0..n results: a LookupTable keeps one for each arguments; make it a list"
            )
        self._session, self.where, self._format = session, where, format
        self._is_path = any(mark in where for mark in "/\\:")
        self._is_files = self._is_path and format.lower() in FILE_FORMATS
        self._name, self._columns = spec.name, columns
        self._function, self._version = key_name(spec.function), options.version or "1"
        plan, captured = plan_function(spec, options, returns)
        assert isinstance(captured, spark.StructType)
        self._result, self._error = captured["value"].dataType, captured["error"].dataType
        self._fields = result_fields(plan, self._result)
        others = [spark.StructField(name, spark.StringType()) for name in (*columns, ERROR, CALLED_AT)]
        joined_schema([], [*others, *self._fields], f"the LookupTable of {spec.name}")  # `shown` has all of these

    def _make(self, arguments: spark.DataType) -> None:
        """Create the table of the catalog; so a mistake is seen before anything is called."""
        catalog = self._session.catalog
        if self._is_path or catalog.tableExists(self.where):
            return
        try:
            catalog.createTable(self.where, source=self._format, schema=self._schema(arguments))
        except Exception:  # of Spark or of Java
            if not catalog.tableExists(self.where):  # else another job was faster
                raise

    def _schema(self, arguments: spark.DataType) -> spark.StructType:
        types = {KEY: arguments, RESULT: self._result, ERROR: self._error, CALLED_AT: spark.TimestampType()}
        return spark.StructType([spark.StructField(name, types.get(name, spark.StringType())) for name in COLUMNS])

    def _read(self, arguments: spark.DataType | None) -> DataFrame:
        """All rows: none if nothing is at the path."""
        if not self._is_path:
            self._session.catalog.refreshTable(self.where)  # another job may have added files
            return self._session.read.table(self.where)
        options = LITERAL_PATH if self._is_files else {}
        try:
            rows = self._session.read.format(self._format).options(**options).load(self.where)
            rows.schema  # noqa: B018 - Spark Connect reads the schema only now
        except PySparkException as error:
            if not is_missing(error):
                raise
            if arguments is None:
                raise FunctionError(f"there is no table {self.where} yet; update(df) makes it") from None
            return self._session.createDataFrame([], self._schema(arguments))
        return rows

    def _newest(self, arguments: spark.DataType | None = None) -> DataFrame:
        """A row for each key: the newest result, and the error of the last call if it failed.

        `arguments`: the type that they must have; None where there has to be a table.
        """
        rows = self._read(arguments)
        found = {field.name: field.dataType for field in rows.schema.fields}
        if missing := [name for name in COLUMNS if name not in found]:
            raise FunctionError(f"{self.where} is not a table of a LookupTable: it has no column {missing[0]!r}")
        if as_nullable(found[RESULT]) != as_nullable(self._result):
            raise FunctionError(
                f"{self.where} has results of the type {found[RESULT].simpleString()}, and the function gives "
                f"{self._result.simpleString()}; take another table for it"
            )
        kept = found[KEY]
        assert isinstance(kept, spark.StructType)
        if [name.casefold() for name in kept.names] == [name.casefold() for name in self._columns]:
            named = zip(self._columns, kept.fields, strict=True)
            kept = spark.StructType([spark.StructField(name, field.dataType) for name, field in named])
        if arguments is not None and as_nullable(arguments) != as_nullable(kept):
            raise FunctionError(
                f"{self.where} has arguments of the type {kept.simpleString()}, not {arguments.simpleString()}; "
                "cast the columns, or take another table"
            )
        succeeded_at = sf.when(sf.col(ERROR).isNull(), sf.col(CALLED_AT))
        is_ours = (sf.col(FUNCTION) == sf.lit(self._function)) & (sf.col(VERSION) == sf.lit(self._version))
        return (
            rows.where(is_ours)
            .withColumn(KEY, sf.col(KEY).cast(kept))
            .groupBy(KEY)
            .agg(
                sf.max_by(RESULT, succeeded_at).alias(RESULT),
                sf.max_by(ERROR, CALLED_AT).alias(ERROR),
                sf.max(CALLED_AT).alias(CALLED_AT),
                sf.max(succeeded_at).alias(SUCCEEDED_AT),
            )
        )

    def looked_up(self, keys: DataFrame, ttl: float | None, error_ttl: float | None) -> DataFrame:
        """The keys, and whether each `IS_KNOWN`: has a result or an error that counts.

        They count for so many seconds; with None a result always does, and an error never.
        """
        self._make(keys.schema[KEY].dataType)
        known = self._newest(keys.schema[KEY].dataType)
        counts = sf.col(SUCCEEDED_AT).isNotNull() if ttl is None else sf.col(SUCCEEDED_AT) > _before(ttl)
        if error_ttl is not None:
            counts = counts | (sf.col(ERROR).isNotNull() & (sf.col(CALLED_AT) > _before(error_ttl)))
        found = keys.join(known.select(KEY, counts.alias(IS_KNOWN)), on=KEY, how="left")
        return found.select(KEY, sf.coalesce(IS_KNOWN, sf.lit(False)).alias(IS_KNOWN))

    def joined(self, df: DataFrame, how: str) -> DataFrame:
        """A DataFrame with the results for its arguments beside its own columns."""
        keys = keys_of(df, self._columns)
        joined_schema(df.schema.fields, self._fields, self._name)
        known = self._newest(keys.schema[KEY].dataType)
        found = known.where(sf.col(SUCCEEDED_AT).isNotNull()).select(sf.col(KEY).alias(JOIN_KEY), self._as_columns)
        return df.withColumn(JOIN_KEY, key_of(self._columns)).join(found, on=JOIN_KEY, how=how).drop(JOIN_KEY)

    def shown(self) -> DataFrame:
        """A row for each key: its arguments, the result, the error of the last call, and the time of that call."""
        return self._newest().select(f"{KEY}.*", self._as_columns, ERROR, CALLED_AT)

    @property
    def _as_columns(self) -> Any:
        """The columns of a result: the fields of a struct, or the result itself."""
        is_struct = isinstance(self._result, spark.StructType)
        return sf.col(f"{RESULT}.*") if is_struct else sf.col(RESULT).alias(self._fields[0].name)

    def append(self, df: DataFrame) -> dict[str, int]:
        """Add a batch, all of it or nothing: arguments, and the struct of value and error in `OUTCOME`.

        Returns how many were called, failed, or are unpaid: these are left out, or they would count as failed until
        their `error_ttl` is over.
        """
        seen, wave = Observation(), wave_name()
        value, error = (sf.col(OUTCOME).getField(name) for name in ("value", "error"))
        rows = df.select(key_of(self._columns), value.alias(RESULT), error.alias(ERROR))
        unpaid = sf.col(ERROR).getField("type").eqNullSafe(BudgetSpentError.__name__)
        counts = {"rows": sf.lit(1), "errors": sf.col(ERROR), "unpaid": sf.when(unpaid, 1)}
        texts = {FUNCTION: self._function, VERSION: self._version, WAVE: wave}
        rows = (
            rows.observe(seen, *(sf.count(column).alias(name) for name, column in counts.items()))
            .where(~unpaid)
            .select("*", sf.current_timestamp().alias(CALLED_AT), *(sf.lit(t).alias(n) for n, t in texts.items()))
        )
        if self._is_files:
            # Two jobs that write into one folder would delete each other's temporary files, so each batch has its own.
            # A job that was killed leaves whole files with whole rows, and a `_temporary` that nobody reads.
            rows.drop(WAVE).write.format(self._format).save(f"{self.where.rstrip('/')}/{WAVE}={wave}")
        elif self._is_path:
            rows.write.format(self._format).mode("append").save(self.where)
        else:  # by position
            rows.select(*self._session.read.table(self.where).columns).write.insertInto(self.where)
        told = observed(seen)
        rest = told["unpaid"]
        return {"called": told["rows"] - rest, "failed": told["errors"] - rest, "unpaid": rest}


def _before(seconds: float) -> Any:
    return sf.current_timestamp() - sf.make_dt_interval(secs=sf.lit(min(seconds, MAX_TTL)).cast("decimal(18,6)"))
