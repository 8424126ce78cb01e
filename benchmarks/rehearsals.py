"""Rehearsals beside the jobs that they foretell: `python -m benchmarks.rehearsals --programs 20`.

Each program is a random service, a process of its own that answers over HTTP: how long calls take, how many it works on
at a time, how many it takes in a second, which rows it rejects, how often it fails, and what a call costs. A job is
rehearsed with 200 calls and then run: the table says whether its time, its cost and its failed rows are within the
intervals that the rehearsal gave. The jobs run on `local[2]`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import random
import sys
import time
from typing import Any, NamedTuple

__all__ = ("main",)

SECONDS = 12.0  # about how long a job takes, if the service sets no bound
ROWS = (1_000, 60_000)


class Program(NamedTuple):
    """A service and a job that calls it."""

    seed: int
    latency: float  # seconds, the median
    spread: float  # sigma of the logarithm
    workers: int | None  # calls that it works on at a time
    rate: float | None  # calls in a second; others are refused
    rejected: float  # share of rows that it rejects for good
    flaky: float  # share of attempts that fail
    capacity: int
    output_mode: str
    rows: int

    @classmethod
    def of(cls, seed: int) -> Program:
        rng = random.Random(seed)
        latency = math.exp(rng.uniform(math.log(0.01), math.log(0.4)))
        capacity = round(math.exp(rng.uniform(math.log(4), math.log(60))))
        pace = 2 * capacity / latency
        workers = rng.choice([None, None, max(2, round(2 * capacity * rng.uniform(0.2, 0.8)))])
        pace = min(pace, workers / latency if workers else pace)
        rate = None
        if workers is None and rng.random() < 0.3:
            rate = max(5.0, pace * rng.uniform(0.2, 0.7))
            pace = rate
        pace = min(pace, 1_500.0)  # of a server on the same two cores
        rows = min(max(round(pace * SECONDS), ROWS[0]), ROWS[1])
        return cls(
            seed, latency, rng.uniform(0.1, 0.9), workers, rate, rng.choice([0.0, 0.0, 0.01, 0.05]),
            rng.choice([0.0, 0.0, 0.03, 0.1]), capacity, rng.choice(["ordered", "unordered"]), rows,
        )  # fmt: skip


def serve(program: Program, port: Any) -> None:
    """The service, until its process is ended."""
    from aiohttp import web

    workers = asyncio.Semaphore(program.workers or 10**9)
    saved = max(1.0, (program.rate or 0.0) / 20)
    left, looked = [saved], [time.monotonic()]

    async def handle(request: web.Request) -> web.Response:
        row = request.match_info["row"]
        if program.rate is not None:
            now = time.monotonic()
            left[0] = min(saved, left[0] + (now - looked[0]) * program.rate)
            looked[0] = now
            if left[0] < 1:
                return web.Response(status=429, headers={"Retry-After": "1"})
            left[0] -= 1
        async with workers:
            await asyncio.sleep(program.latency * random.lognormvariate(0, program.spread))
        if random.Random(f"{program.seed} {row}").random() < program.rejected:
            return web.Response(status=422)
        if random.random() < program.flaky:
            return web.Response(status=500)
        return web.json_response({"price": 0.001 * random.lognormvariate(0, 1), "text": "x" * random.randrange(400)})

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{row}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


def run(spark: Any, program: Program, sample: int) -> list[Any]:
    """Rehearses the job of a program and runs it; returns the forecast and what came."""
    from asyncudf import (
        RetryStrategy,
        RuntimeContext,
        async_pandas_udf,
        http,
        monitor,
        ordered_wait,
        rehearse,
        unordered_wait,
    )

    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    server = context.Process(target=serve, args=(program, found), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{found.get(timeout=30)}/"

    async def price(row: int, session: Any, context: RuntimeContext) -> str:
        async with session.get(f"{url}{row}") as response:
            response.raise_for_status()
            answer = await response.json()
        context.spend(answer["price"])
        text: str = answer["text"]
        return text

    retry = RetryStrategy.exponential_backoff(3, 0.2, 2.0, retry_on=http.is_retryable)
    options: dict[str, Any] = {"capacity": program.capacity, "on_error": "null", "retry": retry, "timeout": 120.0}
    udf = async_pandas_udf(price, "string", resources={"session": http.session()}, **options)
    wait = ordered_wait if program.output_mode == "ordered" else unordered_wait
    rows = spark.range(program.rows).selectExpr("cast(id as int) as row").repartition(2)
    try:
        told = rehearse(rows, udf, "row", sample=sample, output_mode=program.output_mode)
        began = time.monotonic()
        with monitor(spark) as ran:
            wait(rows, udf, "row").write.format("noop").mode("overwrite").save()
        seconds = time.monotonic() - began
    finally:
        server.terminate()
        server.join()
    figures = ran.metrics["functions"][0]
    return [told, seconds, figures["spent"].get("USD", 0.0), figures["failures"]]


def main() -> None:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser("python -m benchmarks.rehearsals", description=__doc__)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    within = [0, 0, 0]
    print(
        "| Program | Time foretold | Came | Cost foretold | Came | Failed rows foretold | Came |\n" + "|---" * 7 + "|"
    )
    for seed in range(given.first, given.first + given.programs):
        program = Program.of(seed)
        told, *came = run(spark, program, given.sample)
        forecasts = [told.as_is.seconds, told.as_is.spent["USD"], told.as_is.failures]
        hits = [one.low <= figure <= one.high for one, figure in zip(forecasts, came, strict=True)]
        within = [count + hit for count, hit in zip(within, hits, strict=True)]
        cells = [
            f"{one.low:.3g} to {one.high:.3g} | {figure:.3g}{'' if hit else ' (out)'}"
            for one, figure, hit in zip(forecasts, came, hits, strict=True)
        ]
        print(f"| {seed} | {' | '.join(cells)} |", flush=True)
        if given.verbose:
            print(program, told, sep="\n", flush=True)
    print(f"\nOf {given.programs} within the interval: time {within[0]}, cost {within[1]}, failed rows {within[2]}")
    spark.stop()


if __name__ == "__main__":
    main()
