"""ordered_wait and unordered_wait: a function's results beside the columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from .._functions.async_function import AsyncFunction
from .._policies.options import CallOptions
from .._policies.watermarks import WatermarkStrategy
from .stream import AsyncStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ("ordered_wait", "unordered_wait")


def ordered_wait(
    df: DataFrame,
    function: Callable[..., Any] | AsyncFunction,
    *columns: str,
    returnType: str | DataType | None = None,  # noqa: N803 - as in async_pandas_udf
    watermark: WatermarkStrategy | None = None,
    with_watermark_column: str | None = None,
    as_: str | None = None,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """`df` with the results of a function appended, in the order of the rows of each partition.

    A struct's fields become columns, anything else one column named after the function; `as_` chooses otherwise. So
    `on_error="capture"`, which makes a struct, gives the columns `value` and `error`. A function of 0..n
    results repeats or drops the row. The other columns are never turned into Python objects.

    Args:
        df: a batch or streaming DataFrame.
        function: an `async_pandas_udf`, an `AsyncFunction`, or a plain function.
        columns: the names of the columns that the function reads, in the order of its parameters. Without them
            the columns called like the parameters; an `AsyncFunction` then gets all columns.
        returnType: the type of a result, where `function` does not say it.
        watermark: where watermarks come from.
        with_watermark_column: adds the watermark in force at each row as a timestamp column of that name.
        as_: puts all of a result in one column of that name: a struct stays a struct, and under `on_error="capture"`
            it is the struct of value and error. So two functions with equal fields, or two captures, do not clash.
        options: as in `async_pandas_udf`; those given here win.

    Raises:
        FunctionError: unknown columns, name clashes, or a function that cannot take these columns.
        OptionError: an option that cannot work.
    """
    stream = AsyncStream(df).ordered_wait(
        function,
        *columns,
        returnType=returnType,
        watermark=watermark,
        with_watermark_column=with_watermark_column,
        as_=as_,
        **options,
    )
    return stream._alone()


def unordered_wait(
    df: DataFrame,
    function: Callable[..., Any] | AsyncFunction,
    *columns: str,
    returnType: str | DataType | None = None,  # noqa: N803 - as in async_pandas_udf
    watermark: WatermarkStrategy | None = None,
    with_watermark_column: str | None = None,
    as_: str | None = None,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """Like `ordered_wait`, but each row leaves when its call has finished, so that no row waits for a slower one.

    With `watermark=`, rows change places only between two watermarks.
    """
    stream = AsyncStream(df).unordered_wait(
        function,
        *columns,
        returnType=returnType,
        watermark=watermark,
        with_watermark_column=with_watermark_column,
        as_=as_,
        **options,
    )
    return stream._alone()
