"""What must not happen while calls are in flight."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import gc
import sys

import pytest

from asyncudf import async_pandas_udf, ordered_wait

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("entry_point", ["column", "operator"])
def test_pandas_is_there_before_the_first_call(spark, entry_point):
    """pyarrow imports it with its first array: a quarter of a second in which every call would stand still."""

    @async_pandas_udf
    async def is_there(id: int) -> bool:
        return "pandas" in sys.modules

    df = spark.range(1)
    found = df.select(is_there("id").alias("is_there")) if entry_point == "column" else ordered_wait(df, is_there)
    assert found.first().is_there


@pytest.mark.parametrize("entry_point", ["column", "operator"])
def test_the_collector_leaves_alone_what_is_imported(spark, entry_point):
    """A full collection looks at all of it, which took a third of the time of calls that return at once."""

    @async_pandas_udf
    async def frozen(id: int) -> int:
        return gc.get_freeze_count()

    df = spark.range(1)
    found = df.select(frozen("id").alias("frozen")) if entry_point == "column" else ordered_wait(df, frozen)
    assert found.first().frozen > 10_000
