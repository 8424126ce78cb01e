"""Rows that fail for good are rows of another table: ask it in SQL, and give them a second attempt.

    python examples/dead_letters_in_sql.py

Under on_error="dead_letter" a row whose call has failed for good leaves the stream. The side output DEAD_LETTERS has
its columns as they were, and why it failed. It is a DataFrame like any other, so it can be a view, and the beginning of
another stream: here a second service is asked for the rows that the first one could not answer.
"""

from __future__ import annotations

import asyncio

import _session

from asyncudf import DEAD_LETTERS, AsyncStream, RetryStrategy, async_pandas_udf

TRIES_TWICE = RetryStrategy.fixed_delay(attempts=2, delay=0.01, retry_on=ConnectionError)


@async_pandas_udf("price double", on_error="dead_letter", retry=TRIES_TWICE)
async def price(item: str) -> dict[str, float]:
    await asyncio.sleep(0.01)  # stands for a call of a service
    if item.startswith("x"):
        raise ConnectionError("connection reset")
    return {"price": {"tea": 2.5, "jam": 4.0}[item]}  # a KeyError for what it does not know


@async_pandas_udf("price double")
async def list_price(item: str) -> dict[str, float]:
    await asyncio.sleep(0.01)  # stands for a call of another service
    return {"price": float(len(item))}


def main() -> None:
    spark = _session.session()
    items = spark.createDataFrame([("tea",), ("xmas tree",), ("jam",), ("honey",), ("x-ray",)], "item string")
    with AsyncStream(items).ordered_wait(price, "item") as priced:  # all that is read below is one evaluation
        letters = priced.side_output(DEAD_LETTERS)
        letters.createOrReplaceTempView("dead_letters")
        spark.sql(
            "SELECT error.type, error.message, error.attempts, count(*) AS rows, sort_array(collect_list(item)) items"
            " FROM dead_letters GROUP BY error.type, error.message, error.attempts ORDER BY error.type"
        ).show(truncate=False)
        second = letters.ordered_wait(list_price, "item").drop("error")
        priced.unionByName(second).orderBy("item").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
