"""Jobs whose cause is known: the verdict tells it, and a second run that follows the advice bears it out."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import AdaptiveCapacity, AsyncStream, CircuitBreaker, RateLimit, ResultStore, RetryStrategy, http
from asyncudf._observe.reports.summary import summary
from asyncudf._observe.reports.verdict import verdict
from tests.kit.engines import Engine
from tests.kit.runs import figures_of, run_of_a_function, run_of_a_stream, run_of_tasks
from tests.kit.thorough import examples

Figures = dict[str, Any]
Call = Callable[[int], Any]


def now() -> float:
    return asyncio.get_running_loop().time()


# Services, and functions that call them.


def taking(seconds: Callable[[int], float]) -> Call:
    async def call(n: int) -> int:
        await asyncio.sleep(seconds(n))
        return n

    return call


def steady(seconds: float = 0.05) -> Call:
    return taking(lambda n: seconds)


def long_tailed(one_in: int, seconds: float) -> Call:
    rng = random.Random(3)
    return taking(lambda n: seconds if rng.random() < 1 / one_in else 0.05)


def uneven(sigma: float) -> Call:
    rng = random.Random(3)
    return taking(lambda n: 0.05 * rng.lognormvariate(0, sigma))


def sometimes_slow(seconds: float = 5.0, every: int = 300) -> Call:
    return taking(lambda n: seconds if n % every == 1 else 0.05)


def slow_at_first(seconds: float, every: int, rest: int) -> Call:
    """A call of some rows is slow, but not if it is made again."""
    tried = Counter[int]()

    def of(n: int) -> float:
        tried[n] += 1
        return seconds if n % every == rest and tried[n] == 1 else 0.05

    return taking(of)


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
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]
        free -= 1
        await asyncio.sleep(0.05 * rng.uniform(1 - jitter, 1 + jitter))
        free += 1
        if waiting:
            waiting.popleft().set_result(None)
        return n

    return call


def shared_processor(at_once: int) -> Call:
    """A service that answers all at the same time, each the slower the more there are."""
    rng, flying = random.Random(7), 0

    async def call(n: int) -> int:
        nonlocal flying
        flying += 1
        work = 0.05 * rng.uniform(0.7, 1.3)
        while work > 1e-9:
            step, speed = min(0.005, work * max(1.0, flying / at_once)), min(1.0, at_once / flying)
            await asyncio.sleep(step)
            work -= step * speed
        flying -= 1
        return n

    return call


def under_load(seconds: Callable[[int], float]) -> Call:
    """What a call takes depends on how many there are when it begins."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        flying += 1
        await asyncio.sleep(seconds(flying))
        flying -= 1
        return n

    return call


def slower_with_more(at_once: int) -> Call:
    return under_load(lambda flying: 0.05 * max(1.0, flying / at_once))


def broken_by_more(at_once: int) -> Call:
    return under_load(lambda flying: 0.05 if flying <= at_once else 2.0)


def failing_beyond(at_once: int, error: Exception, seconds: float, jitter: float = 0.0, after: float = 0.0) -> Call:
    """A service that fails, at once or after a moment, while it has so many calls."""
    flying = 0

    async def call(n: int) -> int:
        nonlocal flying
        if flying >= at_once:
            await asyncio.sleep(after)
            raise error
        flying += 1
        await asyncio.sleep(seconds + jitter * (n * 7919 % 100) / 100)
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


def checked(check: Callable[[int], None]) -> Call:
    """Each call takes 50 ms, and ends with what `check` raises."""

    async def call(n: int) -> int:
        await asyncio.sleep(0.05)
        check(n)
        return n

    return call


def bad_rows(one_in: int) -> Call:
    def check(n: int) -> None:
        if n % one_in == 0:
            raise ValueError("no such row")

    return checked(check)


def failing(times: int) -> Call:
    """Each row fails so often before it has its result."""
    tried = Counter[int]()

    def check(n: int) -> None:
        tried[n] += 1
        if tried[n] <= times:
            raise ConnectionError("refused")

    return checked(check)


def dead_for_a_minute() -> Call:
    def check(n: int) -> None:
        if 1 < now() < 60:
            raise ConnectionError("refused")

    return checked(check)


def refusing() -> Call:
    """It takes 50 calls in each second."""
    accepted = Counter[int]()

    async def call(n: int) -> int:
        begun = now()
        accepted[int(begun)] += 1
        await asyncio.sleep(0.05)
        if accepted[int(begun)] > 50:
            raise http.ThrottledError(429, retry_after=int(begun) + 1 - begun)
        return n

    return call


def token_bucket(rate: float) -> Call:
    """It takes this many calls in a second, and 50 more at first."""
    left, looked = 50.0, 0.0

    def check(n: int) -> None:
        nonlocal left, looked
        left, looked = min(50.0, left + (now() - looked) * rate), now()
        if left < 1:
            raise http.ThrottledError(429, retry_after=1.0)
        left -= 1

    return checked(check)


def refusing_a_fifth(wait: float) -> Call:
    """It answers 120 calls in a second; of more it refuses the fifth, with a long wait."""
    ended = deque[float]()

    def check(n: int) -> None:
        ended.append(now())
        while ended[0] < now() - 1:
            ended.popleft()
        if len(ended) > 120 and n % 5 == 0:
            raise http.ThrottledError(429, retry_after=wait)

    return checked(check)


def rejecting_and_hanging() -> Call:
    """12 calls hang when they are made first, 8 arguments are rejected."""
    first = slow_at_first(1e6, 25, 7)

    async def call(n: int) -> int:
        await first(n)
        if n % 40 == 3:
            raise ValueError("no such row")
        return n

    return call


def in_batches() -> Call:
    async def call(values: pd.Series) -> pd.Series:  # type: ignore[type-arg]
        await asyncio.sleep(0.05)
        return values

    return call


def with_client() -> Call:
    async def call(n: int, client: None) -> int:
        await asyncio.sleep(0.05)
        return n

    return call


def client(seconds: float) -> dict[str, Any]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        await asyncio.sleep(seconds)
        yield

    return {"client": opened}


class Store(ResultStore):
    """Has what was put, after a while."""

    def __init__(self, seconds: float = 0.0, to_put: float = 0.0, error_ttl: float | None = None) -> None:
        super().__init__()
        self.seconds, self.to_put, self.error_ttl = seconds, to_put, error_ttl
        self.kept: dict[bytes, bytes] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        await asyncio.sleep(self.seconds)
        return [self.kept.get(key) for key in keys]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await asyncio.sleep(self.to_put)
        self.kept.update(items)


# Jobs.


def run(call: Callable[[], Call], rows: Any = 1000, capacity: Any = 20, **options: Any) -> Figures:
    return run_of_a_function(call(), range(rows) if isinstance(rows, int) else rows, capacity=capacity, **options)


def stored(call: Callable[[], Call] = steady, seconds: float = 0.0, to_put: float = 0.0, **options: Any) -> Figures:
    """With a store."""
    store = Store(seconds, to_put, options.pop("error_ttl", None))
    return run(call, store=store, version="1", **options)


def from_store(seconds: float, **options: Any) -> Figures:
    """All of it is there, as it was called for before."""
    store = Store()
    run(steady, store=store, version="1")
    store.seconds = seconds
    return run(steady, store=store, version="1", batch=50, **options)


def two_tasks(capacity: int) -> Figures:
    return run_of_tasks(few_at_once(4), range(1000), range(1000), capacity=capacity)


def chain(seconds: float, before: float = 0.01, one_in: int = 1) -> Figures:
    """The first of two functions; one row in so many comes to the second."""

    def build(stream: AsyncStream) -> AsyncStream:
        called = stream.ordered_wait(steady(before), capacity=10, as_="a")
        if one_in > 1:
            called = called.filter(lambda row: row["n"] % one_in == 0)
        return called.ordered_wait(steady(seconds), "n", capacity=10, as_="b")

    return run_of_a_stream(build, [{"n": n} for n in range(3000)], "n int", capacity=10)[0]


def advised(text: str, option: str) -> float:
    """What the verdict wants an option to be."""
    return float(re.findall(rf"\b{option}=([\d_.]*\d)", text)[-1].replace("_", ""))


def retries(attempts: int, delay: float) -> RetryStrategy:
    return RetryStrategy.fixed_delay(attempts=attempts, delay=delay)


def per_task(calls: float, **others: Any) -> RateLimit:
    return RateLimit(calls, scope="task", **others)


def tokens(n: int) -> float:
    return 200.0


class Job(NamedTuple):
    """A job, what its verdict has to tell, and the change that follows the advice."""

    options: dict[str, Any]
    state: str
    change: dict[str, Any]
    cause: str
    saves: float | None = None  # where the verdict gives no number: what following it saves
    sure: bool = False
    run: Callable[..., Figures] = run


ADVISED = object()  # a value of a change: the number that the verdict names
TRIED = retries(3, 0.001)
BACKOFF = RetryStrategy.exponential_backoff(attempts=5, initial=1.0, maximum=20.0)
BY_MINUTE = 'RateLimit(600, per="minute", scope="task")'
BY_TOKENS = 'RateLimit(60_000, per="minute", cost=tokens, scope="task")'
TRY_MORE = "slots of a task were busy and calls took {}; try capacity={}: if calls then take longer, the service is"
SATURATED = (
    "all slots of a task were busy, but calls were shorter while few were in flight: the service, or the client's "
    'pool, is the limit, and more capacity changes nothing; capacity="auto" finds how many calls it takes'
)
BLOCKED = (
    "synchronous code, or a machine with too few cores, blocked the event loop: other calls waited, and more capacity "
    "changes nothing"
)
FAILING = "all slots of a task were busy, with many calls that fail (mostly {}); first look why"
REFUSED = "the service refused {} calls: it allows fewer than were made; a rate_limit just below what it allows, or a"
WAITED = "tasks waited for their last calls: the longest took {}"
IN_BACK_OFF = "rows that waited to be tried again (mostly ConnectionError) held the task up; shorter delays of retry="
UNKEPT = "most calls were for rows that fail for good (mostly ValueError), and the store keeps no errors; error_ttl= of"
FEW_LEFT = "fewer rows were left than slots, or resources opened and closed; tasks ran at the same time: only"
HELPS = ": what you allow is the limit; a higher one, if the service allows it, helps until another binds"
FOUR, LARGE = partial(few_at_once, 4), {"queue_size": 100_000}
MORE, AUTO = {"capacity": ADVISED}, {"capacity": "auto"}
BUSY, HEAD, END = "calls_busy", "head_of_line", "start_and_end"

JOBS = {
    "too few slots": Job(
        {"call": steady}, BUSY, MORE,
        "calls took 50 ms; capacity=40 would save about 50% of the time if the service takes so many at once"),
    "a service that takes any number, and not always as long": Job(
        {"call": partial(uneven, 0.35)}, BUSY, MORE, TRY_MORE.format("53 ms", 40), 0.5),
    "a service that takes 4 at once": Job({"call": FOUR}, BUSY, {"capacity": 40}, SATURATED, 0.0),
    "a service that takes 4 at once, and capacity that is found": Job({"call": FOUR}, BUSY, AUTO, SATURATED, 0.0),
    "a service that takes 4 at once, and not always as long": Job(
        {"call": partial(few_at_once, 4, jitter=0.5)}, BUSY, AUTO, SATURATED, 0.0),
    "a client with a pool of 4": Job(
        {"call": partial(few_at_once, 4, 0.2)}, BUSY, {"call": partial(few_at_once, 20, 0.2)}, SATURATED, 0.8),
    "a service that takes 4 at once, and a large capacity": Job(
        {"call": FOUR, "capacity": 100}, BUSY, AUTO, SATURATED, 0.0),
    "a service that takes 4 at once from two tasks": Job(
        {"capacity": 50}, BUSY, {"capacity": 100}, SATURATED, 0.0, run=two_tasks),
    "a pool of 4 whose connections go to the newest call": Job(
        {"call": partial(newest_first, 4)}, BUSY, MORE, TRY_MORE.format("248 ms", 40), 0.0),
    "a capacity that was chosen for what the service takes": Job(
        {"call": FOUR, "capacity": 4}, BUSY, {"capacity": 8}, TRY_MORE.format("50 ms", 8), 0.0),
    "a service that takes hardly fewer than there are slots": Job(
        {"call": partial(few_at_once, 10), "capacity": 15}, BUSY, MORE, TRY_MORE.format("75 ms", 30), 0.0),
    "a service that shares one processor": Job({"call": partial(shared_processor, 4)}, BUSY, AUTO, SATURATED, 0.0),
    "a service that is slower the more calls there are": Job(
        {"call": partial(slower_with_more, 4)}, BUSY, AUTO, SATURATED, 0.0),
    "a service that more calls break": Job({"call": partial(broken_by_more, 10)}, BUSY, AUTO, SATURATED, 0.8),
    "a capacity that may not grow": Job(
        {"call": steady, "rows": 10_000, "capacity": AdaptiveCapacity(1, 30)}, BUSY,
        {"capacity": AdaptiveCapacity(1, 60)}, "calls took 50 ms; try a larger maximum of capacity", 0.46),
    "slow input": Job(
        {"call": steady, "every": 0.5, "batch": 20}, "input", {"every": 0.0},
        "no rows came: the query or function before is the limit; more partitions, or less work there,", sure=True),
    "a slow reader": Job(
        {"seconds": 0.5}, "output", {"seconds": 0.01},
        "results waited to be read: what reads them is the limit; a faster reader,", sure=True, run=chain),
    "a function before a filter and a slow function": Job(
        {"seconds": 2.0, "before": 0.05, "one_in": 20}, BUSY, {"seconds": 0.01},
        "all slots of a task were busy, but for 44% results waited to be read: what reads them is the", run=chain),
    "calls that block": Job(
        {"call": partial(blocking, 0.06), "rows": 100, "capacity": 100}, "blocked_loop",
        {"call": partial(steady, 0.06)}, BLOCKED),
    "calls that block for a moment": Job(
        {"call": partial(blocking, 0.004), "rows": 1000, "capacity": 100}, BUSY, {"call": partial(steady, 0.004)},
        BLOCKED),
    "calls that wait, and then block": Job(
        {"call": partial(blocking, 0.03, before=0.05)}, "blocked_loop", {"call": partial(steady, 0.08)}, BLOCKED, 0.87),
    "a rate": Job(
        {"call": steady, "rate_limit": RateLimit(50)}, "limit", {"rate_limit": None},
        "calls waited for RateLimit(50): what you allow is the limit; a higher one, if the service allows it, would"),
    "two rates": Job(
        {"call": steady, "rate_limit": [per_task(20), per_task(600, per="minute")]}, "limit",
        {"rate_limit": [per_task(20), per_task(6000, per="minute")]}, BY_MINUTE + HELPS, 0.5),
    "a rate of the calls, and one of what they cost": Job(
        {"call": steady, "rate_limit": [per_task(20), per_task(60_000, per="minute", cost=tokens)]}, "limit",
        {"rate_limit": [per_task(20), per_task(600_000, per="minute", cost=tokens)]}, BY_TOKENS + HELPS, 0.75),
    "a rate, and few calls at once": Job(
        {"call": steady, "rate_limit": per_task(200), "job_capacity": 2}, "limit", {"job_capacity": 20},
        "job_capacity" + HELPS, 0.8),
    "a rate just below what the slots do": Job(
        {"call": steady, "rows": 2000, "rate_limit": RateLimit(390)}, BUSY, {"rate_limit": None},
        "all slots of a task were busy, but for 48% calls waited for RateLimit(390): what you allow is the limit"),
    "a service that refuses calls": Job(
        {"call": refusing}, "limit", {"rate_limit": RateLimit(49)}, REFUSED.format(63), 0.1),
    "a service that refuses calls, though there is a rate": Job(
        {"call": refusing, "rate_limit": RateLimit(500)}, "limit", {"rate_limit": RateLimit(49)}, REFUSED.format(63),
        0.1),
    "a service that refuses calls beyond a few at once, though there is a rate": Job(
        {"call": partial(failing_beyond, 5, http.ThrottledError(429, retry_after=1.0), 0.01, 0.02), "rows": 800,
         "rate_limit": RateLimit(240)}, "limit", {"rate_limit": None, "capacity": 5}, REFUSED.format(80), 0.29),
    "a service that is asked for a little too much": Job(
        {"call": partial(token_bucket, 300), "rows": 5000}, BUSY, {"rate_limit": RateLimit(295)},
        REFUSED.format("1,586"), 0.0),
    "a dead service": Job(
        {"call": dead_for_a_minute, "breaker": CircuitBreaker()}, "breaker", {"call": steady},
        "the circuit breaker was open: the service failed too often (mostly ConnectionError)", sure=True),
    "a slow row at the head of a small queue": Job(
        {"call": sometimes_slow, "rows": 1200, "queue_size": 40}, HEAD, {"queue_size": ADVISED},
        "the queue was full behind a slow row: half of the calls took 50 ms, the longest 5 s; queue_size=2_000 would",
        sure=True),
    "a very slow row at the head of a small queue": Job(
        {"call": partial(sometimes_slow, 20.0), "rows": 1200, "queue_size": 40}, HEAD, {"queue_size": ADVISED},
        "the queue was full behind a slow row: half of the calls took 50 ms, the longest 20 s; queue_size=8_000 would",
        sure=True),
    "rows in back-off at the head of a small queue": Job(
        {"call": partial(failing, 1), "rows": 2500, "queue_size": 250, "retry": retries(2, 5.0)}, HEAD,
        {"queue_size": ADVISED}, "the queue was full behind a slow row: half of the calls took 5.1 s", sure=True),
    "rows in back-off at the head of a queue that is nearly large enough": Job(
        {"call": partial(failing, 1), "rows": 2500, "queue_size": 625, "retry": retries(2, 5.0)}, HEAD,
        {"retry": retries(2, 0.25)}, IN_BACK_OFF),
    "a queue of one batch": Job(
        {"call": in_batches, "rows": 5000, "queue_size": 50, "batch_size": 25}, HEAD, {"queue_size": ADVISED},
        "the queue was full behind a slow row: half of the calls took 50 ms, the longest 50 ms; queue_size=500 would",
        sure=True),
    "stragglers": Job(
        {"call": partial(slow_at_first, 5.0, 300, 1), "rows": 905}, END,
        {"attempt_timeout": ADVISED, "retry": TRIED}, WAITED.format("5 s; attempt_timeout=0.1, twice what 99%")),
    "calls that time out": Job(
        {"call": partial(sometimes_slow, 60.0, 5), "timeout": 5.0, "on_error": "null", **LARGE}, BUSY,
        {"timeout": ADVISED}, "with calls that ran into timeout=5; timeout=0.1, twice what 99% of the", sure=True),
    "calls that fail": Job(
        {"call": partial(failing, 1), "retry": TRIED}, BUSY, {"call": partial(failing, 0)},
        FAILING.format("ConnectionError"), 0.5),
    "back-off that is most of the time": Job(
        {"call": partial(failing, 3), "retry": BACKOFF}, BUSY, {"call": partial(failing, 0)},
        FAILING.format("ConnectionError"), 0.83),
    "a service that fails at once if it has too many": Job(
        {"call": partial(failing_beyond, 20, ConnectionError("busy"), 0.05, after=0.005), "rows": 800, "capacity": 40,
         "retry": retries(1000, 0.05)}, BUSY, {"call": steady}, FAILING.format("ConnectionError"), 0.5),
    "rows that fail": Job(
        {"call": partial(bad_rows, 2), "on_error": "null"}, BUSY, {"call": partial(bad_rows, 1000)},
        FAILING.format("ValueError"), 0.0),
    "a few calls that hang": Job(
        {"call": partial(slow_at_first, 1e6, 200, 7), "rows": 3000, "timeout": 30.0, "on_error": "null"}, END,
        {"timeout": ADVISED}, WAITED.format("30 s; timeout=0.1, twice what 99%")),
    "calls that hang, and are tried again": Job(
        {"call": partial(slow_at_first, 1e6, 20, 7), "rows": 2000, "attempt_timeout": 5.0, "timeout": 60.0,
         "retry": TRIED}, BUSY, {"attempt_timeout": ADVISED},
        "with calls that ran into attempt_timeout=5; attempt_timeout=0.1, twice what 99% of the others took",
        sure=True),
    "more calls than a service answers in time": Job(
        {"call": partial(few_at_once, 4, 0.5), "rows": 600, "capacity": 100, "timeout": 5.0, "on_error": "null"}, BUSY,
        {"rows": 100, "capacity": 4}, SATURATED, 0.58),  # of which none fails
    "a client that takes long to open": Job(
        {"call": with_client, "resources": client(4.0)}, END, {"resources": client(0.0)}, FEW_LEFT, 0.62, sure=True),
    "fewer rows than slots": Job(
        {"call": partial(steady, 2.0), "rows": 60, "capacity": 100}, END, {"call": partial(steady, 1.0)}, FEW_LEFT, 0.5,
        sure=True),
    "rows in back-off at the end": Job(
        {"call": partial(failing, 1), "retry": retries(2, 10.0)}, END, {"retry": TRIED}, IN_BACK_OFF),
    "rows at the end that the service has refused": Job(
        {"call": partial(refusing_a_fifth, 20.0), "rows": 600}, END, {"rate_limit": RateLimit(100)}, REFUSED.format(96),
        0.72),
    "input that comes in bursts": Job(
        {"call": steady, "rows": 5000, "every": 5.0, "batch": 1000}, BUSY, {"every": 0.0},
        "all slots of a task were busy, but for 44% no rows came: the query or function before is the limit"),
    "a slow store": Job(
        {"seconds": 0.3}, "store", {"seconds": 0.001}, "rows waited for stored results: the store is the limit",
        sure=True, run=from_store),
    "a store that takes long to put": Job(
        {"rows": 2000, "capacity": 500, "to_put": 0.9}, "store", {"to_put": 0.0},
        "rows waited for stored results: the store is the limit; a faster store, or none,", sure=True, run=stored),
    "equal rows whose calls fail": Job(
        {"call": partial(bad_rows, 1), "rows": [n % 5 for n in range(300)], "on_error": "null"}, END,
        {"error_ttl": 60.0}, UNKEPT, 0.97, run=stored),
    "calls that hang, and some equal rows": Job(
        {"call": rejecting_and_hanging, "rows": [*range(306), *range(12)], "timeout": 30.0, "retry": TRIED,
         "on_error": "null", "attempt_timeout": 5.0}, END, {"attempt_timeout": ADVISED},
        WAITED.format("5.1 s; attempt_timeout=0.5, twice"), run=stored),
    "many rows of few arguments": Job(
        {"call": partial(steady, 1.0), "rows": [n % 60 for n in range(3000)], "capacity": 100}, END,
        {"call": partial(steady, 0.5)}, FEW_LEFT, 0.5, sure=True, run=stored),
    "rows that fail each time": Job(
        {"call": partial(bad_rows, 2), "rows": [n % 40 for n in range(1000)], "rate_limit": per_task(50),
         "on_error": "null"}, "limit", {"error_ttl": 60.0}, UNKEPT, 0.93, run=stored),
    "hits alone": Job(
        {"seconds": 0.0, "every": 0.1}, "input", {},
        "1,000 rows came from the store, and nothing was called: no option of the calls changes that", 0.0,
        sure=True, run=from_store),
}  # fmt: skip


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


@cache
def figures_before(name: str) -> Figures:
    return JOBS[name].run(**JOBS[name].options)


def followed(job: Job, text: str) -> Figures:
    change: dict[str, Any] = {}
    for name, value in job.change.items():
        number = advised(text, name) if value is ADVISED else None
        change[name] = value if number is None else int(number) if number == int(number) else number
    return job.run(**{**job.options, **change})


@pytest.mark.parametrize("name", JOBS)
def test_the_advice_keeps_its_promise(name: str) -> None:
    """The cause is the one that the job was made with; following the advice saves what was told, to within a third."""
    job, before = JOBS[name], figures_before(name)
    found = verdict(before)
    assert job.cause in found.text
    assert (found.state, found.sureness) == (job.state, "sure" if job.sure else "likely"), found.text
    saved = 1 - followed(job, found.text)["seconds"] / before["seconds"]
    told = promise(found.text)
    assert (told is None) is (job.saves is not None), found.text
    assert saved == (pytest.approx(job.saves, abs=0.1) if told is None else pytest.approx(told, abs=told / 3 + 1e-9))


def test_twice_the_capacity_saves_nothing_where_rows_come_just_in_time() -> None:
    """No figure tells them from those that come at once: so it is said with an if."""
    once, twice = (run(steady, every=0.05, batch=10, capacity=capacity) for capacity in (10, 20))
    assert twice["seconds"] == pytest.approx(once["seconds"])
    assert verdict(once).text.endswith("if the service takes so many at once and Spark keeps up")


@settings(max_examples=examples(0.4))
@given(
    seed=st.integers(0, 10**6),
    usual=st.sampled_from([0.01, 0.05, 0.5]),
    longest=st.sampled_from([0.1, 1.0, 5.0]),
    slow=st.sampled_from([0.0, 0.003, 0.1]),
    capacity=st.sampled_from([2, 10, 50]),
    queue=st.sampled_from([None, 1, 2, 10]),
    every=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    rate=st.sampled_from([None, None, 50, 400]),
)
def test_no_change_of_any_job_saves_more_than_promised_at_most(
    seed: int, usual: float, longest: float, slow: float, capacity: int, queue: int | None, every: float, rate: Any
) -> None:
    rng = random.Random(seed)
    latencies = [longest if rng.random() < slow else usual * rng.uniform(0.5, 1.5) for _ in range(400)]
    options: dict[str, Any] = {"capacity": capacity, "queue_size": queue and queue * capacity, "every": every}
    options["rate_limit"] = rate and RateLimit(rate)
    before = run(lambda: taking(latencies.__getitem__), 400, batch=20, **options)
    text = verdict(before).text
    if "at most" not in text:
        return
    if "queue_size=" in text:
        options["queue_size"] = int(advised(text, "queue_size"))
    elif "unordered_wait" in text:
        options["output_mode"] = "unordered"
    elif "no rows came" in text:
        options["every"] = 0.0
    elif "calls waited for RateLimit" in text:
        options["rate_limit"] = None
    after = run(lambda: taking(latencies.__getitem__), 400, batch=20, **options)
    assert 1 - after["seconds"] / before["seconds"] <= (promise(text) or 0.0) + 0.01


def test_a_short_run_from_the_store_alone_is_not_too_short_to_tell() -> None:
    """Nothing was called, however long it took: no slot was ever busy."""
    found = verdict(figures := from_store(0.01))
    assert 0 < figures["seconds"] < 1
    assert found.text == "1,000 rows came from the store, and nothing was called: no option of the calls changes that"
    assert (found.sureness, figures["calls"]) == ("sure", 0)


@pytest.mark.parametrize("call", [steady, partial(bad_rows, 40)])
def test_rows_from_the_store_alone_keep_no_slot_busy(call: Callable[[], Call]) -> None:
    """On a real clock to see which rows have a call takes a moment; it was 45% calls busy with stored errors."""
    options = {"store": Store(error_ttl=60.0), "version": "1", "on_error": "null"}
    failures = run(call, **options)["failures"]
    engine = Engine(call(), capacity=20, loop=asyncio.new_event_loop(), **options)
    engine.feed(range(1000))
    engine.end()
    engine.run()
    (figures,) = figures_of([engine.counted], {})
    assert (figures["calls"], figures["failures"], figures["time"]["calls_busy"]) == (0, failures, 0)
    assert figures["time"]["store"] > 0


@pytest.mark.parametrize(
    ("tail", "capacity"),
    [
        (partial(long_tailed, 100, 1.0), 20),
        (partial(long_tailed, 100, 10.0), 100),
        (partial(long_tailed, 1000, 5.0), 100),
        (partial(long_tailed, 10, 2.0), 20),
        (partial(uneven, 1.2), 20),
        (partial(uneven, 1.6), 100),
    ],
)
def test_rows_that_are_slow_by_themselves_were_not_overtaken(tail: Callable[[], Call], capacity: int) -> None:
    """Their service takes more calls: a pool was not the limit."""
    text = verdict(run(tail, 3000, capacity)).text
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


DOCS = Path(__file__).parents[2] / "docs"
ON_THE_PAGE = (
    *("too few slots", "a service that takes 4 at once", "a slow row at the head of a small queue", "slow input"),
    *("a slow reader", "a rate", "a service that refuses calls", "a dead service", "calls that block"),
)


def test_the_page_says_what_the_verdicts_say() -> None:
    quotes = re.findall(r"(?:^> .*\n)+", (DOCS / "slow.md").read_text(), re.MULTILINE)
    told = {verdict(figures_before(name)).text for name in ON_THE_PAGE}
    assert {" ".join(line.removeprefix("> ") for line in quote.splitlines()) for quote in quotes} == told


def test_the_page_shows_a_summary_as_it_is() -> None:
    async def sometimes_slow(n: int) -> int:
        await asyncio.sleep(5.0 if n % 300 == 1 else 0.05)
        return n

    figures = run(lambda: sometimes_slow, 1200, queue_size=40)
    told = summary({"seconds": 1.0, "is_over": True, "functions": [figures]})
    assert told.split("\n", 2)[2] in (DOCS / "observe.md").read_text()


DEAD = {"call": dead_for_a_minute, "breaker": CircuitBreaker()}
FAULTS: dict[str, tuple[Callable[..., Figures], dict[str, Any]]] = {
    "an outage": (run, {**DEAD, "capacity": 10}),
    "an outage, and deadlines": (run, {**DEAD, "retry": TRIED, "timeout": 3.0, "on_error": "null"}),
    "an outage, equal rows, and a store": (
        stored, {**DEAD, "rows": [n % 50 for n in range(1000)], "seconds": 0.01, "capacity": 10, "retry": TRIED}),
    "refusals and retries": (run, {"call": refusing, "retry": TRIED, "on_error": "null", "timeout": 5.0}),
    "refusals that are errors like others": (
        run, {"call": refusing, "on_error": "null",
              "retry": RetryStrategy.fixed_delay(attempts=2, delay=1.0, max_retry_after=0)}),
    "back-off until the deadline": (
        run, {"call": partial(failing, 5), "retry": retries(9, 1.0), "timeout": 3.0, "on_error": "null"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_no_figure_is_negative(fault: str) -> None:
    """And there are never more calls in flight than slots: a pause of the service's is no time in which a call ran."""
    job, options = FAULTS[fault]
    figures = job(**options)
    assert [found for found in numbers_in(figures) if found < 0] == []
    assert 0 < figures["in_flight"]["mean"] <= figures["in_flight"]["peak"] <= 20


@pytest.mark.parametrize("until", [0.5, 30.0, 60.5])
def test_no_figure_is_negative_while_a_task_runs(until: float) -> None:
    engine = Engine(dead_for_a_minute(), capacity=10, breaker=CircuitBreaker(), retry=TRIED)
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
