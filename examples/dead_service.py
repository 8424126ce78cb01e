"""Go on where it was when a service dies in the middle of a job: a circuit breaker, and no row is lost.

    python examples/dead_service.py [--rows 400] [--dead 4]

The service dies after a quarter of the requests, and comes back some seconds later. It stands for one that is away for
20 s, or for half an hour. Each row has three attempts, which are over long before. Without a breaker the rows that meet
the outage become errors, as fast as the service can refuse them. With one the rows wait and use up no attempt, while
one request at a time looks whether the service is back; rows whose last attempt had failed by then are tried anew.
Because of `job_capacity` there is a coordinator, and so one breaker for all tasks, and one such request in the job.
"""

from __future__ import annotations

import asyncio
import time

import _session
import aiohttp
from aiohttp import web
from pyspark.sql import SparkSession

from asyncudf import AsyncUDF, CircuitBreaker, RetryStrategy, async_pandas_udf, http

OPEN_FOR = 0.5  # seconds between two requests that look whether the service is back


class Service:
    """Dies at its `dies_at`th request, for `seconds`: then the gateway in front of it answers with a 503."""

    def __init__(self, dies_at: int, seconds: float) -> None:
        self.dies_at, self.seconds = dies_at, seconds
        self.begin_anew()

    def begin_anew(self) -> None:
        self.requests = 0
        self.dead_since = float("inf")
        self.in_vain: list[float] = []  # seconds after its death

    async def price(self, request: web.Request) -> web.Response:
        self.requests += 1
        now = time.monotonic()
        if self.requests == self.dies_at:
            self.dead_since = now
        if 0 <= now - self.dead_since < self.seconds:
            self.in_vain.append(now - self.dead_since)
            return web.Response(status=503)
        await asyncio.sleep(0.02)
        return web.json_response({"price": int(request.match_info["item"]) / 4})


async def price(item: int, session: aiohttp.ClientSession) -> float:
    async with session.get(f"/prices/{item}") as response:
        await http.raise_for_status(response)
        return (await response.json())["price"]


def ask(spark: SparkSession, function: AsyncUDF[..., float], rows: int, service: Service) -> None:
    items = spark.range(0, rows, 1, 2)
    found = items.select(function("id").alias("p")).where("p.value IS NOT NULL").count()
    print(f"{found} of {rows} items have a price, {rows - found} are lost")
    looked = sum(after > OPEN_FOR for after in service.in_vain)  # until when all tasks have heard of it
    print(
        f"{len(service.in_vain)} requests met a dead service, {looked} of them after the first {OPEN_FOR} s", flush=True
    )
    service.begin_anew()


def compare(url: str, rows: int, service: Service) -> None:
    spark = _session.session()
    function = async_pandas_udf(
        price,
        on_error="capture",
        job_capacity=20,
        retry=RetryStrategy.fixed_delay(attempts=3, delay=0.02, retry_on=http.is_retryable),
        resources=http.session(url),
    )
    print("Without a circuit breaker:", flush=True)
    ask(spark, function, rows, service)
    print("With one:", flush=True)
    breaker = CircuitBreaker(failure_rate=0.5, window=20, open_for=OPEN_FOR, max_open=60)
    ask(spark, function.with_options(breaker=breaker), rows, service)
    spark.stop()


async def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=int, default=400, help="how many items to ask for")
    parser.add_argument("--dead", type=float, default=4.0, help="for how many seconds the service is dead")
    args = parser.parse_args()
    service = Service(args.rows // 4, args.dead)
    app = web.Application()
    app.router.add_get("/prices/{item}", service.price)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        await asyncio.to_thread(compare, url, args.rows, service)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
