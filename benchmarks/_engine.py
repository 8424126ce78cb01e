"""The engine alone: the operator without Spark, Arrow and threads. The only place that looks inside asyncudf; and the
idiom that it replaces.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from itertools import repeat

from asyncudf import RuntimeContext, async_pandas_udf
from asyncudf._arrow.rows import records_of
from asyncudf._operators.async_wait import AsyncWaitOperator
from asyncudf._operators.outputs import CountingOutput
from asyncudf._operators.writer import RecordWriterOutput

from ._work import BATCH, Loop, batches, run, settle_collector

__all__ = ("engine_seconds", "gather_seconds")

TIMEOUT = 5.0  # seconds; a deadline for every row
LINGER = 0.1


def engine_seconds(
    function: Callable[[int], Awaitable[int]], rows: int, mode: str, loop: Loop = asyncio.new_event_loop
) -> float:
    """Seconds to bring rows through the operator into a writer that throws its batches away."""
    settle_collector()
    written: list[int] = []
    seconds = run(_drive(function, range(rows), mode, written), loop)
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


async def _drive(function: Callable[[int], Awaitable[int]], rows: range, mode: str, written: list[int]) -> float:
    loop = asyncio.get_running_loop()
    source = batches(rows)

    def request_batch() -> None:
        batch = next(source, None)
        if batch is None:
            loop.call_soon(operator.end_of_input)
        else:
            loop.call_soon(operator.feed, records_of(zip(batch), repeat(None)))

    udf = async_pandas_udf(function, output_mode=mode, timeout=TIMEOUT)  # type: ignore[call-overload]
    writer = RecordWriterOutput(lambda results, *_: written.append(len(results)), BATCH, LINGER, loop)
    context = RuntimeContext("f", loop.time, timeout=TIMEOUT)
    output = CountingOutput(writer)
    operator = AsyncWaitOperator(
        udf.spec, udf.options, output, context, loop=loop, rng=random.Random(0), request_batch=request_batch
    )
    start = time.perf_counter()
    await operator.run()
    return time.perf_counter() - start
