"""A handler of batches as PySpark's own iterator UDF, which is how Unity Catalog calls one."""

import asyncio
from collections.abc import Iterator

import pandas as pd
import pytest
from pyspark.sql.functions import pandas_udf

from asyncudf import batch_handler

pytestmark = pytest.mark.spark


async def weather(city: str, day: int | None):
    await asyncio.sleep(0.001)
    return {"sky": f"{city} on {day}", "number": None if day is None else 2**53 + day}


@pytest.mark.promise("batch handler")
@pytest.mark.usefixtures("small_batches")
def test_results_are_those_of_the_rows_and_exact(spark):
    handler = batch_handler(weather, "sky string, number bigint", capacity=20)

    @pandas_udf("sky string, number bigint")
    def handled(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.DataFrame]:
        yield from handler(batches)

    df = spark.range(0, 50, 1, 2).selectExpr("id", "concat('c', id) AS city", "IF(id % 7 = 0, NULL, id) AS day")
    found = df.select("id", handled("city", "day").alias("w")).select("id", "w.*").collect()
    days = [None if i % 7 == 0 else i for i in range(50)]
    assert sorted(map(tuple, found)) == [
        (i, f"c{i} on {day}", None if day is None else 2**53 + day) for i, day in enumerate(days)
    ]
    assert df.select(handled("city", "day")).limit(3).count() == 3
