"""Functions of pd.Series, pd.DataFrame and pa.Array: one call for many rows."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import datetime

import pandas as pd
import pyarrow as pa
import pytest

from asyncudf import async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark

BIG = 9007199254740993


@pytest.fixture(scope="module")
def numbers(spark):
    df = spark.sql(f"SELECT id, IF(id % 5 = 4, NULL, {BIG} + id) AS big, concat('s', id) AS s FROM range(0, 25, 1, 1)")
    df.createOrReplaceTempView("numbers")
    return df


EXPECTED = [None if i % 5 == 4 else BIG + i for i in range(25)]


@async_pandas_udf("bigint", batch_size=10)
async def series(big: pd.Series) -> pd.Series:
    await asyncio.sleep(0.001)
    assert isinstance(big, pd.Series)
    return big


@async_pandas_udf("bigint", batch_size=10)
async def arrays(big: pa.Array, id: pa.Array) -> pa.Array:
    assert isinstance(big, pa.Array)
    assert big.type == id.type == pa.int64()
    return big


@pytest.mark.promise("vectorized functions")
def test_large_integers_beside_nulls_stay_exact_through_series(numbers):
    assert [row[0] for row in numbers.select(series("big")).collect()] == EXPECTED
    assert [row.series for row in ordered_wait(numbers, series).collect()] == EXPECTED


@async_pandas_udf("price bigint, day date", batch_size=10)
async def quoted(id: pd.Series) -> pd.DataFrame:
    largest_first = id.sort_values(ascending=False)
    days = pd.to_datetime("2026-01-01") + pd.to_timedelta(largest_first, "D")
    return pd.DataFrame({"price": largest_first.where(largest_first % 5 != 4), "day": days})


def test_what_pandas_sorts_and_makes_floats_and_moments_of_is_taken_as_it_was(numbers):
    expected = [(None if i % 5 == 4 else i, datetime.date(2026, 1, 1 + i)) for i in range(25)]
    assert [tuple(row[0]) for row in numbers.select(quoted("id")).collect()] == expected
    found = ordered_wait(numbers, quoted).select("price", "day").collect()
    assert [tuple(row) for row in found] == expected


def test_large_integers_beside_nulls_stay_exact_through_arrow_arrays(numbers):
    assert [row[0] for row in numbers.select(arrays("big", "id")).collect()] == EXPECTED
    assert sorted(row.id for row in unordered_wait(numbers, arrays).where("arrays = big").collect()) == [
        i for i in range(25) if i % 5 != 4
    ]


def test_a_table_function_may_be_vectorized(spark, numbers):
    series.with_options(output_mode="unordered").register(spark, "series_of")
    found = spark.sql("SELECT id, series FROM series_of(TABLE(numbers), 'big')").collect()
    assert {row.id: row.series for row in found} == dict(enumerate(EXPECTED))


@pytest.mark.usefixtures("small_batches")
def test_a_call_takes_rows_of_several_small_arrow_batches(numbers, journal):
    @async_pandas_udf("int", batch_size=10)
    async def sizes(id: pd.Series) -> pd.Series:
        journal.write(len(id))
        return pd.Series([len(id)] * len(id))

    numbers.select(sizes("id")).collect()
    assert journal.lines == ["10", "10", "5"]


@pytest.mark.promise("vectorized functions", "types")
def test_all_types_reach_and_leave_a_series(spark):
    df = spark.sql("""
        SELECT CAST(1 AS tinyint) AS b, CAST(2 AS int) AS i, 1.5D AS d, CAST(1.50 AS decimal(9, 2)) AS m, true AS ok,
            'x' AS s, X'01' AS raw, DATE'2024-01-02' AS day, TIMESTAMP'2024-11-03 05:30:00.000001Z' AS at,
            TIMESTAMP_NTZ'2024-01-02 03:04:05' AS ntz, ARRAY(1, NULL) AS a, MAP('k', 1) AS mp
        FROM range(2)
    """)
    nulls = spark.range(1).selectExpr(*[f"CAST(NULL AS {spark_type}) AS {name}" for name, spark_type in df.dtypes])
    fields = ", ".join(f"{name} {spark_type}" for name, spark_type in df.dtypes)

    @async_pandas_udf(fields, batch_size=100)
    async def same(
        b: pd.Series, i: pd.Series, d: pd.Series, m: pd.Series, ok: pd.Series, s: pd.Series,
        raw: pd.Series, day: pd.Series, at: pd.Series, ntz: pd.Series, a: pd.Series, mp: pd.Series,
    ) -> pd.DataFrame:  # fmt: skip
        columns = [b, i, d, m, ok, s, raw, day, at, ntz, a, mp]
        return pd.DataFrame(dict(zip(df_names, columns, strict=True)))

    df_names = df.columns
    for rows in (df.coalesce(1), df.union(nulls).coalesce(1)):
        for row in rows.select("*", same(*df.columns).alias("out")).collect():
            assert tuple(row.out) == tuple(row)[:-1]
