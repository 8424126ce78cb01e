"""A session of `asyncudf.http` works in Spark's workers as it was declared on the driver."""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import web

from asyncudf import RetryStrategy, async_pandas_udf, async_sink, http, ordered_wait
from tests.kit.http_services import serving

pytestmark = [pytest.mark.spark, pytest.mark.services]

MANY = 2_000
OTHER_FILES = 500  # that a process may have beside them
RETRY = RetryStrategy.exponential_backoff(attempts=4, initial=0.01, maximum=0.1, retry_on=http.is_retryable)


async def title(n: int, session: aiohttp.ClientSession) -> str:
    async with session.get(f"titles/{n}") as response:
        await http.raise_for_status(response)
        return str((await response.json())["title"])


@pytest.fixture
def many() -> Iterator[int]:
    """How many connections this process and a worker may have, two thousand at most.

    More than the hundred of aiohttp's own bound, wherever a process may have the usual 1024 files. Spark's JVM takes as
    many files as it may have, and so its workers do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY + OTHER_FILES if hard == resource.RLIM_INFINITY else min(MANY + OTHER_FILES, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield wanted - OTHER_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_rows_are_asked_for_until_they_are_answered_or_refused(spark) -> None:
    asked: Counter[str] = Counter()
    tokens = set()

    async def service(request: web.Request) -> web.Response:
        asked[request.path] += 1
        tokens.add(request.headers["Authorization"])
        number = int(request.path.rpartition("/")[2])
        if number == 7:
            return web.json_response({"error": "no title 7"}, status=404)
        if asked[request.path] == 1 and number % 2:
            return web.Response(status=503 if number % 3 else 429, headers={"Retry-After": "0.01"})
        return web.json_response({"title": f"title {number}"})

    with serving(service) as url:
        factory = http.session(f"{url}/v1", token=lambda: "-".join("SECRET"))
        function = async_pandas_udf(title, resources=factory, retry=RETRY, on_error="capture")
        numbers = spark.range(20).withColumnRenamed("id", "n")
        found = numbers.select("n", function("n").alias("title")).select("n", "title.*")
        assert "S-E-C-R-E-T" not in found._jdf.queryExecution().toString()
        got = {row.n: row for row in found.collect()}
    assert {n: row.value for n, row in got.items()} == {n: None if n == 7 else f"title {n}" for n in range(20)}
    assert (got[7].error.type, got[7].error.status, got[7].error.attempts) == ("PermanentError", 404, 1)
    assert got[7].error.message.endswith('/v1/titles/7: {"error": "no title 7"}')
    assert asked == {f"/v1/titles/{n}": 2 if n % 2 and n != 7 else 1 for n in range(20)}
    assert tokens == {"Bearer S-E-C-R-E-T"}


def test_a_sink_counts_as_written_what_the_service_has(spark) -> None:
    """A redirected POST arrived as a GET without a body, and its row was written by the count."""
    has = []

    async def service(request: web.Request) -> web.Response:
        if request.path.startswith("/to/"):
            status = (301, 302, 307, 308, 200)[int(request.path.removeprefix("/to/")) % 5]
            if status != 200:
                return web.Response(status=status, headers={"Location": "/end"})
        if request.method == "POST":
            has.append((await request.json())["n"])
        return web.json_response({})

    async def send(n: int, session: aiohttp.ClientSession) -> None:
        async with session.post(f"/to/{n}", json={"n": n}) as response:
            await http.raise_for_status(response)

    with serving(service) as url:
        numbers = spark.range(50).withColumnRenamed("id", "n")
        report = async_sink(numbers, send, resources=http.session(url), retry=RETRY)
        assert sorted(has) == [n for n in range(50) if n % 5 > 1]
        assert (report.written, report.failed) == (30, 20)
        assert report.reasons == {"PermanentError 301": 10, "PermanentError 302": 10}


def test_a_task_can_have_two_thousand_connections_in_use_at_once(spark, many: int) -> None:
    """The service answers nobody before all have asked."""
    connections = set()  # those that wait for an answer now
    all_ask = asyncio.Event()

    async def service(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        connections.add(peer)
        try:
            if len(connections) == many:
                all_ask.set()
            await all_ask.wait()
        finally:
            connections.discard(peer)
        return web.json_response({"title": request.path.rpartition("/")[2]})

    with serving(service, backlog=many) as url:
        session = http.session(url, connect_timeout=None)
        function = async_pandas_udf(title, resources=session, capacity=many, timeout=300)
        numbers = spark.range(many, numPartitions=1).withColumnRenamed("id", "n")
        got = ordered_wait(numbers, function).collect()
    assert [row.title for row in got] == [str(n) for n in range(many)]
    assert all_ask.is_set()
