"""A chain makes the same calls in the kit as on Spark."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncudf import AsyncStream, Budget, RetryStrategy
from asyncudf.testing import run_stream

pytestmark = pytest.mark.spark


@pytest.mark.promise("chain", "budgets")
@pytest.mark.parametrize(
    "options",
    [
        {"budget": Budget(5, "calls", name=uuid.uuid4().hex), "on_spent": "null"},
        {"max_calls": 10, "on_spent": "null"},
        {"max_calls": 10, "on_spent": "null", "retry": RetryStrategy.fixed_delay(attempts=2, delay=0.001)},
        {"job_capacity": 3},
    ],
)
def test_a_chain_makes_the_same_calls_in_the_kit(spark: SparkSession, journal: Any, options: Any) -> None:
    """One function twice, and another one: the kit gave each use a limit and a budget of its own."""

    async def look(k: int) -> int:
        journal.write("call", k)
        if k == 3 and "retry" in options:
            raise ConnectionError
        return k

    async def other(k: int) -> int:
        journal.write("call", k)
        return k

    def build(stream: AsyncStream) -> AsyncStream:
        given = {**options, "on_error": "null"}
        twice = stream.ordered_wait(look, "a", as_="x", **given).ordered_wait(look, "b", as_="y", **given)
        return twice.ordered_wait(other, "a", as_="z", **given)

    def counted(rows: list[dict[str, Any]]) -> tuple[int, int, int]:
        calls, results = journal.count("call"), [[row[name] is not None for row in rows] for name in ("x", "y", "z")]
        # Which of the uses is the first to spend what they share is a race; what all have is none.
        return calls, len(rows), sum(map(sum, results)) if "retry" not in options else 0

    in_the_kit = counted(run_stream(build, [{"a": k, "b": 100 + k} for k in range(8)], "a bigint, b bigint"))
    df = spark.range(0, 8, 1, 1).selectExpr("id AS a", "id + 100 AS b")
    calls, rows, results = counted([row.asDict() for row in build(AsyncStream(df)).collect()])
    assert (calls - in_the_kit[0], rows, results) == in_the_kit
