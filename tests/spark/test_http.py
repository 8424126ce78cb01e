"""A session of `asyncudf.http` works in Spark's workers as it was declared on the driver."""

from collections import Counter

import aiohttp
import pytest
from aiohttp import web
from pyspark.errors import PythonException

from asyncudf import RetryStrategy, async_pandas_udf, http, ordered_wait
from tests.kit.http_services import serving

pytestmark = [pytest.mark.spark, pytest.mark.services]

RETRY = RetryStrategy.exponential_backoff(attempts=4, initial=0.01, maximum=0.1, retry_on=http.is_retryable)


async def title(n: int, session: aiohttp.ClientSession) -> str:
    async with session.get(f"titles/{n}") as response:
        await http.raise_for_status(response)
        return str((await response.json())["title"])


@pytest.mark.parametrize("form", ["column", "operator"])
def test_rows_are_asked_for_until_they_are_answered_or_refused(spark, form: str) -> None:
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
        if form == "operator":
            found = ordered_wait(numbers, function)
        else:
            found = numbers.select("n", function("n").alias("title")).select("n", "title.*")
        assert "S-E-C-R-E-T" not in found._jdf.queryExecution().toString()
        got = {row.n: row for row in found.collect()}
    assert {n: row.value for n, row in got.items()} == {n: None if n == 7 else f"title {n}" for n in range(20)}
    assert (got[7].error.type, got[7].error.status, got[7].error.attempts) == ("PermanentError", 404, 1)
    assert got[7].error.message.endswith('/v1/titles/7: {"error": "no title 7"}')
    assert asked == {f"/v1/titles/{n}": 2 if n % 2 and n != 7 else 1 for n in range(20)}
    assert tokens == {"Bearer S-E-C-R-E-T"}


def test_a_worker_without_the_token_says_where_to_put_it(spark) -> None:
    function = async_pandas_udf(title, resources=http.session("http://127.0.0.1:1", token_env="NO_SUCH_TOKEN"))
    with pytest.raises(PythonException, match=r"NO_SUCH_TOKEN is not set .*spark\.executorEnv\.NO_SUCH_TOKEN"):
        spark.range(1).select(function("id")).collect()
