"""Every row goes to two services side by side, and their answers come together again in a join.

    python examples/fan_out.py

A branch is the same rows once more. The branches of AsyncStream.collect run in one chain, in one task: each row is
read once and handed to both services, which are called at the same time. What each branch gives is a DataFrame of its
own, all of one evaluation, so the join makes no calls.
"""

from __future__ import annotations

import asyncio

import _session

from asyncudf import DEAD_LETTERS, AsyncStream


async def population(city: str) -> int:
    await asyncio.sleep(0.01)  # stands for a call of a service
    return {"Oslo": 724_000, "Rome": 2_746_000, "Paris": 2_103_000}[city]


async def air(city: str) -> dict[str, object]:
    await asyncio.sleep(0.03)  # stands for a call of another, slower one
    if city == "Rome":
        raise ConnectionError("the station does not answer")
    return {"pm10": len(city) * 3, "air": "good"}


def main() -> None:
    spark = _session.session()
    cities = spark.createDataFrame([(1, "Oslo"), (2, "Rome"), (3, "Paris")], "id int, city string")
    with AsyncStream(cities) as stream:
        people = stream.branch().unordered_wait(population, "city")
        quality = stream.branch().unordered_wait(air, "city", returnType="pm10 int, air string", on_error="dead_letter")
        found = AsyncStream.collect(people=people, air=quality, failed=quality.side_output(DEAD_LETTERS))
        found["people"].join(found["air"].drop("city"), "id", "left").orderBy("id").show()
        found["failed"].select("id", "city", "error.function", "error.message").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
