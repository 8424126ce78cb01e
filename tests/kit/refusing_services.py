"""Services that refuse calls, on a given clock: each tells whether it takes a call, or how long to wait."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from asyncudf import http
from asyncudf.testing import run_rows

__all__ = ("CAPACITY", "LATENCY", "SERVICES", "Outcome", "Refusing", "run_with_asyncudf")

CAPACITY, LATENCY = 50, 0.02  # calls in flight, and seconds of each


Service = Callable[[int, float], float | None]  # of a row and the time; None: it takes the call


@dataclasses.dataclass(frozen=True)
class Refusing:
    """A service and a job that meets it.

    Args:
        service: makes one, for one run.
        rows: of the job.
        ideal: seconds that the job takes at least.
    """

    service: Callable[[], Service]
    rows: int
    ideal: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How near to its ideal a job came, in percent, and what share of its calls was refused, in percent."""

    of_ideal: float
    refused: float
    results: Sequence[Any] = ()

    @classmethod
    def of(cls, job: Refusing, end: float, calls: int, refused: int, results: Sequence[Any] = ()) -> Outcome:
        return cls(100 * job.ideal / end, 100 * refused / calls, results)


def run_with_asyncudf(job: Refusing) -> Outcome:
    """The job in the test kit's virtual time."""
    service, calls, refused, end = job.service(), 0, 0, 0.0

    async def call(row: int) -> int:
        nonlocal calls, refused, end
        calls += 1
        wait = service(row, asyncio.get_running_loop().time())
        await asyncio.sleep(LATENCY)
        if wait is not None:
            refused += 1
            raise http.ThrottledError(429, retry_after=wait)
        end = asyncio.get_running_loop().time()
        return row

    results = run_rows(call, range(job.rows), capacity=CAPACITY, output_mode="unordered")
    return Outcome.of(job, end, calls, refused, results)


def at_random(share: float) -> Service:
    """One node of many is bad."""
    rng = random.Random(1)
    return lambda row, now: 1.0 if rng.random() < share else None


def window(calls: int, seconds: float, *, in_whole_seconds: bool = False) -> Service:
    """So many calls in each second, minute or hour."""
    taken = {"in": -1, "calls": 0}

    def service(row: int, now: float) -> float | None:
        number = math.floor(now / seconds + 1e-9)
        if number != taken["in"]:
            taken.update({"in": number, "calls": 0})
        if taken["calls"] < calls:
            taken["calls"] += 1
            return None
        left = (number + 1) * seconds - now
        return max(1.0, math.ceil(left)) if in_whole_seconds else left + 1e-9

    return service


def bucket(rate: float, burst: float, wait: float = 1.0) -> Service:
    """A token bucket that always says the same wait."""
    state = {"at": 0.0, "tokens": burst}

    def service(row: int, now: float) -> float | None:
        tokens = min(burst, state["tokens"] + (now - state["at"]) * rate)
        is_taken = tokens >= 1 - 1e-9
        state.update({"at": now, "tokens": tokens - is_taken})
        return None if is_taken else wait

    return service


def dead(since: float, until: float, wait: float) -> Service:
    """Takes nothing for a time."""
    return lambda row, now: wait if since <= now < until else None


def both(*services: Service) -> Service:
    """Takes what all of them take."""

    def service(row: int, now: float) -> float | None:
        return max((wait for one in services if (wait := one(row, now)) is not None), default=None)

    return service


FREE = CAPACITY / LATENCY  # calls per second without a refusal
SERVICES = {
    "0.5% at random": Refusing(lambda: at_random(0.005), 60_000, 60_000 / FREE),
    "10% at random": Refusing(lambda: at_random(0.1), 60_000, 60_000 / FREE),
    "40% at random": Refusing(lambda: at_random(0.4), 30_000, 30_000 / FREE),
    "100 in each second": Refusing(lambda: window(100, 1.0), 6_000, 59.0),
    "the same, whole seconds": Refusing(lambda: window(100, 1.0, in_whole_seconds=True), 6_000, 59.0),
    "bucket of 100/s, burst 20": Refusing(lambda: bucket(100, 20), 6_000, 59.8),
    "600 in each minute": Refusing(lambda: window(600, 60.0), 6_000, 540.2),
    "300 in each minute": Refusing(lambda: window(300, 60.0), 3_000, 540.0 + 300 / FREE),
    "900 in each minute": Refusing(lambda: window(900, 60.0), 3_600, 180.0 + 900 / FREE),
    "dead at once for 20 s": Refusing(lambda: dead(0.0, 20.0, 5.0), 20_000, 20.0 + 20_000 / FREE),
    "dead later for 15 s": Refusing(lambda: dead(5.0, 20.0, 4.0), 30_000, 15.0 + 30_000 / FREE),
    "dead later, right wait": Refusing(lambda: dead(5.0, 20.0, 15.0), 30_000, 15.0 + 30_000 / FREE),
    "bucket and 3,000 a minute": Refusing(lambda: both(bucket(100, 20), window(3_000, 60.0)), 6_000, 90.0),
}
