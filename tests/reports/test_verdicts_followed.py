"""Jobs whose cause is known: the verdict tells it, and a second run that follows the advice bears it out."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from asyncudf import AdaptiveCapacity, AsyncStream, CircuitBreaker, RateLimit, ResultStore, RetryStrategy, http
from asyncudf._reports.verdict import verdict
from tests.kit.engines import Engine
from tests.kit.runs import figures_of, run_of_a_function, run_of_a_stream, run_of_tasks

Figures = dict[str, Any]
Call = Callable[[int], Any]


def now() -> float:
    return asyncio.get_running_loop().time()


# Services, and functions that call them.


def steady(seconds: float = 0.05) -> Call:
    async def call(n: int) -> int:
        await asyncio.sleep(seconds)
        return n

    return call


def few_at_once(at_once: int, seconds: float = 0.05, jitter: float = 0.0) -> Call:
    """A service with so many workers, or a client with so many connections: the others wait in line."""
    free, rng = asyncio.Semaphore(at_once), random.Random(5)

    async def call(n: int) -> int:
        async with free:
            await asyncio.sleep(seconds * rng.uniform(1 - jitter, 1 + jitter))
        return n

    return call


def newest_first(at_once: int, jitter: float = 0.0) -> Call:
    """A client with so many connections, as in aiohttp: a call that begins takes one that has just become free."""
    free, waiting, rng = at_once, deque[asyncio.Future[None]](), random.Random(5)

    async def call(n: int) -> int:
        nonlocal free
        while not free:
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            await turn
        free -= 1
        await asyncio.sleep(0.05 * rng.uniform(1 - jitter, 1 + jitter))
        free += 1
        if waiting:
            waiting.popleft().set_result(None)
        return n

    return call


def long_tailed(one_in: int, seconds: float) -> Call:
    rng = random.Random(3)

    async def call(n: int) -> int:
        await asyncio.sleep(seconds if rng.random() < 1 / one_in else 0.05)
        return n

    return call


def uneven(sigma: float) -> Call:
    rng = random.Random(3)

    async def call(n: int) -> int:
        await asyncio.sleep(0.05 * rng.lognormvariate(0, sigma))
        return n

    return call


def shared_processor(at_once: int, jitter: float = 0.3) -> Call:
    """A service that answers all at the same time, each the slower the more there are."""
    rng, flying = random.Random(7), 0

    async def call(n: int) -> int:
        nonlocal flying
        flying += 1
        work = 0.05 * rng.uniform(1 - jitter, 1 + jitter)
        while work > 1e-9:
            step = min(0.005, work * max(1.0, flying / at_once))
            speed = min(1.0, at_once / flying)
            await asyncio.sleep(step)
            work -= step * speed
        flying -= 1
        return n

    return call


def slower_with_more(at_once: int) -> Call:
    """Each call takes as long as those before it let it."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        flying += 1
        await asyncio.sleep(0.05 * max(1.0, flying / at_once))
        flying -= 1
        return n

    return call


def blocking(seconds: float, before: float = 0.0) -> Call:
    async def call(n: int) -> int:
        if before:
            await asyncio.sleep(before)
        asyncio.get_running_loop().block(seconds)  # type: ignore[attr-defined]
        return n

    return call


def sometimes_slow(seconds: float = 5.0, every: int = 300, *, only_once: bool = False) -> Call:
    tried = set[int]()

    async def call(n: int) -> int:
        is_slow = n % every == 1 and not (only_once and n in tried)
        tried.add(n)
        await asyncio.sleep(seconds if is_slow else 0.05)
        return n

    return call


def broken_by_more(at_once: int) -> Call:
    """A service that takes so many at once; with more, each call takes 2 s."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        flying += 1
        await asyncio.sleep(0.05 if flying <= at_once else 2.0)
        flying -= 1
        return n

    return call


def failing_beyond(at_once: int) -> Call:
    """A service that fails in 5 ms while it has so many calls."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        if flying >= at_once:
            await asyncio.sleep(0.005)
            raise ConnectionError("busy")
        flying += 1
        await asyncio.sleep(0.05)
        flying -= 1
        return n

    return call


def refusing_beyond(at_once: int) -> Call:
    """A service of uneven calls of 20 ms that refuses a call while it has so many."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        if flying >= at_once:
            raise http.ThrottledError(429, retry_after=1.0)
        flying += 1
        await asyncio.sleep(0.01 + 0.02 * (n * 7919 % 100) / 100)
        flying -= 1
        return n

    return call


def hanging(one_in: int) -> Call:
    """Some calls never come back, but if they are made again."""
    tried = set[int]()

    async def call(n: int) -> int:
        hangs = n % one_in == 7 and n not in tried
        tried.add(n)
        await asyncio.sleep(1e6 if hangs else 0.05)
        return n

    return call


def bad_rows(one_in: int) -> Call:
    async def call(n: int) -> int:
        await asyncio.sleep(0.05)
        if n % one_in == 0:
            raise ValueError("no such row")
        return n

    return call


def token_bucket(rate: float) -> Call:
    """It takes this many calls in a second, and 50 more at first."""
    left, looked = 50.0, None

    async def call(n: int) -> int:
        nonlocal left, looked
        left, looked = min(50.0, left + (now() - (now() if looked is None else looked)) * rate), now()
        is_refused = left < 1
        left -= not is_refused
        await asyncio.sleep(0.05)
        if is_refused:
            raise http.ThrottledError(429, retry_after=1.0)
        return n

    return call


def refusing_a_fifth(wait: float) -> Call:
    """It answers 120 calls in a second; of more it refuses the fifth, with a long wait."""
    begun = deque[float]()

    async def call(n: int) -> int:
        begun.append(now())
        while begun[0] < now() - 1:
            begun.popleft()
        is_refused = len(begun) > 120 and n % 5 == 0
        await asyncio.sleep(0.05)
        if is_refused:
            raise http.ThrottledError(429, retry_after=wait)
        return n

    return call


@contextlib.asynccontextmanager
async def slow_to_open() -> AsyncIterator[None]:
    await asyncio.sleep(4.0)
    yield


@contextlib.asynccontextmanager
async def quick_to_open() -> AsyncIterator[None]:
    yield


async def with_client(n: int, client: None) -> int:
    await asyncio.sleep(0.05)
    return n


def refusing() -> Call:
    """It takes 50 calls in each second."""
    accepted = Counter[int]()

    async def call(n: int) -> int:
        second = int(now())
        accepted[second] += 1
        refused = accepted[second] > 50
        await asyncio.sleep(0.05)
        if refused:
            raise http.ThrottledError(429, retry_after=max(0.01, second + 1 - now()))
        return n

    return call


def dead_for_a_minute() -> Call:
    async def call(n: int) -> int:
        await asyncio.sleep(0.05)
        if 1 < now() < 60:
            raise ConnectionError("refused")
        return n

    return call


def failing(times: int) -> Call:
    """Each row fails so often before it has its result."""
    tried = Counter[int]()

    async def call(n: int) -> int:
        await asyncio.sleep(0.05)
        tried[n] += 1
        if tried[n] <= times:
            raise ConnectionError("refused")
        return n

    return call


class Store(ResultStore):
    """Has what was put, after a while."""

    def __init__(self, seconds: float, to_put: float = 0.0) -> None:
        super().__init__()
        self.seconds, self.to_put = seconds, to_put
        self.kept: dict[bytes, bytes] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        await asyncio.sleep(self.seconds)
        return [self.kept.get(key) for key in keys]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await asyncio.sleep(self.to_put)
        self.kept.update(items)


def run(call: Call, rows: int = 1000, capacity: Any = 20, **options: Any) -> Figures:
    return run_of_a_function(call, range(rows), capacity=capacity, **options)


def equal_rows(error_ttl: float | None) -> Figures:
    """Five different rows, whose calls fail."""
    store = Store(0.0)
    store.error_ttl = error_ttl
    rows = [n % 5 for n in range(300)]
    return run_of_a_function(bad_rows(1), rows, capacity=20, on_error="null", store=store, version="1")


def rejects_and_hanging_calls(**options: Any) -> Figures:
    """318 rows with 306 different arguments; 12 calls hang when they are made first, 8 arguments are rejected."""
    tried = set[int]()

    async def call(n: int) -> int:
        hangs = n % 25 == 7 and n not in tried
        tried.add(n)
        await asyncio.sleep(1e6 if hangs else 0.05)
        if n % 40 == 3:
            raise ValueError("no such row")
        return n

    rows = [*range(306), *range(12)]
    options = {"timeout": 30.0, "retry": RETRY, "on_error": "null", "store": Store(0.0), "version": "1", **options}
    return run_of_a_function(call, rows, capacity=20, **options)


def rejects(error_ttl: float | None) -> Figures:
    """1,000 rows of 40 arguments, half of which are rejected."""
    store = Store(0.0)
    store.error_ttl = error_ttl
    rows = [n % 40 for n in range(1000)]
    options = {"rate_limit": RateLimit(50, scope="task"), "on_error": "null", "store": store, "version": "1"}
    return run_of_a_function(bad_rows(2), rows, capacity=20, **options)


def few_arguments(seconds: float) -> Figures:
    rows = [n % 60 for n in range(3000)]
    return run_of_a_function(steady(seconds), rows, capacity=100, store=Store(0.0), version="1")


def from_store(seconds: float, every: float = 0.0) -> Figures:
    """All of it is there, as it was called for before."""
    store = Store(0.0)
    run(steady(), store=store, version="1")
    store.seconds = seconds
    return run(steady(), store=store, version="1", every=every, batch=50)


def chain(seconds: float) -> Figures:
    def build(stream: AsyncStream) -> AsyncStream:
        first, second = steady(0.01), steady(seconds)
        return stream.ordered_wait(first, capacity=10, as_="a").ordered_wait(second, "n", capacity=10, as_="b")

    return run_of_a_stream(build, [{"n": n} for n in range(3000)], "n int", capacity=10)[0]


def behind_a_filter(seconds: float) -> Figures:
    """The first of two functions; one row in 20 comes to the second."""

    def build(stream: AsyncStream) -> AsyncStream:
        first, second = steady(0.05), steady(seconds)
        few = stream.ordered_wait(first, capacity=10, as_="a").filter(lambda row: row["n"] % 20 == 0)
        return few.ordered_wait(second, "n", capacity=10, as_="b")

    return run_of_a_stream(build, [{"n": n} for n in range(3000)], "n int", capacity=10)[0]


def advised(text: str, option: str) -> Any:
    """What the verdict wants an option to be."""
    return float(re.findall(rf"\b{option}=([\d_.]*\d)", text)[-1].replace("_", ""))


RETRY, LATER = RetryStrategy.fixed_delay(attempts=3, delay=0.001), RetryStrategy.fixed_delay(attempts=2, delay=5.0)
MANY_TIMES = RetryStrategy.fixed_delay(attempts=1000, delay=0.05)
BACKOFF = RetryStrategy.exponential_backoff(attempts=5, initial=1.0, maximum=20.0)


OF_A_SECOND = RateLimit(20, scope="task")


def tokens(n: int) -> float:
    return 200.0


class Job(NamedTuple):
    """A job, what its verdict has to tell, how sure it may be, and the run that follows the advice."""

    run: Callable[[], Figures]
    state: str
    cause: str
    sureness: str
    follow: Callable[[str], Figures]
    saves: float | None = None  # where the verdict gives no number: what following it saves


JOBS = {
    "too few slots": Job(
        lambda: run(steady()),
        "calls_busy",
        "capacity is the limit; capacity=40 would about halve the time if the service takes so many at once",
        "likely",
        lambda text: run(steady(), capacity=int(advised(text, "capacity"))),
    ),
    "a service that takes any number, and not always as long": Job(
        lambda: run(uneven(0.35)),
        "calls_busy",
        "the service or capacity is the limit; try capacity=40: if calls then take longer, the service is the limit",
        "likely",
        lambda text: run(uneven(0.35), capacity=int(advised(text, "capacity"))),
        0.5,
    ),
    "a service that takes 4 at once": Job(
        lambda: run(few_at_once(4)),
        "calls_busy",
        "calls took 249 ms (50 ms while few were in flight): the service, the client's pool, or a blocked loop "
        "takes at most about 4 at once, and more capacity changes nothing",
        "likely",
        lambda text: run(few_at_once(4), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "a service that takes 4 at once, and not always as long": Job(
        lambda: run(few_at_once(4, jitter=0.5)),
        "calls_busy",
        "the client's pool, or a blocked loop takes at most about 7 at once",
        "likely",
        lambda text: run(few_at_once(4, jitter=0.5), capacity=40),
        0.0,
    ),
    "a client with a pool of 4": Job(
        lambda: run(few_at_once(4, 0.2)),
        "calls_busy",
        "the client's pool, or a blocked loop takes at most about 4 at once, and more capacity changes nothing; one",
        "likely",
        lambda text: run(few_at_once(20, 0.2)),
        0.8,
    ),
    "a service that takes 4 at once, and a large capacity": Job(
        lambda: run(few_at_once(4), capacity=100),
        "calls_busy",
        "takes at most about 4 at once, and more capacity changes nothing",
        "likely",
        lambda text: run(few_at_once(4), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "a service that takes 4 at once from two tasks": Job(
        lambda: run_of_tasks(few_at_once(4), range(1000), range(1000), capacity=50),
        "calls_busy",
        "takes at most about 2 at once from each of 2 tasks, and more capacity changes nothing",
        "likely",
        lambda text: run_of_tasks(few_at_once(4), range(1000), range(1000), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "a pool of 4 whose connections go to the newest call": Job(
        lambda: run(newest_first(4)),
        "calls_busy",
        "half of the calls took 50 ms and the mean is 248 ms: the client's pool (in aiohttp TCPConnector(limit=...)), "
        "or the service, takes about 4 at once, and newer calls pass older ones; a larger pool would help",
        "likely",
        lambda text: run(newest_first(4), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "a pool of 100 whose connections go to the newest call": Job(
        lambda: run(newest_first(100, jitter=0.3), 3000, capacity=400),
        "calls_busy",
        "takes about 100 at once, and newer calls pass older ones; a larger pool would help",
        "likely",
        lambda text: run(newest_first(400, jitter=0.3), 3000, capacity=400),
        0.72,
    ),
    "a capacity that was chosen for what the service takes": Job(
        lambda: run(few_at_once(4), capacity=4),
        "calls_busy",
        "the service or capacity is the limit; try capacity=8: if calls then take longer, the service is the limit",
        "likely",
        lambda text: run(few_at_once(4), capacity=8),
        0.0,
    ),
    "a service that shares one processor": Job(
        lambda: run(shared_processor(4)),
        "calls_busy",
        "is slower with more calls, and more capacity changes little",
        "likely",
        lambda text: run(shared_processor(4), capacity=10),
        0.0,
    ),
    "a service that is slower the more calls there are": Job(
        lambda: run(slower_with_more(4)),
        "calls_busy",
        "more capacity changes nothing",
        "likely",
        lambda text: run(slower_with_more(4), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "slow input": Job(
        lambda: run(steady(), every=0.5, batch=20),
        "input",
        "the query before the function is the limit",
        "sure",
        lambda text: run(steady()),
    ),
    "a slow reader": Job(
        lambda: chain(0.5),
        "output",
        "the next function, is the limit",
        "sure",
        lambda text: chain(0.01),
    ),
    "calls that block": Job(
        lambda: run(blocking(0.06), 2000),
        "blocked_loop",
        "synchronous code blocked the event loop",
        "sure",
        lambda text: run(steady(0.06), 2000),
    ),
    "calls that block for a moment": Job(
        lambda: run(blocking(0.004), 2000),
        "calls_busy",
        "calls ran one after another, 4 ms each",
        "sure",
        lambda text: run(steady(0.004), 2000),
    ),
    "calls that wait, and then block": Job(
        lambda: run(blocking(0.03, before=0.05)),
        "blocked_loop",
        "synchronous code blocked the event loop",
        "likely",
        lambda text: run(steady(0.08)),
        0.87,
    ),
    "a rate": Job(
        lambda: run(steady(), rate_limit=RateLimit(50)),
        "limit",
        "calls waited for a permit: what you allow is the limit",
        "likely",
        lambda text: run(steady()),
    ),
    "two rates": Job(
        lambda: run(steady(), rate_limit=[OF_A_SECOND, RateLimit(600, per="minute", scope="task")]),
        "limit",
        'for RateLimit(600, per="minute", scope="task"): this is the limit, and capacity changes nothing; a higher '
        'one, if the service allows it and Spark keeps up, helps until RateLimit(20, scope="task") is the limit',
        "likely",
        lambda text: run(steady(), rate_limit=[OF_A_SECOND, RateLimit(6000, per="minute", scope="task")]),
        0.5,
    ),
    "a rate of the calls, and one of what they cost": Job(
        lambda: run(steady(), rate_limit=[OF_A_SECOND, RateLimit(60_000, per="minute", cost=tokens, scope="task")]),
        "limit",
        'of that for RateLimit(60_000, per="minute", cost=tokens, scope="task"): this is the limit',
        "likely",
        lambda text: run(
            steady(), rate_limit=[OF_A_SECOND, RateLimit(600_000, per="minute", cost=tokens, scope="task")]
        ),
        0.75,
    ),
    "a rate, and few calls at once": Job(
        lambda: run(steady(), rate_limit=RateLimit(200, scope="task"), job_capacity=2),
        "limit",
        "100% of that for job_capacity=2: this is the limit, and capacity changes nothing; a higher one, if the "
        'service allows it and Spark keeps up, helps until RateLimit(200, scope="task") is the limit',
        "likely",
        lambda text: run(steady(), rate_limit=RateLimit(200, scope="task"), job_capacity=20),
        0.8,
    ),
    "a service that refuses calls": Job(
        lambda: run(refusing()),
        "limit",
        "calls were held back because the service refused",
        "likely",
        lambda text: run(refusing(), rate_limit=RateLimit(49)),
        0.0,
    ),
    "a service that refuses calls, though there is a rate": Job(
        lambda: run(refusing(), rate_limit=RateLimit(500)),
        "limit",
        "calls were held back because the service refused",
        "likely",
        lambda text: run(refusing(), rate_limit=RateLimit(49)),
        0.0,
    ),
    "a service that refuses calls beyond a few at once, though there is a rate": Job(
        lambda: run(refusing_beyond(5), 800, rate_limit=RateLimit(240)),
        "limit",
        "calls waited for rate_limit=, and still the service refused",
        "likely",
        lambda text: run(refusing_beyond(5), 800, capacity=5),
        0.29,
    ),
    "a dead service": Job(
        lambda: run(dead_for_a_minute(), breaker=CircuitBreaker()),
        "breaker",
        "the circuit breaker was open: the service failed too often (mostly ConnectionError)",
        "sure",
        lambda text: run(steady(), breaker=CircuitBreaker()),
    ),
    "a slow row at the head of a small queue": Job(
        lambda: run(sometimes_slow(), 1200, queue_size=40),
        "head_of_line",
        "the queue was full behind a slow row",
        "sure",
        lambda text: run(sometimes_slow(), 1200, queue_size=int(advised(text, "queue_size"))),
    ),
    "rows in back-off at the head of a small queue": Job(
        lambda: run(failing(1), 2500, queue_size=250, retry=LATER),
        "head_of_line",
        "the queue was full behind rows that waited to be tried again (mostly ConnectionError)",
        "sure",
        lambda text: run(
            failing(1),
            2500,
            queue_size=int(advised(text, "queue_size")),
            retry=LATER,
        ),
    ),
    "stragglers": Job(
        lambda: run(sometimes_slow(only_once=True), 905),
        "winding_down",
        "tasks waited for their last calls",
        "likely",
        lambda text: run(
            sometimes_slow(only_once=True), 905, attempt_timeout=advised(text, "attempt_timeout"), retry=RETRY
        ),
    ),
    "calls that time out": Job(
        lambda: run(sometimes_slow(60.0, 5), timeout=5.0, on_error="null", queue_size=100_000),
        "calls_busy",
        "with calls that ran into timeout=5",
        "sure",
        lambda text: run(
            sometimes_slow(60.0, 5), timeout=advised(text, "timeout"), on_error="null", queue_size=100_000
        ),
    ),
    "calls that fail": Job(
        lambda: run(failing(1), retry=RETRY),
        "calls_busy",
        "50% of the attempts were retries (mostly ConnectionError): what fails is the limit",
        "likely",
        lambda text: run(failing(0), retry=RETRY),
    ),
    "a queue of one batch": Job(
        lambda: run(in_batches, rows=5000, queue_size=50, batch_size=25),
        "head_of_line",
        "2 calls filled the queue of 50 rows, with 20 slots for calls",
        "likely",
        lambda text: run(in_batches, rows=5000, queue_size=int(advised(text, "queue_size")), batch_size=25),
    ),
    "a slow store": Job(
        lambda: from_store(0.3),
        "store",
        "rows waited for stored results: the store is the limit (1,000 of 1,000 rows were found there)",
        "sure",
        lambda text: from_store(0.001),
    ),
    "a service that takes hardly fewer than there are slots": Job(
        lambda: run(few_at_once(10), capacity=15),
        "calls_busy",
        "the service or capacity is the limit; try capacity=30: if calls then take longer, the service is the limit",
        "likely",
        lambda text: run(few_at_once(10), capacity=int(advised(text, "capacity"))),
        0.0,
    ),
    "a service that more calls break": Job(
        lambda: run(broken_by_more(10)),
        "calls_busy",
        'the service answers fewer calls the more it has; try capacity=10, or capacity="auto"',
        "likely",
        lambda text: run(broken_by_more(10), capacity=int(advised(text, "capacity"))),
        0.95,
    ),
    "input that comes in bursts": Job(
        lambda: run(steady(), 5000, every=5.0, batch=1000),
        "calls_busy",
        "but for 44% no rows came: more capacity alone would wait for that; more partitions on more cores, or less",
        "likely",
        lambda text: run(steady(), 5000),
    ),
    "a rate just below what the slots do": Job(
        lambda: run(steady(), 2000, rate_limit=RateLimit(390)),
        "calls_busy",
        "calls waited for a permit: more capacity alone would wait for that; a higher rate_limit, if the service",
        "likely",
        lambda text: run(steady(), 2000),
    ),
    "a function before a filter and a slow function": Job(
        lambda: behind_a_filter(2.0),
        "calls_busy",
        "results waited to be read: more capacity alone would wait for that; a faster reader (the next function",
        "likely",
        lambda text: behind_a_filter(0.01),
    ),
    "a service that is asked for a little too much": Job(
        lambda: run(token_bucket(300), 5000),
        "calls_busy",
        "calls: it allows fewer than were made, and capacity changes nothing; a rate_limit just below what it allows",
        "likely",
        lambda text: run(token_bucket(300), 5000, rate_limit=RateLimit(295)),
        0.0,
    ),
    "rows that fail": Job(
        lambda: run(bad_rows(2), on_error="null"),
        "calls_busy",
        "50% of the rows failed (mostly ValueError): their calls were made in vain; first look why they fail",
        "likely",
        lambda text: run(bad_rows(1000), on_error="null"),
        0.0,
    ),
    "back-off that is most of the time": Job(
        lambda: run(failing(3), retry=BACKOFF),
        "calls_busy",
        "75% of the attempts were retries (mostly ConnectionError): what fails is the limit",
        "likely",
        lambda text: run(failing(0), retry=BACKOFF),
    ),
    "a few calls that hang": Job(
        lambda: run(hanging(200), 3000, timeout=30.0, on_error="null"),
        "winding_down",
        "tasks waited for their last calls: half of all took 50 ms, the longest 30 s; timeout=0.11, twice what 99%",
        "sure",
        lambda text: run(hanging(200), 3000, timeout=advised(text, "timeout"), on_error="null"),
    ),
    "calls that hang, and are tried again": Job(
        lambda: run(hanging(20), 2000, attempt_timeout=5.0, timeout=60.0, retry=RETRY),
        "calls_busy",
        "with calls that ran into attempt_timeout=5; attempt_timeout=0.11, twice what 99% of the others took",
        "sure",
        lambda text: run(
            hanging(20), 2000, attempt_timeout=advised(text, "attempt_timeout"), timeout=60.0, retry=RETRY
        ),
    ),
    "more calls than a service answers in time": Job(
        lambda: run(few_at_once(4, 0.5), 600, capacity=100, timeout=5.0, on_error="null"),
        "calls_busy",
        "with calls that ran into timeout=5; only the first calls were quick: the service has too many at once",
        "likely",
        lambda text: run(
            few_at_once(4, 0.5), 100, capacity=4, timeout=5.0, on_error="null"
        ),  # 100 rows, and none fails
        0.58,
    ),
    "a service that fails at once if it has too many": Job(
        lambda: run(failing_beyond(20), 800, capacity=40, retry=MANY_TIMES),
        "calls_busy",
        "of the attempts were retries (mostly ConnectionError): what fails is the limit; a service that does not fail",
        "likely",
        lambda text: run(steady(), 800, capacity=40),
    ),
    "a client that takes long to open": Job(
        lambda: run(with_client, resources={"client": slow_to_open}),
        "winding_down",
        "resources were opened and closed, 4 s in a task; resources that open faster would save",
        "sure",
        lambda text: run(with_client, resources={"client": quick_to_open}),
    ),
    "fewer rows than slots": Job(
        lambda: run(steady(2.0), 60, capacity=100),
        "winding_down",
        "a task had 60 rows for 100 slots; there is only one task: only faster calls would end it earlier",
        "sure",
        lambda text: run(steady(1.0), 60, capacity=100),
        0.5,
    ),
    "rows in back-off at the end": Job(
        lambda: run(failing(1), retry=RetryStrategy.fixed_delay(attempts=2, delay=10.0)),
        "winding_down",
        "tasks waited for the last of the rows that waited to be tried again (mostly ConnectionError); shorter",
        "likely",
        lambda text: run(failing(1), retry=RETRY),
    ),
    "rows at the end that the service has refused": Job(
        lambda: run(refusing_a_fifth(20.0), 600),
        "winding_down",
        "tasks waited for the last of the rows that the service had refused for a while (mostly ThrottledError); a "
        "rate_limit just below what it allows, or a job_capacity",
        "likely",
        lambda text: run(refusing_a_fifth(20.0), 600, rate_limit=RateLimit(100)),
        0.72,
    ),
    "a capacity that may not grow": Job(
        lambda: run(steady(), 20_000, capacity=AdaptiveCapacity(1, 30)),
        "calls_busy",
        "30 at most), and they took 50 ms from first to last: the service was not the limit; a larger maximum would",
        "likely",
        lambda text: run(steady(), 20_000, capacity=AdaptiveCapacity(1, 60)),
        0.48,
    ),
    "a store that takes long to put": Job(
        lambda: run(steady(), 2000, capacity=500, store=Store(0.0, 0.9), version="1"),
        "store",
        "0 of 2,000 rows were found there); to do without store=, if rows do not come again, would save",
        "sure",
        lambda text: run(steady(), 2000, capacity=500),
    ),
    "equal rows whose calls fail": Job(
        lambda: equal_rows(None),
        "winding_down",
        "rows waited for the calls of equal rows, which failed (mostly ValueError) and were made again for each",
        "likely",
        lambda text: equal_rows(60.0),
        0.97,
    ),
    "calls that hang, and some equal rows": Job(
        lambda: rejects_and_hanging_calls(attempt_timeout=5.0),
        "winding_down",
        "tasks waited for their last calls: half of all took 50 ms, the longest 5.1 s; attempt_timeout=0.5, twice",
        "sure",
        lambda text: rejects_and_hanging_calls(attempt_timeout=advised(text, "attempt_timeout")),
    ),
    "many rows of few arguments": Job(
        lambda: few_arguments(1.0),
        "winding_down",
        "slots were free, but rows waited for the calls of equal rows; shorter calls would help",
        "likely",
        lambda text: few_arguments(0.5),
        0.5,
    ),
    "rows that fail each time": Job(
        lambda: rejects(None),
        "limit",
        "96% of the called rows failed for good (mostly ValueError): the store keeps no errors; error_ttl=",
        "likely",
        lambda text: rejects(60.0),
        0.93,
    ),
    "hits alone": Job(
        lambda: from_store(0.0, every=0.1),
        "input",
        "nothing was called, as 1,000 of 1,000 rows were found in the store",
        "sure",
        lambda text: from_store(0.0, every=0.1),
        0.0,
    ),
}


def test_a_short_run_from_the_store_alone_is_not_too_short_to_tell() -> None:
    """Nothing was called, however long it took: no slot was ever busy."""
    found = verdict(figures := from_store(0.01))
    assert 0 < figures["seconds"] < 1
    assert found.text == "all 1,000 rows came from the store: no option of the calls changes that"
    assert found.sureness == "sure"
    assert figures["calls"] == 0


def test_equal_rows_that_are_called_one_after_another_are_no_slow_resources() -> None:
    """A task waits for eleven calls of 3 s at its end, of which the longest takes 3 s: it was opening resources."""

    async def call(n: int) -> int:
        await asyncio.sleep(3.0 if n == 7 else 0.05)
        if n == 7:
            raise ConnectionError("refused")  # which no store keeps
        return n

    rows = [*range(300), *[7] * 10]
    figures = run_of_a_function(call, rows, capacity=20, on_error="null", store=Store(0.0), version="1")
    assert figures["seconds"] == pytest.approx(33.0, abs=0.1)
    assert "tasks waited for their last calls: half of all took 50 ms, the longest 3 s" in verdict(figures).text


@pytest.mark.parametrize("rejected", [False, True])
def test_rows_from_the_store_alone_keep_no_slot_busy(rejected: bool) -> None:
    """A slot is taken to see which rows have a call, on a real clock: that takes a moment, and none has.

    With stored errors in it a run of hits alone was 45% calls busy.
    """
    store = Store(0.0)
    store.error_ttl = 60.0
    call = bad_rows(40) if rejected else steady()
    run(call, store=store, version="1", on_error="null")
    engine = Engine(call, capacity=20, store=store, version="1", on_error="null", loop=asyncio.new_event_loop())
    engine.feed(range(1000))
    engine.end()
    engine.run()
    (figures,) = figures_of([engine.counted], {})
    assert (figures["calls"], figures["failures"], figures["time"]["calls_busy"]) == (0, 25 * rejected, 0)
    assert figures["time"]["store"] > 0


async def in_batches(values: pd.Series) -> pd.Series:  # type: ignore[type-arg]
    await asyncio.sleep(0.05)
    return values


def promise(text: str) -> float | None:
    """The part of the time that the advice would save; None if there is no number."""
    if "would change little" in text:
        return 0.0
    if "halve the time" in text:
        return 0.5
    if "save nearly all" in text:
        return 1.0
    found = re.search(r"save (?:about|at most) ([\d.]+)%", text)
    return float(found[1]) / 100 if found else None


@pytest.mark.parametrize("name", JOBS)
def test_the_advice_keeps_its_promise(name: str) -> None:
    """The cause is the one that the job was made with; following the advice saves what was told, to within a third."""
    job = JOBS[name]
    before = job.run()
    found = verdict(before)
    assert job.cause in found.text
    assert (found.state, found.sureness) == (job.state, job.sureness), found.text
    after = job.follow(found.text)
    saved = 1 - after["seconds"] / before["seconds"]
    told = promise(found.text)
    assert (told is None) is (job.saves is not None), found.text
    if told is None:
        assert saved == pytest.approx(job.saves, abs=0.1)
    else:
        assert abs(saved - told) <= told / 3


TAILS: dict[str, Callable[[int], Figures]] = {
    "1 in 100 takes 1 s": lambda capacity: run(long_tailed(100, 1.0), 3000, capacity),
    "1 in 100 takes 10 s": lambda capacity: run(long_tailed(100, 10.0), 3000, capacity),
    "1 in 1,000 takes 5 s": lambda capacity: run(long_tailed(1000, 5.0), 3000, capacity),
    "1 in 10 takes 2 s": lambda capacity: run(long_tailed(10, 2.0), 3000, capacity),
    "lognormal, sigma 1.2": lambda capacity: run(uneven(1.2), 3000, capacity),
    "lognormal, sigma 1.6": lambda capacity: run(uneven(1.6), 3000, capacity),
}


@pytest.mark.parametrize("capacity", [20, 100])
@pytest.mark.parametrize("tail", TAILS)
def test_rows_that_are_slow_by_themselves_were_not_overtaken(tail: str, capacity: int) -> None:
    """Their service takes more calls: a pool was not the limit."""
    text = verdict(TAILS[tail](capacity)).text
    assert "pool" not in text
    assert "capacity" in text or "last calls" in text


@pytest.mark.parametrize("until", [2.0, 5.0])
def test_calls_that_wait_for_a_connection_are_known_before_they_end(until: float) -> None:
    """Those that have ended took 50 ms each, from first to last; most of those in flight do not come back."""
    engine = Engine(newest_first(4), capacity=20)
    engine.feed(range(2000))
    engine.run(until=until)
    (figures,) = figures_of([engine.counted], {"capacity": 20})
    assert promise(verdict(figures).text) is None


@pytest.mark.parametrize("capacity", [20, 100])
def test_advice_for_a_service_that_takes_few_is_not_taken_back(capacity: int) -> None:
    """With the capacity that it names the verdict is the same, not that capacity is the limit."""

    def of_two(capacity: int) -> str:
        return verdict(run_of_tasks(few_at_once(4), range(1000), range(1000), capacity=capacity)).text

    again = of_two(int(advised(of_two(capacity), "capacity")))
    assert "more capacity changes nothing" in again
    assert "capacity=" not in again


PAGE = (Path(__file__).parents[2] / "docs" / "slow.md").read_text()


@pytest.mark.parametrize(
    "name", ["a service that takes 4 at once", "a pool of 4 whose connections go to the newest call"]
)
def test_the_page_says_what_the_verdict_says(name: str) -> None:
    """Word for word, but for line breaks; the page has more of them, see test_slow_jobs."""
    quoted = " ".join(line.removeprefix("> ") for line in PAGE.splitlines())
    assert verdict(JOBS[name].run()).text in quoted


FAULTS: dict[str, Callable[[], Figures]] = {
    "an outage": lambda: run(dead_for_a_minute(), capacity=10, breaker=CircuitBreaker()),
    "an outage, and retries": lambda: run(
        dead_for_a_minute(), breaker=CircuitBreaker(), retry=RetryStrategy.fixed_delay(attempts=5, delay=1.0)
    ),
    "an outage, and deadlines": lambda: run(
        dead_for_a_minute(), breaker=CircuitBreaker(), retry=RETRY, timeout=3.0, on_error="null"
    ),
    "an outage, equal rows, and a store": lambda: run_of_a_function(
        dead_for_a_minute(), [n % 50 for n in range(1000)], capacity=10, breaker=CircuitBreaker(), retry=RETRY,
        store=Store(0.01), version="1",
    ),
    "refusals and retries": lambda: run(refusing(), retry=RETRY, on_error="null", timeout=5.0),
    "refusals that are errors like others": lambda: run(
        refusing(), retry=RetryStrategy.fixed_delay(attempts=2, delay=1.0, max_retry_after=0), on_error="null"
    ),
    "back-off until the deadline": lambda: run(
        failing(5), retry=RetryStrategy.fixed_delay(attempts=9, delay=1.0), timeout=3.0, on_error="null"
    ),
    "a rate, and an outage": lambda: run(dead_for_a_minute(), rate_limit=RateLimit(100), breaker=CircuitBreaker()),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_no_figure_is_negative(fault: str) -> None:
    """And there are never more calls in flight than slots: a pause of the service's is no time in which a call ran."""
    figures = FAULTS[fault]()
    assert [found for found in numbers_in(figures) if found < 0] == []
    assert figures["in_flight"]["mean"] <= figures["in_flight"]["peak"] <= 20
    assert figures["in_flight"]["mean"] > 0


@pytest.mark.parametrize("until", [0.5, 1.5, 30.0, 59.9, 60.5])
def test_no_figure_is_negative_while_a_task_runs(until: float) -> None:
    """Nor when it is cut off in the middle of an outage."""
    engine = Engine(dead_for_a_minute(), capacity=10, breaker=CircuitBreaker(), retry=RETRY)
    engine.feed(range(1000))
    seen: list[Any] = []
    engine.loop.call_at(until - 0.1, lambda: (engine.look(), seen.append(engine.counted)))
    engine.run(until=until)
    for counted in (*seen, engine.counted):
        (figures,) = figures_of([counted], {})
        assert [found for found in numbers_in(figures) if found < -1e-9] == []
        assert figures["in_flight"]["mean"] <= 10 + 1e-9


def numbers_in(plain: Any) -> Iterator[float]:
    if isinstance(plain, (int, float)):
        yield plain
    elif isinstance(plain, (dict, list)):
        for one in plain.values() if isinstance(plain, dict) else plain:
            yield from numbers_in(one)
