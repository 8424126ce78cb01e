"""Values that are awkward on their way through a SQL table function: maps with odd keys, moments out of time."""

# ruff: noqa: A002 - parameters are called like the columns

import datetime
from typing import Any

import pytest

from asyncudf import async_pandas_udf

pytestmark = pytest.mark.spark

KEYS = "SELECT 1 AS id, map(named_struct('a', 1, 'b', timestamp'2026-01-01 00:00:00'), 'x') AS m"
EARLY = datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14)))


@async_pandas_udf("int", output_mode="unordered")
async def same(id: int) -> Any:
    return id


@async_pandas_udf("int", output_mode="unordered")
async def size(m: Any) -> Any:
    ((key, value),) = m.items()
    return len(key) + len(value)


@async_pandas_udf("map<struct<a: int, b: string>, int>", output_mode="unordered")
async def keyed(id: int) -> Any:
    return {(1, "x"): id}


@async_pandas_udf("timestamp", output_mode="unordered")
async def early(id: int) -> Any:
    return EARLY


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    spark.sql(KEYS).createOrReplaceTempView("keys")
    for function in (same, size, keyed, early):
        function.register(spark, f"{function.__name__}_values")


def test_a_map_with_structs_as_keys_passes_unread(spark):
    kept = spark.sql("SELECT to_json(map_entries(m)), same FROM same_values(TABLE(keys), 'id')")
    unread = spark.sql("SELECT to_json(map_entries(m)), id FROM keys")
    assert kept.collect() == unread.collect()


def test_a_map_with_structs_as_keys_is_read_as_a_dict_of_tuples(spark):
    assert [row.size for row in spark.sql("SELECT size FROM size_values(TABLE(keys), 'm')").collect()] == [3]


def test_a_map_with_structs_as_keys_can_be_a_result(spark):
    (row,) = spark.sql("SELECT map_entries(keyed) AS entries FROM keyed_values(TABLE(keys), 'id')").collect()
    ((key, value),) = row.entries
    assert (tuple(key), value) == ((1, "x"), 1)


def test_a_moment_that_python_cannot_read_back_names_the_function(spark, spark_error):
    query = spark.sql("SELECT early FROM early_values(TABLE(keys), 'id')")
    text = spark_error(query)
    assert "asyncudf.ResultError: early failed in attempt 1" in text
    assert "in UTC it is not in the years 1 to 9999" in text
    with pytest.raises(Exception, match="early failed") as caught:
        query.collect()
    assert "/_arrow/" not in str(caught.value), "the library's own frames help nobody"
