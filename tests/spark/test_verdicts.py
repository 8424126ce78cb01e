"""Verdicts on causes that only Spark has: the job is run, changed as its verdict says, and run again."""

# ruff: noqa: A002 - parameters are called like the columns

import asyncio
import re
import time

import pytest

from asyncudf import RateLimit, async_pandas_udf, monitor
from tests.kit.doors import through

pytestmark = pytest.mark.spark

ROWS = 300


@async_pandas_udf(capacity=10)
async def call(id: int) -> int:
    await asyncio.sleep(0.02)
    return id


def slowly(batches):
    for batch in batches:
        time.sleep(0.008 * len(batch))
        yield batch


def at_once(batches):
    yield from batches


def told(spark, df):
    """The figures of a job of one task."""
    with monitor(spark) as run:
        df.write.format("noop").mode("overwrite").save()
    (function,) = run.metrics["functions"]
    return function


@through("column")
def test_a_slow_map_in_pandas_before_it(spark, door):
    """All of it comes at once, after seconds in which nothing has called the function: they count as well."""

    def job(before):
        df = spark.range(0, ROWS, 1, 1).mapInPandas(before, "id bigint")
        return told(spark, door(df, call, "id"))

    job(at_once)  # the workers are there
    slow, verdict = (function := job(slowly)), function["verdict"]
    assert verdict["state"] == "input"
    assert (
        "no rows came: the query or function before is the limit; more partitions, or less work there, would"
        in verdict["text"]
    )
    promised = int(re.search(r"save at most (\d+)%", verdict["text"])[1]) / 100
    quick = job(at_once)
    assert 1 - quick["seconds"] / slow["seconds"] == pytest.approx(promised, rel=1 / 3)
    assert quick["time"]["input"] < slow["time"]["input"] / 2


def test_what_has_ended_a_job_comes_first(spark):
    """One task fails, Spark stops the other, and their figures tell of anything but that."""

    @async_pandas_udf(on_error="null", max_failures=20)
    async def rejecting(id: int) -> int:
        await asyncio.sleep(0.02)
        if id >= ROWS / 2:
            raise ValueError("no such row")
        return id

    with monitor(spark) as run, pytest.raises(Exception, match="more than max_failures= allows"):
        spark.range(0, ROWS, 1, 2).select(rejecting("id")).collect()
    (function,) = run.metrics["functions"]
    assert (function["given_up"], function["failed_attempts"]["ended_by"]) == (1, {"max_failures": 1})
    assert function["verdict"]["text"].startswith("max_failures=20 ended the job (mostly ValueError); first look why")


def test_of_several_limits_the_one_that_binds_is_named(spark):
    """The coordinator grants the permits of all limits for the same time, that of the slowest."""
    limits = [RateLimit(100), RateLimit(1200, per="minute", burst=1), RateLimit(500, scope="task")]
    limited = call.with_options(rate_limit=limits, job_capacity=50)
    function = told(spark, spark.range(0, 80, 1, 2).select(limited("id")))
    waited, slowest = function["limit_seconds"], 'RateLimit(1_200, per="minute")'
    assert {*waited} == {"job_capacity", "RateLimit(100)", slowest, 'RateLimit(500, scope="task")'}
    assert waited[slowest] > sum(waited.values()) / 2
    assert f"calls waited for {slowest}: what you allow is the limit" in function["verdict"]["text"]
