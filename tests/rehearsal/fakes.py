"""Random services and jobs on the virtual clock, and the sample that a rehearsal makes of each before it runs."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from asyncudf import RateLimit, RetryStrategy, RuntimeContext
from asyncudf._chain.chain import Chain
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._chain.function_plan import FunctionPlan
from asyncudf._chain.plan import ChainPlan
from asyncudf._chain.results import SingleOutput
from asyncudf._engine.calls.recorder import Recorder
from asyncudf._engine.loop.event_loops import run_to_end
from asyncudf._engine.operators.outputs import StreamOutput
from asyncudf._functions.options import Options
from asyncudf._functions.signature import read_function
from asyncudf._rehearsal.arithmetic import Forecast, Job, Sample, SampleSize, TaskSample, forecast
from asyncudf.testing import VirtualClockLoop

SECONDS = 20.0  # about how long a job takes


class Nowhere(StreamOutput):
    def collect(self, record: Any) -> None:
        pass


class RefusedError(Exception):
    status = 429
    retry_after = 1.0


class Fake(NamedTuple):
    """A service, and a job that calls it."""

    seed: int
    latency: float  # seconds, the median
    spread: float  # sigma of the logarithm
    workers: int | None  # calls that it works on at a time
    rate: float | None  # calls in a second; others are refused
    rejected: float  # share of rows that it rejects for good
    flaky: float  # share of attempts that fail
    tasks: int
    options: dict[str, Any]
    partitions: list[int]

    @classmethod
    def of(cls, seed: int) -> Fake:
        rng = random.Random(seed)
        latency = math.exp(rng.uniform(math.log(0.02), math.log(2.0)))
        capacity, tasks = round(math.exp(rng.uniform(math.log(4), math.log(60)))), rng.choice([1, 2, 4])
        pace = tasks * capacity / latency
        workers = rng.choice([None, None, max(2, round(tasks * capacity * rng.uniform(0.2, 0.8)))])
        pace = min(pace, workers / latency if workers else pace)
        rate = max(5.0, pace * rng.uniform(0.2, 0.7)) if workers is None and rng.random() < 0.3 else None
        options: dict[str, Any] = {"capacity": capacity, "output_mode": rng.choice(["ordered", "unordered"])}
        if rate is None and rng.random() < 0.3:
            limit = pace * rng.uniform(0.2, 1.5)
            options["rate_limit"] = RateLimit(limit / tasks, scope="task")
            pace = min(pace, limit)
        if rng.random() < 0.3:
            options["queue_size"] = capacity * rng.choice([1, 2, 10])
        if rng.random() < 0.8:
            options["retry"] = RetryStrategy.exponential_backoff(3, 0.2, 2.0, retry_on=ConnectionError)
        rows = min(max(round(min(pace, rate or pace) * SECONDS), 400), 3_000)
        shares = [rng.uniform(0.7, 1.3) for _ in range(tasks * rng.choice([1, 1, 3]))]
        partitions = [max(1, round(rows * one / sum(shares))) for one in shares]
        rejected, flaky = rng.choice([0.0, 0.0, 0.01, 0.05]), rng.choice([0.0, 0.0, 0.03, 0.1])
        return cls(seed, latency, rng.uniform(0.1, 0.9), workers, rate, rejected, flaky, tasks, options, partitions)


class Ran(NamedTuple):
    tasks: list[TaskSample]
    seconds: float
    spent: float
    failures: int


def run(fake: Fake, slots: Sequence[Sequence[Sequence[int]]], most: int, seed: int, **options: Any) -> Ran:
    """Call the service for the rows of each slot, in one partition after another; at most so many calls of each."""
    loop, rng = VirtualClockLoop(), random.Random(seed)
    workers = asyncio.Semaphore(fake.workers or 10**9)
    saved = max(1.0, (fake.rate or 0.0) / 20)
    left = [saved, 0.0]

    async def price(x: int, context: RuntimeContext) -> int:
        if fake.rate is not None:
            left[:] = min(saved, left[0] + (loop.time() - left[1]) * fake.rate), loop.time()
            if left[0] < 1:
                raise RefusedError("busy")
            left[0] -= 1
        async with workers:
            await asyncio.sleep(fake.latency * rng.lognormvariate(0, fake.spread))
        if random.Random(f"{fake.seed} {x}").random() < fake.rejected:
            raise ValueError("no such row")
        if rng.random() < fake.flaky:
            raise ConnectionError("not now")
        context.spend(0.001 * rng.lognormvariate(0, 1))
        return x

    checked = Options.of({**fake.options, "on_error": "null", "timeout": 600.0, **options})
    plan = FunctionPlan(read_function(price, checked), checked, None)
    told, ends = list[Any](), list[float]()

    async def slot(parts: Sequence[Sequence[int]]) -> None:
        for part in parts:
            environment = TaskEnvironment(loop, random.Random(rng.random()))
            chain = Chain(ChainPlan.of_function(plan, ["x"], [None]), environment, SingleOutput(Nowhere()))
            (operator,) = chain.counted.values()
            recorder = Recorder(operator.counters, most, clock=loop.time)
            operator.observe(recorder)
            chain.feed(((value,), None, None) for value in part)
            chain.end_of_input()
            await chain.run()
            told.append((recorder, operator.counters.totals))

    async def main() -> None:
        await asyncio.gather(*map(slot, slots))
        ends.append(loop.time())

    run_to_end(loop, main(), 4)
    tasks = [
        TaskSample(one.records, sums.rows - one.not_called, 0, sums.failures - one.not_called) for one, sums in told
    ]
    spent = math.fsum(sums.spent.get("USD", 0.0) for _, sums in told)
    return Ran(tasks, ends[0], spent, sum(task.failed for task in tasks))


def dealt(partitions: Sequence[Sequence[int]], slots: int) -> list[list[Sequence[int]]]:
    """The partitions of each slot, nearly as Spark gives them: the next one to the slot with the fewest rows."""
    found = [list[Sequence[int]]() for _ in range(slots)]
    for part in partitions:
        min(found, key=lambda own: sum(map(len, own))).append(part)
    return found


def rehearsed(fake: Fake, sample: int = 200) -> tuple[Forecast, Ran]:
    """What is told of the job, and the job."""
    rows, numbers = sum(fake.partitions), iter(range(sum(fake.partitions)))
    partitions = [[next(numbers) for _ in range(size)] for size in fake.partitions]
    size = SampleSize.of(Options.of(fake.options), min(sample, rows), fake.tasks)
    chosen = random.Random(fake.seed).sample(range(rows), size.tasks * size.calls)
    parts = [[chosen[place :: size.tasks]] for place in range(size.tasks)]
    seen = run(fake, parts, size.calls, fake.seed + 10_000, capacity=size.in_flight, queue_size=None)
    told = forecast(
        Options.of(fake.options), Sample(seen.tasks, size.in_flight), Job(fake.partitions, fake.tasks, 1.0, 0.0)
    )
    return told, run(fake, dealt(partitions, fake.tasks), 10**9, fake.seed + 20_000)
