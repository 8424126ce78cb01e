"""The calls of a task on a virtual clock: the real operator, and a service that does what a sample has seen."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._chain.chain import Chain
from .._chain.environment import TaskEnvironment
from .._chain.function_plan import FunctionPlan
from .._chain.plan import ChainPlan
from .._chain.results import SingleOutput
from .._engine.calls.recorder import AttemptRecord
from .._engine.loop.event_loops import run_to_end
from .._engine.loop.virtual_clock import VirtualClockLoop
from .._engine.operators.outputs import Output
from .._errors.exceptions import AsyncTimeoutError, AsyncUDFError, FatalError
from .._functions.options import EventLoop, ExtraFields, OnError, OnNullInput, Options
from .._functions.retry import RetryStrategy
from .._functions.signature import read_function
from .._limits.rates.bucket import Bucket, take
from .._limits.rates.option import LearnedLimit, RateLimit, Scope
from .._observe.time_account import State
from .service_model import Call, ServiceModel

MOST_CALLS = 4_000  # that are made on the virtual clock; what follows is as fast
GENERATIONS = 12  # of as many calls as may be in flight, that are enough to know how fast
MOST_SLOTS = 500  # of a task; one with more is made smaller
MOST_ATTEMPTS = 8_000  # after these the calls that have ended are enough
LONGEST = 1e6  # seconds, after which too
NEVER = 1e9  # seconds
FEW = 100  # calls: too few to tell when the middle of a run begins


class Outcome(NamedTuple):
    """What a task came to that made so many calls."""

    calls: float
    seconds: float
    rate: float  # calls that end in a second, in the middle of it
    attempts: float
    refused: float
    time: dict[State, float]
    is_refused: bool = False  # for so long that the job ends

    def seconds_for(self, calls: Sequence[float]) -> float:
        """How long tasks with so many calls take, one after another."""
        start = self.seconds - self.calls / self.rate  # before calls flow, and until the last ones have ended
        return max(0.0, sum(calls) / self.rate + start * (len(calls) if start > 0 else 1))


class _Replayed:
    """A call of the job, which goes as one of the sample went."""

    __slots__ = ("at", "call")

    def __init__(self, call: Call) -> None:
        self.call, self.at = call, 0

    def next(self) -> tuple[AttemptRecord, bool]:
        """Its next attempt, and whether another one followed."""
        at, self.at = min(self.at, len(self.call) - 1), self.at + 1
        return self.call[at], at < len(self.call) - 1


class _FailedError(Exception):
    """An attempt has failed as one of the sample did, or is refused."""

    def __init__(self, text: str | None, status: int | None, asked: float | None, *, is_retried: bool = True) -> None:
        super().__init__(text)
        self.is_retried = is_retried
        if status is not None:
            self.status = status
        if asked is not None:
            self.retry_after = asked


class _DownError(_FailedError, ConnectionError):
    """The same, without an answer of the service."""


_ERRORS = {kind.__name__ for kind in (_FailedError, _DownError, AsyncTimeoutError)}


def options_of_share(options: Options, share: float, size: float = 1.0) -> Options:
    """The options of a function for the calls of a sample, in a task that has this share of the job's limits.

    With a `size` below 1 a part of the task stands for all of it.
    """
    capacity, retry, memory = options.capacity, options.retry, options.max_buffered_bytes
    if size < 1:
        if isinstance(capacity, int):
            capacity = max(1, round(capacity * size))
        else:
            most, least = max(1, round(capacity.maximum * size)), max(1, round(capacity.minimum * size))
            capacity = dataclasses.replace(capacity, minimum=least, maximum=most)
    if retry is not None:
        retry = copy.copy(retry)
        retried = RetryStrategy.fixed_delay(1, 0, retry_on=lambda error: getattr(error, "is_retried", False))
        retry._retry = retried._retry
    total, queue = options.job_capacity, options.queue_size
    if queue is not None:
        queue = max(options.slots, queue // (options.batch_size or 1))
    return dataclasses.replace(
        options,
        capacity=capacity,
        queue_size=None if queue is None else max(1, math.ceil(queue * size)),
        max_buffered_bytes=None if memory is None else max(1, round(memory * size)),
        retry=retry,
        rate_limit=tuple(_shared(limit, place, share, size) for place, limit in enumerate(options.rate_limit)),
        job_capacity=None if total is None else total.of_share(share),
        # What the sample knows already, or what is of the user's rows.
        store=None, budget=(), max_calls=None, breaker=None, max_failures=None, resources=None, on_timeout=None,
        on_error=OnError.NULL, on_null_input=OnNullInput.CALL, extra_fields=ExtraFields.ERROR, redact=None,
        batch_size=None, batch_linger=None, batch_weight=None, max_batch_weight=None, split_failed=False,
        coordinator=None, loop=EventLoop.AUTO, version=None,
    )  # fmt: skip


def _shared(limit: RateLimit, place: int, share: float, size: float) -> RateLimit:
    """A share of a limit, whose calls cost what those of the sample did."""

    def cost_of(row: _Replayed, *keys: str) -> float:
        return row.call[0].costs[place]

    if isinstance(limit, LearnedLimit):  # no header tells more here
        limit = limit.with_permits(limit.permits if limit.at_most == float("inf") else limit.at_most)
    part = size if limit.scope is Scope.TASK else share
    return dataclasses.replace(
        limit,
        permits=limit.permits * part,
        burst=max(1.0, limit.saved * part),
        cost=cost_of if callable(limit.cost) else limit.cost,
        settle=None,
        name=None,
        scope=Scope.TASK,
        by=_key_name(place) if limit.by else None,
    )


def _key_name(place: int) -> str:
    return f"key_{place}"


def _function(call: Callable[[_Replayed], Any], places: Sequence[int]) -> Any:
    """The function of the calls, whose parameters are the call and its key of each limit by key."""

    async def replay(row: _Replayed, *keys: str) -> bytes:
        return await call(row)  # type: ignore[no-any-return]

    names = ["row", *map(_key_name, places)]
    replay.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return replay


class _Emitted(Output):
    """Notes when results leave."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.times: list[float] = []
        self._clock = clock

    def collect(self, record: Any) -> None:
        self.times.append(self._clock())


def simulate(options: Options, model: ServiceModel, *, calls: float, share: float, seed: int) -> Outcome:
    """Make the calls of a task, or the first of them if they are many, on a virtual clock.

    The task has this share of the job's calls, and so of what its limits and its service allow.
    """
    # Of many calls in flight a part stands for all: it has the same part of each limit, and of the processor.
    size = min(1.0, MOST_SLOTS / min(options.slots, max(1.0, calls)))
    options, calls, share = options_of_share(options, share * size, size), calls * size, share * size
    rng = random.Random(seed)
    made = max(1, min(round(calls), max(MOST_CALLS // 4, min(MOST_CALLS, GENERATIONS * options.slots))))
    loop = VirtualClockLoop()
    emitted = _Emitted(loop.time)
    service = _Service(dataclasses.replace(model, processor=model.processor / size), loop, share)
    by_key = [place for place, limit in enumerate(options.rate_limit) if limit.by]
    plan = FunctionPlan(read_function(_function(service.call, by_key), options), options, None)
    environment = TaskEnvironment(loop, random.Random(seed))
    rows = [_Replayed(call) for call in rng.choices(model.calls, k=made)]
    names = plan.spec.parameters
    chain: Any = None
    stopped, is_refused = 0.0, False

    async def main() -> None:
        nonlocal chain, stopped, is_refused
        chain = Chain(ChainPlan.of_function(plan, names, [None] * len(names)), environment, SingleOutput(emitted))
        chain.feed(((row, *(row.call[0].keys[place] for place in by_key)), None, None) for row in rows)
        chain.end_of_input()
        running = asyncio.ensure_future(chain.run())
        loop.call_later(LONGEST, service.is_over.set)
        over = asyncio.ensure_future(service.is_over.wait())
        await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        stopped = loop.time()
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
        if not running.cancelled():
            is_refused = True  # for so long that the job ends
            with contextlib.suppress(FatalError):
                running.result()
                is_refused = False

    run_to_end(loop, main(), options.slots)
    (operator,) = chain.counted.values()
    totals, times = operator.counters.totals, emitted.times
    if own := totals.errors.keys() - _ERRORS:
        raise AsyncUDFError(f"the rehearsal itself failed: {totals.examples[min(own)]}")
    is_cut, made, times = len(times) < made, max(1, len(times)), times or [stopped]
    end = max(times[-1], 1e-9)
    early, late = times[int(0.3 * made)], times[min(made - 1, int(0.8 * made))]
    steady = (int(0.8 * made) - int(0.3 * made)) / (late - early) if late > early else 0.0
    if is_cut and made < FEW:  # perhaps all of them at one moment
        steady = (made - 1) / end
    rate, attempts = (steady or made / end) / size, totals.attempts
    return Outcome(made / size, end, rate, attempts / size, totals.throttled / size, dict(totals.time), is_refused)


class _Service:
    """Answers as the model says, for a share of the job."""

    def __init__(self, model: ServiceModel, loop: VirtualClockLoop, share: float) -> None:
        self._model, self._loop = model, loop
        self._attempts = 0
        self.is_over = asyncio.Event()
        self._bucket: Bucket | None = None
        if (limit := model.bucket) is not None:
            self._bucket = Bucket(RateLimit(limit.rate * share, burst=max(1.0, limit.saved * share)))
        self._workers: asyncio.Semaphore | None = None
        self._slower = 1.0
        if model.concurrency is not None:
            workers = max(1, round(model.concurrency * share))
            self._workers, self._slower = asyncio.Semaphore(workers), workers / (model.concurrency * share)
        self._results: dict[int, bytes] = {}  # by the rows of a call

    async def call(self, row: _Replayed) -> bytes:
        self._attempts += 1
        if self._attempts >= MOST_ATTEMPTS:
            self.is_over.set()
        self._loop.block(self._model.processor)
        if self._bucket is not None and take([self._bucket], [1.0], self._loop.time()) != 0.0:
            await asyncio.sleep(0.005)
            raise _FailedError("429", 429, self._model.asked)
        record, is_retried = row.next()
        if self._workers is None:
            await self._work(record)
        else:
            async with self._workers:
                await self._work(record)
        if record.is_refused:
            raise _FailedError("429", 429, record.asked)
        if record.error is not None or is_retried:
            kind = _DownError if record.is_down else _FailedError
            raise kind(record.error, record.status, record.asked, is_retried=is_retried)
        if record.rows not in self._results:
            self._results[record.rows] = bytes(self._model.size * record.rows)
        return self._results[record.rows]

    async def _work(self, record: AttemptRecord) -> None:
        seconds = record.seconds * self._slower - self._model.processor
        await asyncio.sleep(NEVER if record.is_cut else max(0.0, seconds))
