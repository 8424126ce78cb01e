"""Keep to what an API allows, 100 requests per second and 5,000 per hour, in tasks that know nothing of each other.

    python examples/rate_limited_api.py [--rows 400] [--hour 10]

So that nobody waits for an hour, one lasts ten seconds here and has 500 requests. The service counts those of the last
second and of the last hour, and refuses with a 429 what is too much. In any hour there are at most `permits`, the
`burst`, and 2%: together they are just below what the service allows. So a job that comes after a quiet time goes
through its burst as fast as the other limit lets it, and then at a pace that it can keep.
"""

from __future__ import annotations

import asyncio
import time

import _session
import aiohttp
from aiohttp import web

from asyncudf import RateLimit, RetryStrategy, async_pandas_udf, http

PER_SECOND = 100
LATENCY = 0.05  # seconds


class Api:
    """A service that refuses what is more than `per_hour` requests in an hour, or 100 in a second."""

    def __init__(self, per_hour: int, hour: float) -> None:
        self.limits = {1.0: PER_SECOND, hour: per_hour}
        self.answered: list[float] = []  # when
        self.refused = 0

    async def title(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        for seconds, most in self.limits.items():
            wait = self.answered[-most] + seconds - now if len(self.answered) >= most else 0.0
            if wait > 0:
                self.refused += 1
                return web.Response(status=429, headers={"Retry-After": f"{wait:.3f}"})
        self.answered.append(now)
        await asyncio.sleep(LATENCY)
        return web.json_response({"title": f"title {request.match_info['number']}"})

    def most_in(self, seconds: float) -> int:
        """The requests of the worst time of this length."""
        times = self.answered
        return max(sum(begin <= one < begin + seconds for one in times) for begin in times)


async def title(number: int, session: aiohttp.ClientSession) -> str:
    async with session.get(f"/titles/{number}") as response:
        await http.raise_for_status(response)
        return (await response.json())["title"]


def ask(url: str, rows: int, per_hour: int, hour: float) -> int:
    """Ask for the titles of some rows; returns how many were found."""
    spark = _session.session()
    found = async_pandas_udf(
        title,
        capacity=50,
        rate_limit=[
            RateLimit(0.95 * PER_SECOND),  # with a burst of 2%, unless given
            RateLimit(0.8 * per_hour, per=hour, burst=0.18 * per_hour),
        ],
        retry=RetryStrategy.exponential_backoff(5, initial=0.2, maximum=10.0, retry_on=http.is_retryable),
        resources=http.session(url),
    )
    titles = spark.range(0, rows, 1, 4).select(found("id").alias("title")).collect()
    spark.stop()
    return len({row.title for row in titles})


async def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=int, default=400, help="how many titles to ask for")
    parser.add_argument("--hour", type=float, default=10.0, help="how many seconds an hour has")
    args = parser.parse_args()
    per_hour = round(50 * args.hour)
    api = Api(per_hour, args.hour)
    app = web.Application()
    app.router.add_get("/titles/{number}", api.title)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        found = await asyncio.to_thread(ask, url, args.rows, per_hour, args.hour)
    finally:
        await runner.cleanup()
    seconds = api.answered[-1] - api.answered[0]
    print(f"{found} titles in {seconds:.1f} s; {api.refused} requests were refused")
    print(f"worst second: {api.most_in(1.0)} requests of {PER_SECOND} allowed")
    print(f"worst hour: {api.most_in(args.hour)} requests of {per_hour} allowed")


if __name__ == "__main__":
    asyncio.run(main())
