"""The airport service that enrich_flights.py calls, in a process of its own.

    python examples/_airport_service.py [--seed 1]

Prints its address and runs until its standard input ends, so it cannot outlive the program that started it.

    GET /airports/{code}   an airport of one of the 50 states; 404 for any other code
    GET /stats             what it has done since the last reset
    POST /reset

It behaves as services do: most answers take some 14 ms, a few take 100, some are errors, and now and then one never
comes. What a request meets depends on the seed, its X-Request-Id and how often that id has come, never on the clock:
the same request always gets the same answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections import Counter

import airportsdata
from aiohttp import web

MEAN, SIGMA = 0.04, 0.8  # seconds; lognormal
SHARES = {"500": 0.01, "429": 0.005, "hang": 0.001}  # of the requests; the others are answered
HANG = 600.0  # seconds; far longer than any caller waits
TERRITORIES = {"Puerto Rico", "Virgin Islands", "Guam", "American Samoa", "Northern Mariana Islands"}
FATES = 100_003  # how many are drawn in advance; a prime, so that every step through them visits all


class AirportService:
    """The handlers and their counters. All run on one event loop, so nothing needs a lock."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        location = math.log(MEAN) - SIGMA**2 / 2  # of the lognormal distribution with this mean
        troubles = rng.choices(["", *SHARES], [1 - sum(SHARES.values()), *SHARES.values()], k=FATES)
        self.fates = [(rng.lognormvariate(location, SIGMA), trouble) for trouble in troubles]
        wanted = ("name", "city", "lat", "lon", "tz")
        self.airports = {
            code: json.dumps({field: airport[field] for field in wanted}).encode()
            for code, airport in airportsdata.load("IATA").items()
            if airport["country"] == "US" and airport["subd"] not in TERRITORIES
        }
        self.attempts: Counter[int] = Counter()
        self.stats: Counter[str] = Counter()

    async def airport(self, request: web.Request) -> web.Response:
        number = int(request.headers.get("X-Request-Id", "0"))
        self.attempts[number] += 1
        latency, trouble = self.fates[(number * 7919 + self.attempts[number] * 104_729) % FATES]
        self.stats["calls"] += 1
        self.stats["retries"] += self.attempts[number] > 1
        if trouble == "hang":
            await self._hang()
        self.stats["seconds"] += latency
        await asyncio.sleep(latency)
        if trouble == "429":
            return self._answer(429, headers={"Retry-After": "1"})
        if trouble == "500":
            return self._answer(500)
        body = self.airports.get(request.match_info["code"])
        return self._answer(404) if body is None else self._answer(200, body=body, content_type="application/json")

    async def _hang(self) -> None:
        try:
            await asyncio.sleep(HANG)
        except asyncio.CancelledError:  # the caller has hung up
            self.stats["timeouts"] += 1
            raise

    def _answer(self, status: int, **response: object) -> web.Response:
        self.stats[str(status)] += 1
        return web.Response(status=status, **response)

    async def show_stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.stats)

    async def reset(self, request: web.Request) -> web.Response:
        self.attempts.clear()
        self.stats.clear()
        return web.Response()


async def serve(seed: int) -> None:
    service = AirportService(seed)
    app = web.Application()
    app.router.add_get("/airports/{code}", service.airport)
    app.router.add_get("/stats", service.show_stats)
    app.router.add_post("/reset", service.reset)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of latencies and errors")
    asyncio.run(serve(parser.parse_args().seed))
