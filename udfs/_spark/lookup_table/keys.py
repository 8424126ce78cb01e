"""The keys of a LookupTable, which are distinct arguments, and the names of its columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from ..._errors.exceptions import FunctionError, OptionError
from ..._policies.checks import unknown_name
from ..._text.safe import safe_repr
from .._compat import VariantType, setting

# The arguments are one struct: so their names do not clash with those of other columns, and NULL equals NULL in them.
KEY, RESULT, ERROR, CALLED_AT = "arguments", "result", "error", "called_at"
FUNCTION, VERSION, WAVE = "function", "version", "wave"
COLUMNS = (KEY, RESULT, ERROR, CALLED_AT, FUNCTION, VERSION, WAVE)


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


ROWS_PER_TASK = 1_000


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
    for field in arguments_of(keys).schema.fields:
        if _has_no_order(field.dataType):
            raise FunctionError(
                f"column {field.name!r}, a {field.dataType.simpleString()}, cannot be looked up: Spark compares "
                "none; make it an array of structs, or a text with to_json(...)"
            )
        if needs_all:
            keys = keys.where(sf.col(KEY).getField(field.name).isNotNull())
    return keys.distinct()


def _check_columns(df: DataFrame, columns: Sequence[str]) -> None:
    exactly = is_case_sensitive(df.sparkSession)
    for column in columns:
        found = [n for n in df.columns if n == column or (not exactly and n.casefold() == column.casefold())]
        if not found:
            raise FunctionError(unknown_name("column", column, df.columns))
        if len(found) > 1:
            raise FunctionError(
                f"column {column!r} is there {len(found)} times ({', '.join(found)}); rename all others"
            )


def key_of(columns: Sequence[str]) -> Any:
    """The arguments in these columns, as the one column of the table."""
    return sf.struct(*(sf.col(quoted(column)).alias(column) for column in columns)).alias(KEY)


def arguments_of(keys: DataFrame) -> DataFrame:
    """The keys with a column for each argument."""
    return keys.select(f"{KEY}.*")


def called_rows(df: DataFrame, columns: Sequence[str], outcome: str) -> DataFrame:
    """Rows for the table, from the arguments in these columns and the struct of value and error in `outcome`."""
    value, error = (sf.col(quoted(outcome)).getField(name) for name in ("value", "error"))
    return df.select(key_of(columns), value.alias(RESULT), error.alias(ERROR))


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
