"""Functions of pd.Series, pd.DataFrame and pa.Array: one call for many rows."""

import asyncio

import pandas as pd
import pytest

from asyncudf import async_pandas_udf
from tests.kit.doors import through

pytestmark = pytest.mark.spark

BIG = 9007199254740993


@async_pandas_udf("bigint", batch_size=10)
async def series(big: pd.Series) -> pd.Series:
    await asyncio.sleep(0.001)
    assert isinstance(big, pd.Series)
    return big


@pytest.mark.promise("vectorized functions")
@through("column", "table function", "ordered_wait")
@pytest.mark.usefixtures("small_batches")
def test_large_integers_beside_nulls_stay_exact(spark, door):
    """Also where a call takes rows of several Arrow batches."""
    df = spark.sql(f"SELECT id, IF(id % 5 = 4, NULL, {BIG} + id) AS big FROM range(0, 25, 1, 1)")
    found = {row.id: row.result for row in door(df, series, "big").collect()}
    assert found == {i: None if i % 5 == 4 else BIG + i for i in range(25)}


@pytest.mark.promise("vectorized functions", "types")
@pytest.mark.spark_only("all types as arguments of one column")
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
