"""A limit for each tenant, measured: `python -m benchmarks.tenants`.

50 tenants, one of which has 60% of the rows, in one task and in eight that share the limit. The ideal is the time that
the largest tenant takes at its rate. Then 100,000 tenants with a row each: the memory of the task and the coordinator.
Needs the extra `coordinator`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import tracemalloc
from collections import Counter, defaultdict
from typing import Any

import redis

from asyncudf import RateLimit, RuntimeContext, async_pandas_udf
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf._engine.operators.outputs import OperatorOutput, RecordWriterOutput
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._limits.coordinator.server import CoordinatorServer
from asyncudf._limits.rates.keyed import open_keys
from asyncudf._limits.rates.option import RateLimits
from asyncudf._observe.counters import TaskCounters

TENANTS, BIG, RATE = 50, 0.6, 40.0
SECONDS = 20  # the ideal
KEYS = 100_000
CALL = 0.02  # seconds


class Job:
    """Tasks of one job, on one event loop; they share a coordinator if there are several.

    Attributes:
        begun: when the calls of each tenant began.
    """

    def __init__(self, tasks: int, mode: str, limit: RateLimit, url: str | None) -> None:
        self.tasks, self.mode, self.limit = tasks, mode, limit
        self.config = None if url is None else CoordinatorConfig(url, f"{mode}{tasks}{time.monotonic_ns()}", "job")
        self.begun = defaultdict[Any, list[float]](list)

    async def call(self, tenant: int, row: int) -> int:
        self.begun[tenant].append(time.monotonic())
        await asyncio.sleep(CALL)
        return row

    async def run(self, rows: list[tuple[int, int]]) -> float:
        """Returns the seconds from the first call to the last result."""
        if self.config is not None:
            async with Coordinator(self.config.url, self.config.namespace, clock=time.monotonic) as coordinator:
                await open_keys(coordinator, RateLimits([self.limit]).named(self.config.function))
        await asyncio.gather(*(self._task(rows[number :: self.tasks]) for number in range(self.tasks)))
        return time.monotonic() - min(times[0] for times in self.begun.values())

    async def _task(self, rows: list[tuple[int, int]]) -> None:
        loop, ended = asyncio.get_running_loop(), Counter[str]()
        udf = async_pandas_udf("long", output_mode=self.mode, rate_limit=self.limit)(self.call)
        writer = RecordWriterOutput(lambda results, *_: ended.update(rows=len(results)), 1_000, 0.05, loop)
        operator = AsyncWaitOperator(
            udf.spec,
            udf.options,
            OperatorOutput(writer),
            RuntimeContext("call", loop.time),
            loop=loop,
            rng=random.Random(0),
            counters=TaskCounters(time.monotonic),
            identity=None if self.config is None else self.config.of_task("query", "part"),
        )
        operator.feed((row, None, None) for row in rows)
        operator.end_of_input()
        await operator.run()
        assert ended["rows"] == len(rows)


def rows_of_tenants() -> list[tuple[int, int]]:
    rng = random.Random(0)
    count = round(SECONDS * RATE / BIG)
    return [(0 if rng.random() < BIG else rng.randrange(1, TENANTS), row) for row in range(count)]


def shares(tasks: int, mode: str, url: str | None) -> None:
    rows, job = rows_of_tenants(), Job(tasks, mode, RateLimit(RATE, by="tenant"), url)
    seconds = asyncio.run(job.run(rows))
    begun = dict(job.begun)
    big = begun.pop(0)
    first, ideal = min(times[0] for times in begun.values()), len(big) / RATE
    others = [len(times) / max(1.0, RATE * (times[-1] - first)) for times in begun.values()]
    worst = max(sum(at <= one < at + 1 for one in times) for times in [big, *begun.values()] for at in times)
    print(
        f"{tasks} tasks, {mode}: {seconds:.1f} s, ideal {ideal:.1f} s, {seconds / ideal:.2f} x; the largest tenant "
        f"{len(big)} of {len(rows)} rows, the others done after {max(t[-1] for t in begun.values()) - first:.1f} s "
        f"({min(others):.2f} of their rate at least); most calls of a tenant within a second {worst}",
        flush=True,
    )


def memory(url: str | None) -> None:
    limit = RateLimit(60, per="minute", by="tenant")
    job = Job(1, "unordered", limit, url)
    client = None if url is None else redis.Redis.from_url(url)
    before = 0 if client is None else client.info("memory")["used_memory"]
    rows = [(row, row) for row in range(KEYS)]
    job.begun = defaultdict(lambda: [0.0])  # keeps nothing for each tenant
    tracemalloc.start()
    begin = time.monotonic()
    asyncio.run(_without_notes(job, rows))
    seconds, (_, peak) = time.monotonic() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    server = (
        "" if client is None else f", coordinator {(client.info('memory')['used_memory'] - before) / 2**20:.0f} MiB"
    )
    print(f"{KEYS:,} tenants, {'alone' if url is None else 'shared'}: task {peak / 2**20:.0f} MiB at most{server}; "
          f"{seconds:.0f} s", flush=True)  # fmt: skip


async def _without_notes(job: Job, rows: list[tuple[int, int]]) -> None:
    async def call(tenant: int, row: int) -> int:
        await asyncio.sleep(CALL)
        return row

    job.call = call  # type: ignore[method-assign]
    job.begun[0]
    await job.run(rows)


def main() -> None:
    with contextlib.closing(CoordinatorServer()) as server:
        for mode in ("unordered", "ordered"):
            shares(1, mode, None)
            shares(8, mode, server.url)
        memory(None)
        memory(server.url)


if __name__ == "__main__":
    main()
