"""P1: what the engine costs per row, alone: an instantly returning function, deadlines on, no Spark.

    python -m benchmarks.p1_engine [--rows 1000000]

`gather` is the idiom it replaces, `asyncio.gather` over each batch of 10,000 rows. "suspends once" is a function
that gives way to the event loop once, as every real call does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat

from asyncudf import RuntimeContext, async_pandas_udf
from asyncudf._operator import AsyncWaitOperator
from asyncudf._outputs import RecordWriterOutput
from asyncudf.queues import StreamRecord
from benchmarks._common import batches, interleaved, report

_record = partial(tuple.__new__, StreamRecord)  # as the worker makes them


async def instant(x: int) -> int:
    return x


async def suspends_once(x: int) -> int:
    await asyncio.sleep(0)
    return x


def engine(function: Callable[[int], Awaitable[int]], rows: int, mode: str) -> float:
    """Microseconds per row through the operator into a writer that throws its batches away."""
    values = list(range(rows))
    written: list[int] = []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        udf = async_pandas_udf(function, output_mode=mode, timeout=5.0)
        source = batches(values)

        def want() -> None:
            batch = next(iter_source, None)
            if batch is None:
                loop.call_soon(operator.end_of_input)
            else:
                loop.call_soon(operator.feed, map(_record, zip(zip(batch), repeat(None), repeat(None))))

        iter_source = iter(source)
        output = RecordWriterOutput(lambda results, *_: written.append(len(results)), 10_000, 0.1, loop)
        context = RuntimeContext("f", loop.time, timeout=5.0)
        operator = AsyncWaitOperator(udf.spec, udf.options, output, context, loop=loop, rng=random.Random(0), want=want)
        start = time.perf_counter()
        await operator.run()
        return time.perf_counter() - start

    seconds = asyncio.run(run())
    assert sum(written) == rows
    return seconds / rows * 1e6


def gather(function: Callable[[int], Awaitable[int]], rows: int) -> float:
    """Microseconds per row with a gather for each batch."""

    async def run() -> float:
        start = time.perf_counter()
        for batch in batches(range(rows)):
            await asyncio.gather(*map(function, batch))
        return time.perf_counter() - start

    return asyncio.run(run()) / rows * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    for title, function, rows in (
        ("P1 instant function", instant, args.rows),
        ("P1 function that suspends once", suspends_once, args.rows // 5),
    ):
        cases: dict[str, Callable[[], float]] = {
            "ordered": partial(engine, function, rows, "ordered"),
            "unordered": partial(engine, function, rows, "unordered"),
            "gather": partial(gather, function, rows),
        }
        report(title, interleaved(cases, args.repetitions), "us/row", "gather")


if __name__ == "__main__":
    main()
