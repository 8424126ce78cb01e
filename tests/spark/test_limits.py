"""Limits of the whole job on Spark: through every entry point, over all tasks, seen by the service itself."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import threading
import time

import aiohttp
import pytest
from aiohttp import web

from asyncudf import CircuitBreaker, KeyCapacity, RateLimit, async_pandas_udf, http, ordered_wait, unordered_wait
from tests.kit.doors import through
from tests.kit.http_services import serving
from tests.kit.limited import ahead_of

pytestmark = [pytest.mark.spark, pytest.mark.services]

LIMIT = RateLimit(40, burst=1)


def burst_used(journal, limit, word="call"):
    """How many calls there were at once beside those that a limit gives one after the other."""
    return ahead_of(limit, journal.times(word), since=journal.times("open")[0])


@pytest.mark.promise("limits of the job")
@through("column", "table function", "unordered_wait")
def test_two_tasks_keep_one_rate(spark, journal, door, noting):
    df = door(spark.range(0, 60, 1, 2), noting(rate_limit=LIMIT), "id")
    assert sorted(row.result for row in df.collect()) == list(range(60))
    assert journal.count("call") == 60
    assert burst_used(journal, LIMIT) <= 1 + 2  # 2% of leeway, and the moment between the two clocks


def test_two_tasks_keep_one_rate_for_each_key(spark, journal, noting):
    """One key has as many rows as the nine others together: it takes its time, and they do not wait for it."""
    limit = RateLimit(10, burst=1, by="id")
    rows = spark.range(0, 54, 1, 2).selectExpr("if(id % 2 = 0, 0, id % 9 + 1) AS id")
    assert len(unordered_wait(rows, noting(rate_limit=limit)).collect()) == 54
    begun = {}
    for word, at, *key in map(str.split, journal.lines):
        if word == "call":
            begun.setdefault(key[0], []).append(float(at))
    first = min(min(times) for times in begun.values())
    big = begun.pop("0")
    assert ahead_of(limit, big, since=first) <= 1 + 2
    assert max(big) - first > 2.4
    assert max(max(times) for times in begun.values()) - first < 1.5


@pytest.mark.spark_only("foreachBatch runs in the process of the test")
def test_batches_of_a_streaming_query_share_it(journal, lines_of, noting, to_its_end):
    limited = noting(rate_limit=LIMIT)
    counts = []

    def batch(df, number):
        counts.append(len(ordered_wait(df.selectExpr("cast(line AS long) AS id"), limited).collect()))

    lines = ["\n".join(map(str, range(start, start + 20))) for start in (0, 20, 40)]
    to_its_end(lines_of(*lines).writeStream.foreachBatch(batch))
    assert counts == [20, 20, 20]
    assert burst_used(journal, LIMIT) <= 3


class Counting:
    """A service that counts what is in flight, and answers as it is told to."""

    def __init__(self, seconds=0.02, answer=None):
        self.seconds, self.answer = seconds, answer
        self.lock = threading.Lock()
        self.in_flight = self.peak = 0
        self.begun = []

    async def handle(self, request):
        with self.lock:
            self.begun.append(time.monotonic())
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
            refused = None if self.answer is None else self.answer(request)
            return web.Response(text=request.path) if refused is None else refused
        finally:
            with self.lock:
                self.in_flight -= 1


def asking(url, **options):
    @async_pandas_udf("string", resources=http.session(url), **options)
    async def asked(id, session: aiohttp.ClientSession):
        async with session.get(f"/{id}") as response:
            await http.raise_for_status(response)
            return await response.text()

    return asked


@pytest.mark.promise("limits of the job")
def test_job_capacity_is_shared_by_all_tasks(spark):
    """Two at a time of four tasks, each with a capacity of 100."""
    service = Counting()
    with serving(service.handle) as url:
        asked = asking(url, job_capacity=5)
        rows = spark.range(0, 200, 1, 4).select(asked("id").alias("v")).collect()
    assert [row.v for row in rows] == [f"/{n}" for n in range(200)]
    assert 4 <= service.peak <= 5


@pytest.mark.promise("limits of the job")
@pytest.mark.parametrize("wait", [unordered_wait, ordered_wait])
def test_all_tasks_share_the_calls_of_each_key(spark, wait):
    """One of ten tenants has 60% of the rows: it has its calls at once, and the others do not wait for it."""
    in_flight, most, begun = {}, {}, {}

    async def handle(request):
        tenant = int(request.path.strip("/"))
        begun.setdefault(tenant, []).append(time.monotonic())
        in_flight[tenant] = in_flight.get(tenant, 0) + 1
        most[tenant] = max(most.get(tenant, 0), in_flight[tenant])
        await asyncio.sleep(0.1)
        in_flight[tenant] -= 1
        return web.Response(text="yes")

    with serving(handle) as url:

        @async_pandas_udf("string", resources=http.session(url), job_capacity=KeyCapacity(4, by="tenant"))
        async def asked(tenant, session: aiohttp.ClientSession):
            async with session.get(f"/{tenant}") as response:
                return await response.text()

        rows = spark.range(0, 400, 1, 2).selectExpr("if(id % 5 < 3, 0, id % 9 + 1) AS tenant")
        assert wait(rows, asked, "tenant").filter("asked = 'yes'").count() == 400
    assert most[0] == max(most.values()) == 4
    assert len(begun[0]) == 240
    assert max(max(times) for tenant, times in begun.items() if tenant) < max(begun[0])


def test_a_key_may_be_a_column_that_the_function_takes_by_name(spark):
    @async_pandas_udf("long", job_capacity=KeyCapacity(1, by="tenant"))
    async def asked(**columns):
        return 10 * columns["tenant"] + columns["x"]

    rows = spark.range(0, 4, 1, 2).selectExpr("id % 2 AS tenant", "id AS x")
    assert sorted(row[0] for row in rows.select(asked(tenant="tenant", x="x")).collect()) == [0, 2, 11, 13]


@pytest.mark.promise("limits of the job")
def test_one_that_stays_dead_ends_the_job_with_one_error(spark, spark_error):
    service = Counting(0.0, lambda request: web.Response(status=500))
    with serving(service.handle) as url:
        breaker = CircuitBreaker(window=10, open_for=0.5, max_open=2.0)
        asked = asking(url, capacity=10, on_error="null", breaker=breaker, job_capacity=20)
        error = spark_error(spark.range(0, 1000, 1, 2).select(asked("id")))
    assert "the service of asked has given no answer for 2 s, the max_open of its circuit breaker" in error
    assert len(service.begun) < 600, "until both tasks have heard of it"


def test_a_query_makes_no_more_calls_than_it_may(spark, journal, spark_error, noting):
    noted = noting(max_calls=30)
    assert spark.range(0, 30, 1, 2).select(noted("id")).collect()
    assert journal.count("call") == 30
    error = spark_error(spark.range(0, 100, 1, 2).select(noted("id")))
    assert "noted has made the 30 calls that max_calls= allows in one query" in error
    assert 30 < journal.count("call") <= 60


@pytest.mark.promise("limits of the job")
def test_failures_of_all_tasks_count_together(spark, spark_error):
    @async_pandas_udf("long", capacity=5, on_error="null", max_failures=30, rate_limit=RateLimit(500))
    async def bad(id):
        await asyncio.sleep(0.01)
        if id % 2:
            raise ValueError(f"no {id}")
        return id

    assert spark.range(0, 40, 1, 2).select(bad("id")).count() == 40
    error = spark_error(spark.range(0, 10_000, 1, 2).select(bad("id")))
    assert "rows of bad failed, more than max_failures= allows (30 may): ValueError" in error
    assert "for example ValueError: no " in error


def test_functions_of_one_factory_count_for_themselves(spark, journal):
    """In one query too: neither pays for the other's calls, nor for its failures."""

    def client(name, **options):
        @async_pandas_udf("long", on_error="null", rate_limit=RateLimit(1000), **options)
        async def asked(id):
            journal.write(name, id)
            if name == "bad":
                raise ValueError(id)
            return id

        return asked

    bad, good = client("bad", max_calls=40, max_failures=40), client("good", max_calls=40, max_failures=1)
    rows = spark.range(0, 40, 1, 2).select(bad("id").alias("bad"), good("id").alias("good")).collect()
    assert sorted((row.bad, row.good) for row in rows) == [(None, n) for n in range(40)]
    assert (journal.count("bad"), journal.count("good")) == (40, 40)


def test_limits_of_one_name_are_one(spark, journal, noting):
    limit = RateLimit(40, burst=1, name="the one account")
    left, right = noting(rate_limit=limit), noting(rate_limit=limit)
    spark.range(0, 40, 1, 2).select(left("id"), right("id")).collect()
    assert journal.count("call") == 80
    assert burst_used(journal, limit) <= 3
