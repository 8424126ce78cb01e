"""What must not happen while calls are in flight."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import sys

import pytest

from asyncudf import async_pandas_udf, ordered_wait

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("door", ["column", "operator"])
def test_pandas_is_there_before_the_first_call(spark, door):
    """pyarrow imports it with its first array: a quarter of a second in which every call would stand still."""

    @async_pandas_udf
    async def is_there(id: int) -> bool:
        return "pandas" in sys.modules

    df = spark.range(1)
    found = df.select(is_there("id").alias("is_there")) if door == "column" else ordered_wait(df, is_there)
    assert found.first().is_there
