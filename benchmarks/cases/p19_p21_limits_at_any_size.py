"""P19 and P21: limits of a job with many tasks, and with a coordinator that is far away.

P19 has clients on loopback, each a task that always wants more calls of 50 ms than there are: after how many seconds
each of 40 calls in flight is some task's, and how many are in use afterwards. With 4,000 tasks, more than a machine can
run, the work of the coordinator is measured instead: the CPU time of its questions in a second, of which there are at
most 2,000. P21 is one task behind a proxy that delays each byte. tests/coordination/test_any_size.py has the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from urllib.parse import urlsplit

import redis

from asyncudf import RateLimit
from asyncudf._coordination.client import Coordinator
from asyncudf._coordination.periodic import TaskLink
from asyncudf._coordination.permits import SharedPermits, open_limits
from asyncudf._coordination.server import CoordinatorServer
from asyncudf._coordination.share import SHARE, CapacityShare, prepare_shares

from .._harness import Case, Sample, Settings, System

__all__ = ("P19", "P21")

TOTAL, LATENCY = 40, 0.05
TASKS = (20, 100, 400)
MANY, QUESTIONS = 4_000, 2_000
RATES, DELAYS = (100, 1_000), (1, 20, 50)
SECONDS, START = 5.0, 1.0


@contextlib.contextmanager
def tasks(settings: Settings) -> Iterator[list[System]]:
    with contextlib.closing(CoordinatorServer()) as server:
        yield [
            *(System(f"{number} tasks", partial(run, shares, server.url, number)) for number in TASKS),
            System(f"{MANY} tasks, counted", partial(work, server.url)),
        ]


@contextlib.contextmanager
def far_away(settings: Settings) -> Iterator[list[System]]:
    with contextlib.closing(CoordinatorServer()) as server:
        yield [
            System(f"{rate}/s, {delay} ms", partial(run, permits, server.url, rate, delay / 1000))
            for rate in RATES
            for delay in DELAYS
        ]


def run(measure: Callable[..., object], *arguments: object) -> Sample:
    sample = asyncio.run(measure(*arguments))  # type: ignore[arg-type]
    assert isinstance(sample, Sample)
    return sample


def stop(error: BaseException) -> None:
    raise error


async def shares(url: str, number: int) -> Sample:
    loop, flying, used = asyncio.get_running_loop(), [0] * number, list[int]()
    async with Coordinator(url, uuid.uuid4().hex, clock=time.monotonic) as coordinator:
        await prepare_shares(coordinator, ["x"])
        all_shares: list[CapacityShare] = []

        def begin(task: int) -> None:
            while flying[task] < min(100, all_shares[task].limit):
                flying[task] += 1
                loop.call_later(LATENCY, end, task)

        def end(task: int) -> None:
            flying[task] -= 1
            begin(task)

        start = time.monotonic()
        for task in range(number):
            demand = partial(lambda task: (flying[task], 100), task)
            wake = partial(begin, task)
            all_shares.append(CapacityShare(TaskLink(coordinator, str(task), wake, stop), "x", TOTAL, demand))
        while sum(share.limit > 0 for share in all_shares) < min(number, TOTAL):
            await asyncio.sleep(0.005)
        first = time.monotonic() - start
        await asyncio.sleep(START)
        while time.monotonic() < start + first + START + SECONDS / 2:
            used.append(sum(flying))
            await asyncio.sleep(0.01)
        await asyncio.gather(*(share.close() for share in all_shares))
    return Sample({"s to the shares": first, "% of the calls in use": 100 * sum(used) / len(used) / TOTAL})


def work(url: str) -> Sample:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        ask, keys = client.register_script(SHARE), ["{x}share", "{x}leases", "{x}pace"]
        for task in range(MANY):
            ask(keys, ["", task, TOTAL, 0, 100, 4.0])
        client.config_resetstat()
        for task in range(QUESTIONS):
            ask(keys, ["", task, TOTAL, 0, 99, 4.0])
        statistics = client.info("commandstats")["cmdstat_evalsha"]
    return Sample({"cores of the coordinator": float(statistics["usec_per_call"]) * QUESTIONS / 1e6})


@contextlib.asynccontextmanager
async def delaying(url: str, delay: float) -> AsyncIterator[str]:
    """The URL of a proxy with a round trip of so many seconds."""
    loop, port = asyncio.get_running_loop(), urlsplit(url).port
    open_writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        while data := await reader.read(65536):
            loop.call_later(delay / 2, writer.write, data)
        loop.call_later(delay, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield url.replace(f":{port}/", f":{proxy.sockets[0].getsockname()[1]}/")
    finally:
        proxy.close()
        await asyncio.sleep(2 * delay)
        for writer in open_writers:
            writer.close()


async def permits(url: str, rate: int, delay: float) -> Sample:
    begun: list[float] = []
    async with delaying(url, delay) as far, Coordinator(far, uuid.uuid4().hex, clock=time.monotonic) as coordinator:
        await open_limits(coordinator, [("x", RateLimit(rate))])
        woken, start = asyncio.Event(), time.monotonic()
        shared = SharedPermits(TaskLink(coordinator, "t", woken.set, stop), [("x", RateLimit(rate))])
        while (now := time.monotonic()) < start + SECONDS:
            if shared.take([1.0]):
                begun.append(now)
            else:
                woken.clear()
                await woken.wait()
        await shared.close()
    steady = [one for one in begun if one >= begun[0] + START]
    most = max(sum(first <= one < first + 1.0 for one in begun) for first in begun[:: rate // 20])
    return Sample(
        {
            "% of the rate": 100 * (len(steady) - 1) / rate / (steady[-1] - steady[0]),
            "x rate and burst in the worst second": most / (rate + RateLimit(rate).saved),
        }
    )


P19 = Case(
    "P19",
    "40 calls in flight over many tasks",
    tasks,
    repetitions=2,
    loop="asyncio",
)
P21 = Case(
    "P21",
    "a rate with a coordinator that is far away, one task",
    far_away,
    repetitions=1,
    loop="asyncio",
)
