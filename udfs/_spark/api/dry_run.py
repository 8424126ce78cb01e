"""dry_run: how many calls a function would make for the rows of a DataFrame, without making them."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, get_args

from pyspark.sql import functions as sf

from asyncudf.queues._public import public

from ..._errors.checks import is_number, optional, seconds
from ..._errors.exceptions import OptionError
from ..._errors.figures import amount_, count, things
from ..._errors.figures import seconds as in_words
from ..._errors.safe import one_line, safe_repr
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OnNullInput, Options, limits_of, shows_options
from ..._functions.signature import group_rows
from .._compat import slots_of
from ..schemas import arguments, check_frame, check_source, column_names, is_comparable
from .decorator import udf_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

Counting = Literal["exact", "approximate"]


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class DryRun:
    """The calls that a function would make; `print` shows them as text.

    Attributes:
        function: the function's name.
        columns: the names of the columns that it reads.
        rows: how many rows the DataFrame has.
        distinct: how many distinct arguments the called rows have; None if Spark cannot compare them, as maps.
        calls: how many calls to expect: one for each row, or with a `store=` one for each distinct argument, as if the
            store were empty and all tasks shared it; for a vectorized function as many as fill its batches.
        calls_at_most: one for each row, without rows that make no call (`on_null_input`).
        tasks: how many tasks run at a time. Over Spark Connect, which does not tell the cores: the partitions.
        capacity: how many calls are in flight at a time, in all tasks.
        seconds: how long `calls` take if the tasks have equal shares; None without `latency=`. It includes each
            `rate_limit=` whose `cost` is not a function.
        cost: what `calls` cost; None without `price=`.
    """

    function: str
    columns: tuple[str, ...]
    rows: int
    distinct: int | None
    calls: int
    calls_at_most: int
    tasks: int
    capacity: int
    seconds: float | None
    cost: float | None

    def __str__(self) -> str:
        most = "" if self.calls == self.calls_at_most else f" to expect, at most {count(self.calls_at_most)}"
        name, columns = one_line(self.function), ", ".join(map(one_line, self.columns))
        lines = [f"{name}({columns}): {things(self.calls, 'call')}{most}; nothing was called"]
        silent = self.rows - self.calls_at_most
        without = f", of which {count(silent)} with a NULL make no call" if silent else ""
        lines.append(f"  rows      {count(self.rows)}{without}")
        if self.distinct is not None:
            lines.append(f"  arguments {count(self.distinct)} distinct")
        if self.seconds is not None:
            lines.append(f"  time      {in_words(self.seconds)}, {things(self.capacity, 'call')} in flight")
        if self.cost is not None:
            lines.append(f"  cost      {amount_(self.cost)}")
        return "\n".join(lines)


@public("asyncudf")
@shows_options(CallOptions)
def dry_run(
    df: DataFrame,
    function: Callable[..., Any] | AsyncFunction | None = None,
    *columns: str | Column,
    latency: float | timedelta | None = None,
    price: float | None = None,
    counting: Counting = "exact",
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
    **options: Unpack[CallOptions],
) -> DryRun:
    """How many calls a function would make for the rows of a DataFrame; the function is not called.

    One query counts the rows of `df` and their distinct arguments, also over Spark Connect. It runs what makes these
    arguments: if they are results of another async function, `persist()` the DataFrame first, or that function is
    called for the count as well.

    The figures are those of one evaluation of all rows, whose calls succeed at once. Retries, and tasks that run again,
    come on top; so does a query that evaluates the function more than once for a row.

    Args:
        df: the rows before the function is applied; not streaming.
        function, columns, returnType, options: as in `ordered_wait`.
        latency: seconds that a call takes, to say how long the calls take.
        price: the price of a call, in any currency.
        counting: "exact"; "approximate" counts distinct arguments with an error of about 5%, which is faster.

    Returns:
        Plain data; `print` shows it as text.

    Raises:
        OptionError: a streaming DataFrame, no function, or a value that cannot work.
        FunctionError: unknown columns, or a function that cannot take these.

    >>> print(dry_run(flights, locate, "code", latency=0.2, price=0.001))  # doctest: +SKIP
    locate(code): 10,000 calls; nothing was called
      rows      10,000
      arguments 353 distinct
      time      10 s, 200 calls in flight
      cost      10
    """
    waits = optional(seconds)(latency, "latency")
    if price is not None and not (is_number(price) and price >= 0):
        raise OptionError(f"price must be a number of at least 0, what one call costs, not {safe_repr(price)}")
    if counting not in get_args(Counting):
        raise OptionError(f"counting must be one of {str(get_args(Counting))[1:-1]}, not {safe_repr(counting)}")
    check_frame(df, "dry_run")
    if function is None:
        raise OptionError(
            "dry_run takes the DataFrame before the function is applied, the function, and its columns: "
            "dry_run(df, function, 'city')"
        )
    udf = udf_of(function, returnType, options)
    if df.isStreaming:
        raise OptionError("dry_run counts the rows of a DataFrame that ends, and this one is streaming")
    spec, checked = udf.spec, udf.options
    skips_nulls = checked.on_null_input is OnNullInput.NULL
    check_source(df.schema, "the DataFrame")
    positions = arguments(spec, df.schema.fields, column_names(columns, df.schema, df))[1]
    found = count_rows(df, positions, skips_nulls=skips_nulls, approximate=counting == "approximate")
    distinct = None if checked.store is None else found.distinct
    calls = math.ceil((found.called if distinct is None else distinct) / group_rows(spec, checked))
    in_flight = min(checked.slots * found.tasks, checked.calls_of_job)
    return DryRun(
        function=spec.name,
        columns=tuple(df.columns[position] for position in positions),
        rows=found.rows,
        distinct=found.distinct,
        calls=calls,
        calls_at_most=found.called,
        tasks=found.tasks,
        capacity=int(in_flight),
        seconds=None if waits is None else _seconds(calls, waits, in_flight, found.tasks, checked),
        cost=None if price is None else calls * float(price),
    )


def _seconds(calls: int, latency: float, capacity: float, tasks: int, options: Options) -> float:
    """How long the calls take: as long as `capacity` or a limit makes them, whichever is longer."""
    begun = max((limit.seconds_for(calls, tasks) for limit, _ in limits_of(options)), default=0.0)
    return max(max(1.0, calls / capacity) * latency, begun + latency) if calls else 0.0


class RowCounts(NamedTuple):
    rows: int
    called: int  # rows that make a call
    distinct: int | None  # arguments of these; None if Spark cannot compare them
    tasks: int  # at a time; over Spark Connect, which does not tell the cores, one for each partition


def count_rows(df: DataFrame, positions: Sequence[int], *, skips_nulls: bool, approximate: bool = False) -> RowCounts:
    """Count in one query, which reads only the function's columns: those at these positions.

    `approximate`: distinct arguments with an error of about 5%, and without a shuffle of all of them.
    """
    fields = df.schema.fields
    read = [sf.col(str(position)) for position in positions]
    key, distinct = sf.struct(*read), sf.lit(None)
    if skips_nulls:
        key = sf.when(functools.reduce(operator.and_, (column.isNotNull() for column in read)), key)
    if all(is_comparable(fields[position].dataType) for position in positions):
        distinct = (sf.approx_count_distinct if approximate else sf.count_distinct)("key")
    numbered = df.toDF(*map(str, range(len(fields))))  # equal names, and names with dots, are no matter then
    # Sail makes all columns beside the number of a partition, those too that nobody reads.
    numbered = numbered.select(*dict.fromkeys(map(str, positions)))
    keys = numbered.select(key.alias("key"), sf.spark_partition_id().alias("partition"))
    counts = keys.agg(sf.count(sf.lit(1)), sf.count("key"), distinct, sf.max("partition"))
    rows, called, known, last = counts.collect()[0]
    partitions = 1 if last is None else last + 1
    return RowCounts(rows, called, known, min(partitions, slots_of(df.sparkSession) or partitions))
