"""The rows of a LookupTable: its keys, which results are the newest, which keys are missing, and the join.

They are at a path or in a table of the catalog, by Spark's own reader and writer.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._errors.exceptions import BudgetSpentError, FunctionError, OptionError
from .._functions.key_names import key_name
from .._functions.signature import FunctionSpec
from .._policies.checks import unknown_name
from .._policies.options import Options
from .._text.safe import safe_repr
from ._compat import VariantType, condition_of, setting
from .planner import plan_function
from .schemas import as_nullable, joined_schema, result_fields

WAVE = "wave"  # the column that tells the batches apart
FILE_FORMATS = ("parquet", "orc", "avro")  # folders of files, without transactions
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of columns
NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")
# Spark writes to a path literally, but reads it as a pattern. Escaping `*` would forbid colons in the path.
LITERAL_PATH = {"__globPaths__": "false"}
_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


@dataclasses.dataclass(frozen=True)
class Storage(abc.ABC):
    """Reads the rows of a table, and adds rows.

    Args:
        where: a path, or the name of a table.
        format: the format of a table that is created.
    """

    session: SparkSession
    where: str
    format: str

    @abc.abstractmethod
    def read(self) -> DataFrame | None:
        """All rows; None if nothing is at a path.

        Raises:
            FunctionError: they cannot be read, or there is no table of this name.
        """

    @abc.abstractmethod
    def make(self, schema: spark.StructType) -> None:
        """Create the table, if there must be one before rows are added.

        Raises:
            FunctionError: it cannot be created.
        """

    @abc.abstractmethod
    def append(self, rows: DataFrame) -> None:
        """Add a batch of rows: all of them or none."""


def storage_of(session: SparkSession, where: str, format: str) -> Storage:  # noqa: A002 - as DataFrameWriter calls it
    """The storage at a path, or under the name of a table in the catalog; does not call Spark yet.

    Raises:
        OptionError: `where` is neither, or the format cannot store results.
    """
    if format.lower() in NOT_FORMATS:
        raise OptionError(
            "format must be one that keeps the types of columns, such as 'parquet', 'orc' or 'delta', not "
            f"{safe_repr(format)}"
        )
    if _NAME.fullmatch(where):
        return _Named(session, where, format)
    if any(mark in where for mark in "/\\:"):
        return _AtPath(session, where, format)
    raise OptionError(
        f"table must be a path, such as './results', or the name of a table, with `backticks` around what is more than "
        f"letters, digits and underscores, not {safe_repr(where)}"
    )


def wave_name() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex}"


class _AtPath(Storage):
    # Two jobs that write into one folder would delete each other's temporary files, so each batch of a format without
    # transactions has a folder of its own, `wave=...`. A job that was killed leaves whole files, with whole rows, and
    # its `wave=.../_temporary`. That is never read, and we cannot see whether the job runs.

    @property
    def _is_files(self) -> bool:
        return self.format.lower() in FILE_FORMATS

    def read(self) -> DataFrame | None:
        options = LITERAL_PATH if self._is_files else {}
        try:
            rows = self.session.read.format(self.format).options(**options).load(self.where)
            rows.schema  # noqa: B018 - Spark Connect reads the schema only now
            return rows
        except Exception as error:  # for files that cannot be read it is an error of Java
            if error_condition(error) in NOTHING_THERE:
                return None
            raise FunctionError(
                f"{self.where} cannot be read as {self.format!r}: {_message(error)} Give the format= that the table "
                "was made with, or another path"
            ) from error

    def make(self, schema: spark.StructType) -> None:
        pass

    def append(self, rows: DataFrame) -> None:
        if self._is_files:
            rows.write.format(self.format).save(f"{self.where.rstrip('/')}/{WAVE}={wave_name()}")
        else:
            rows.withColumn(WAVE, sf.lit(wave_name())).write.format(self.format).mode("append").save(self.where)


class _Named(Storage):
    def read(self) -> DataFrame | None:
        try:
            self.session.catalog.refreshTable(self.where)  # another job may have added files
            rows = self.session.read.table(self.where)
            rows.schema  # noqa: B018 - Spark Connect looks for the table only now
            return rows
        except Exception as error:
            if error_condition(error) == "TABLE_OR_VIEW_NOT_FOUND":
                raise FunctionError(
                    f"there is no table {self.where} yet; update(df) makes it. Without Hive or another lasting catalog "
                    "Spark forgets a name at the end of the session: give a path then"
                ) from error
            raise FunctionError(f"{self.where} cannot be read: {_message(error)}") from error

    def make(self, schema: spark.StructType) -> None:
        catalog = self.session.catalog
        try:
            if not catalog.tableExists(self.where):
                catalog.createTable(self.where, source=self.format, schema=schema)
        except Exception as error:
            if error_condition(error) == "TABLE_OR_VIEW_ALREADY_EXISTS":  # another job was faster
                return
            hint = f"A path has a slash: './{self.where}'"
            if error_condition(error) == "LOCATION_ALREADY_EXISTS":
                hint = "If the catalog has forgotten the table, give the path of its files"
            raise FunctionError(f"the table {self.where} cannot be made: {_message(error)} {hint}") from error

    def append(self, rows: DataFrame) -> None:
        names = self.session.read.table(self.where).columns  # `insertInto` goes by position
        rows.withColumn(WAVE, sf.lit(wave_name())).select(*names).write.insertInto(self.where)


def error_condition(error: Exception) -> str:
    """Spark's name of the error; for an error of Java it is found in the text."""
    found = condition_of(error) if isinstance(error, PySparkException) else None
    if not found:
        named = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))
        found = named[1] if named else ""
    return found.split(".")[0]


def _message(error: Exception) -> str:
    """The first sentence or line of Spark's message, without the stack."""
    line = next((line for line in str(error).splitlines() if "[" in line), str(error).partition("\n")[0])
    return line[max(line.find("["), 0) :].partition(" SQLSTATE")[0]


# The arguments are one struct: so their names do not clash with those of other columns, and NULL equals NULL in them.
KEY, RESULT, ERROR, CALLED_AT = "arguments", "result", "error", "called_at"
FUNCTION, VERSION = "function", "version"
COLUMNS = (KEY, RESULT, ERROR, CALLED_AT, FUNCTION, VERSION, WAVE)
SUCCEEDED_AT = "succeeded_at"  # a column of `_newest`
ROWS_PER_TASK = 1_000
MAX_TTL = 1e10  # seconds: no row is older than 300 years, and Spark has no longer interval


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A name that differs from all others, ignoring case: for `key` Spark also finds `Key`, and drops both."""
    names = {name.casefold() for name in taken}
    while wanted.casefold() in names:
        wanted += "_"
    return wanted


def quoted(name: str) -> str:
    """The name in backticks, which Spark reads literally."""
    return "`" + name.replace("`", "``") + "`"


def is_case_sensitive(session: Any) -> bool:
    """Whether `City` and `city` are two columns for this session."""
    return setting(session, "spark.sql.caseSensitive").lower() == "true"


def check_ends(df: DataFrame) -> None:
    """Raises FunctionError for a streaming DataFrame, whose rows are not known yet."""
    if getattr(df, "isStreaming", False):
        raise FunctionError(
            "update takes a DataFrame that ends, and this one is streaming; update with each batch of it: "
            "df.writeStream.foreachBatch(lambda batch, number: table.update(batch))"
        )


def keys_of(df: DataFrame, columns: Sequence[str], *, needs_all: bool = False) -> DataFrame:
    """The distinct arguments in these columns; with `needs_all` only those without a NULL.

    Raises:
        OptionError: it is not a DataFrame.
        FunctionError: a column is missing, or there twice, or has a type that Spark cannot compare.
    """
    if not hasattr(type(df), "mapInArrow"):
        raise OptionError(f"a LookupTable takes a DataFrame, not {safe_repr(df)}")
    _check_columns(df, columns)
    keys = df.select(key_of(columns))
    for field in keys.select(f"{KEY}.*").schema.fields:
        if _has_no_order(field.dataType):
            raise FunctionError(
                f"column {field.name!r}, a {field.dataType.simpleString()}, cannot be looked up: Spark compares "
                "none; make it an array of structs, or a text with to_json(...)"
            )
        if needs_all:
            keys = keys.where(sf.col(KEY).getField(field.name).isNotNull())
    return keys.distinct()


def _check_columns(df: DataFrame, columns: Sequence[str]) -> None:
    same = str if is_case_sensitive(df.sparkSession) else str.casefold
    for column in columns:
        found = [name for name in df.columns if same(name) == same(column)]
        if not found:
            raise FunctionError(unknown_name("column", column, df.columns))
        if len(found) > 1:
            raise FunctionError(
                f"column {column!r} is there {len(found)} times ({', '.join(found)}); rename all others"
            )


def key_of(columns: Sequence[str]) -> Any:
    """The arguments in these columns, as the one column of the table."""
    return sf.struct(*(sf.col(quoted(column)).alias(column) for column in columns)).alias(KEY)


def _has_no_order(data_type: spark.DataType) -> bool:
    match data_type:
        case spark.ArrayType():
            return _has_no_order(data_type.elementType)
        case spark.StructType():
            return any(_has_no_order(field.dataType) for field in data_type.fields)
    return isinstance(data_type, (spark.MapType, VariantType))


def key_batches(spark: SparkSession, keys: DataFrame, count: int, size: int) -> Iterator[DataFrame]:
    """The keys in batches of about `size`, each in as many partitions as it can keep busy."""
    batches = math.ceil(count / size)
    try:
        cores = int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        cores = 1
    partitions = int(setting(spark, "spark.sql.shuffle.partitions") or 1)
    tasks = max(cores, min(partitions, count // batches // ROWS_PER_TASK))
    for number in range(batches):
        batch = keys if batches == 1 else keys.where(sf.pmod(sf.xxhash64(KEY), sf.lit(batches)) == number)
        yield batch.repartition(tasks)


def lookup_table(
    session: SparkSession,
    where: str,
    format: str,  # noqa: A002 - as DataFrameWriter calls it
    spec: FunctionSpec,
    options: Options,
    returns: Any,
    columns: Sequence[str],
) -> ResultTable:
    """The table of a function's results; does not call Spark yet.

    Args:
        where: a path, or the name of a table in the catalog.

    Raises:
        FunctionError: the function gives 0..n results, or two columns of the table would have one name.
        OptionError: the table cannot be stored there, or in this format.
    """
    if spec.many_results:
        raise FunctionError(
            f"{spec.name} gives 0..n results: a LookupTable keeps one for each arguments; make it a list"
        )
    storage = storage_of(session, where, format)
    plan, captured = plan_function(spec, options, returns)
    assert isinstance(captured, spark.StructType)
    result, error = captured["value"].dataType, captured["error"].dataType
    fields = result_fields(plan, result)
    _check_names([*columns, *(field.name for field in fields), ERROR, CALLED_AT], spec.name)
    name, version = key_name(spec.function), options.version or "1"
    return ResultTable(storage, name, version, tuple(columns), result, error, tuple(fields))


def _check_names(names: Sequence[str], who: str) -> None:
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > 1:
            raise FunctionError(
                f"the LookupTable of {who} would have two columns called {name!r}: it shows the arguments, the result, "
                f"{ERROR!r} and {CALLED_AT!r} beside each other; rename the column, or that of the result"
            )


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A table of results; rows are added and never changed.

    Args:
        function, version: only rows of this function and version count.
        columns: the names of the arguments.
        result, error: the types of these columns.
        fields: the columns of a result in `joined` and `shown`.
    """

    storage: Storage
    function: str
    version: str
    columns: tuple[str, ...]
    result: spark.DataType
    error: spark.DataType
    fields: tuple[spark.StructField, ...]

    def read(self) -> DataFrame | None:
        """All rows; None if there is no table.

        Raises:
            FunctionError: it is not a table of a LookupTable, or its results have another type.
        """
        rows = self.storage.read()
        if rows is None:
            return None
        found = {field.name: field.dataType for field in rows.schema.fields}
        if missing := [name for name in COLUMNS if name not in found]:
            raise FunctionError(
                f"{self.storage.where} is not a table of a LookupTable: it has no column {missing[0]!r}"
            )
        if as_nullable(found[RESULT]) != as_nullable(self.result):
            raise FunctionError(
                f"{self.storage.where} has results of the type {found[RESULT].simpleString()}, and the function gives "
                f"{self.result.simpleString()}; take another table for it"
            )
        return rows

    def _named_as_here(self, rows: DataFrame) -> DataFrame:
        """The rows with the names of `columns`, where those in the table differ in case only."""
        kept = rows.schema[KEY].dataType
        assert isinstance(kept, spark.StructType)
        same = [name.casefold() for name in kept.names] == [name.casefold() for name in self.columns]
        if not same or is_case_sensitive(self.storage.session):
            return rows
        named = zip(self.columns, kept.fields, strict=True)
        return rows.withColumn(
            KEY, sf.col(KEY).cast(spark.StructType([spark.StructField(name, field.dataType) for name, field in named]))
        )

    def _newest(self, rows: DataFrame) -> DataFrame:
        """A row for each key: the newest result, and the error of the last call if it failed."""
        succeeded_at = sf.when(sf.col(ERROR).isNull(), sf.col(CALLED_AT))
        is_ours = (sf.col(FUNCTION) == sf.lit(self.function)) & (sf.col(VERSION) == sf.lit(self.version))
        return (
            self._named_as_here(rows.where(is_ours))
            .groupBy(KEY)
            .agg(
                sf.max_by(RESULT, succeeded_at).alias(RESULT),
                sf.max_by(ERROR, CALLED_AT).alias(ERROR),
                sf.max(CALLED_AT).alias(CALLED_AT),
                sf.max(succeeded_at).alias(SUCCEEDED_AT),
            )
        )

    def missing(self, keys: DataFrame, ttl: float | None, error_ttl: float | None) -> DataFrame:
        """The keys that have to be called.

        Args:
            ttl: seconds for which a result counts; None: forever.
            error_ttl: seconds for which an error counts; None: not at all.

        Raises:
            FunctionError: the arguments in the table have other types, it is not a table of a LookupTable, or it cannot
                be made.
        """
        self.storage.make(self._schema(keys.schema[KEY].dataType))
        rows = self.read()
        if rows is None:
            return keys
        known = self._newest(rows)
        self._check_arguments(keys.schema[KEY].dataType, known)
        counts = sf.col(SUCCEEDED_AT).isNotNull() if ttl is None else sf.col(SUCCEEDED_AT) > _before(ttl)
        if error_ttl is not None:
            counts = counts | (sf.col(ERROR).isNotNull() & (sf.col(CALLED_AT) > _before(error_ttl)))
        return keys.join(known.where(sf.coalesce(counts, sf.lit(False))).select(KEY), on=KEY, how="left_anti")

    def joined(self, df: DataFrame, name: str, how: str) -> DataFrame:
        """A DataFrame with the results for its arguments beside its own columns.

        Args:
            name: the function's name, for messages.

        Raises:
            FunctionError: a column is missing, or its type differs from that in the table, or a column of the result
                has its name.
        """
        keys = keys_of(df, self.columns)
        joined_schema(df.schema.fields, self.fields, name)
        rows = self.read()
        if rows is None:
            nothing = (sf.lit(None).cast(field.dataType).alias(field.name) for field in self.fields)
            return df.select("*", *nothing) if how == "left" else df.select("*", *nothing).where(sf.lit(False))
        known = self._newest(rows)
        self._check_arguments(keys.schema[KEY].dataType, known)
        key = free_name("key", [*df.columns, *(field.name for field in self.fields)])
        found = known.where(sf.col(SUCCEEDED_AT).isNotNull()).select(sf.col(KEY).alias(key), *self._as_columns())
        return df.withColumn(key, key_of(self.columns)).join(found, on=key, how=how).drop(key)

    def shown(self) -> DataFrame:
        """A row for each key: its arguments, the result, the error of the last call, and the time of that call.

        Raises:
            FunctionError: there is no table yet, or it is not a table of a LookupTable.
        """
        rows = self.read()
        if rows is None:
            raise FunctionError(f"there is no table {self.storage.where} yet; update(df) makes it")
        return self._newest(rows).select(f"{KEY}.*", *self._as_columns(), ERROR, CALLED_AT)

    def _as_columns(self) -> Iterator[Any]:
        """The columns of a result: the fields of a struct, or the result itself."""
        if not isinstance(self.result, spark.StructType):
            yield sf.col(RESULT).alias(self.fields[0].name)
            return
        yield from (sf.col(RESULT).getField(field.name).alias(field.name) for field in self.fields)

    def _check_arguments(self, given: spark.DataType, known: DataFrame) -> None:
        kept = known.schema[KEY].dataType
        if as_nullable(given) != as_nullable(kept):
            raise FunctionError(
                f"{self.storage.where} has arguments of the type {kept.simpleString()}, not {given.simpleString()}; "
                "cast the columns, or take another table"
            )

    def _schema(self, arguments: spark.DataType) -> spark.StructType:
        types = {KEY: arguments, RESULT: self.result, ERROR: self.error, CALLED_AT: spark.TimestampType()}
        return spark.StructType([spark.StructField(n, types.get(n, spark.StringType())) for n in COLUMNS])

    def append(self, df: DataFrame, outcome: str) -> dict[str, int]:
        """Add a batch: arguments, and the struct of value and error in `outcome`.

        Returns how many were called, failed, or are unpaid: these are left out, or they would count as failed until
        their `error_ttl` is over.
        """
        seen = Observation()
        value, error = (sf.col(quoted(outcome)).getField(name) for name in ("value", "error"))
        rows = df.select(key_of(self.columns), value.alias(RESULT), error.alias(ERROR))
        unpaid = sf.col(ERROR).getField("type").eqNullSafe(BudgetSpentError.__name__)
        counts = {"rows": sf.lit(1), "errors": sf.col(ERROR), "unpaid": sf.when(unpaid, 1)}
        self.storage.append(
            rows.observe(seen, *(sf.count(column).alias(name) for name, column in counts.items()))
            .where(~unpaid)
            .select(
                "*",
                sf.current_timestamp().alias(CALLED_AT),
                sf.lit(self.function).alias(FUNCTION),
                sf.lit(self.version).alias(VERSION),
            )
        )
        rest = seen.get["unpaid"]
        return {"called": seen.get["rows"] - rest, "failed": seen.get["errors"] - rest, "unpaid": rest}


def _before(seconds: float) -> Any:
    return sf.current_timestamp() - sf.make_dt_interval(secs=sf.lit(min(seconds, MAX_TTL)).cast("decimal(18,6)"))
