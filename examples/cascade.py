"""A small model answers all rows, and a large one only those of which the small one is not sure.

    python examples/cascade.py

All of it is one chain in one stage: a row that the small model is sure of leaves, and the others go on to the large one
while the small one is still busy with the next rows. Each model has options of its own: here the large one, which costs
30 times as much, has a budget. When that is spent, a row keeps the answer of the small model, and says so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import _session

from asyncudf import AsyncStream, Budget, async_pandas_udf

TEXTS = ["great", "awful", "not bad at all", "great, they say", "could be worse", "awful food, great view"]
SURE = 0.8


@async_pandas_udf("guess string, sure double", capacity=50)
async def small_model(text: str) -> dict[str, Any]:
    await asyncio.sleep(0.01)  # stands for a call of a small model, whose answer says how sure it is
    return {"guess": "bad" if "awful" in text else "good", "sure": 0.95 if " " not in text else 0.6}


@async_pandas_udf(
    "label string",
    capacity=5,
    budget=Budget(0.09, unit="USD", reserve=0.03),  # three calls; a real one reserves what an answer may cost at most
    on_spent="null",
)
async def large_model(text: str) -> dict[str, Any]:
    await asyncio.sleep(0.05)  # stands for a call of a large model
    return {"label": "mixed" if "," in text else "good"}


def is_sure(row: dict[str, Any]) -> bool:
    return row["sure"] >= SURE


def answered_by_small(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "text": row["text"], "label": row["guess"], "model": "small"}


def answered_by_large(row: dict[str, Any]) -> dict[str, Any]:
    if row["label"] is None:  # its budget is spent
        return {**answered_by_small(row), "model": "small, not sure"}
    return {"id": row["id"], "text": row["text"], "label": row["label"], "model": "large"}


def main() -> None:
    spark = _session.session()
    reviews = spark.createDataFrame(list(enumerate(TEXTS)), "id int, text string")
    columns = "id int, text string, label string, model string"
    guessed = AsyncStream(reviews).unordered_wait(small_model, "text")
    sure = guessed.branch().filter(is_sure).map(answered_by_small, columns)
    others = guessed.branch().filter(lambda row: not is_sure(row))
    asked = others.unordered_wait(large_model, "text").map(answered_by_large, columns)
    answers = sure.union(asked).to_df().cache()
    answers.orderBy("id").show(truncate=False)
    answers.groupBy("model").count().orderBy("model").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
