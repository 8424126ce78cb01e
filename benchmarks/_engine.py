"""The engine alone: the operator without Spark, Arrow and threads. The only place that looks inside asyncudf; and the
idiom that it replaces.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any

import pyarrow as pa

from asyncudf import RuntimeContext, async_pandas_udf
from asyncudf._arrow.rows import records_of
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._chain.function_plan import FunctionPlan
from asyncudf._metrics.counters import TaskCounters
from asyncudf._operators.async_wait import AsyncWaitOperator
from asyncudf._operators.outputs import RecordWriterOutput, ReportingOutput

from ._work import BATCH, Loop, batches, run, settle_collector

__all__ = ("engine", "engine_seconds", "gather_seconds")

TIMEOUT = 5.0  # seconds; a deadline for every row
LINGER = 0.1


def engine_seconds(
    function: Callable[[int], Awaitable[int]],
    rows: int,
    mode: str,
    loop: Loop = asyncio.new_event_loop,
    *,
    is_counted: bool = True,
    **options: Any,
) -> float:
    """Seconds to bring rows through the operator into a writer that throws its batches away.

    Args:
        options: of the function, beside a timeout.
    """
    written: list[int] = []

    async def driven() -> float:
        counters = None if is_counted else _Uncounted(time.monotonic)
        operator = engine(function, range(rows), mode, written.append, counters, **options)
        start = time.perf_counter()
        await operator.run()
        return time.perf_counter() - start

    settle_collector()
    seconds = run(driven(), loop)
    assert sum(written) == rows
    return seconds


def gather_seconds(function: Callable[[int], Awaitable[int]], rows: int, loop: Loop = asyncio.new_event_loop) -> float:
    """Seconds with a gather for each batch, which is the idiom that the engine replaces."""

    async def gathered() -> float:
        start = time.perf_counter()
        for batch in batches(range(rows)):
            await asyncio.gather(*map(function, batch))
        return time.perf_counter() - start

    settle_collector()
    return run(gathered(), loop)


class _Uncounted(TaskCounters):
    """Counts nothing, so that it can be seen what counting costs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.latencies: Any = deque(maxlen=0)
        self.account.enter = lambda state: None  # type: ignore[method-assign]

    def done_at_once(self, since: float, times: list[float]) -> None:
        """Forget them."""


def engine(
    function: Callable[[int], Awaitable[Any]],
    rows: range,
    mode: str,
    wrote: Callable[[int], None] = lambda results: None,
    counters: TaskCounters | None = None,
    **options: Any,
) -> AsyncWaitOperator:
    """The operator with its input, to be run on the loop that runs; `wrote` is told how large the batches are."""
    loop = asyncio.get_running_loop()
    source = batches(rows)

    def request_batch() -> None:
        batch = next(source, None)
        if batch is None:
            loop.call_soon(operator.end_of_input)
        else:
            loop.call_soon(operator.feed, records_of(zip(batch), repeat(None)))

    udf = async_pandas_udf(function, output_mode=mode, timeout=TIMEOUT, **options)  # type: ignore[call-overload]
    stored = None
    if udf.options.store is not None:
        stored = TaskEnvironment(loop, random.Random(0)).stored(FunctionPlan(udf.spec, udf.options, pa.int64()))
    writer = RecordWriterOutput(lambda results, *_: wrote(len(results)), BATCH, LINGER, loop)
    operator = AsyncWaitOperator(
        udf.spec,
        udf.options,
        ReportingOutput(writer),
        RuntimeContext("f", loop.time, timeout=TIMEOUT),
        loop=loop,
        rng=random.Random(0),
        stored=stored,
        may_edit=False,  # as of a column of whole numbers, which nobody can edit
        counters=counters or TaskCounters(time.monotonic),  # the clock of Spark's workers
        request_batch=request_batch,
    )
    return operator
