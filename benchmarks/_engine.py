"""The operator alone, without Spark, Arrow and threads. The only place that looks inside asyncudf."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from asyncudf import RuntimeContext, async_pandas_udf
from asyncudf._arrow.rows import ResultArrays, records_of, rows_of
from asyncudf._arrow.sizes import size_as_objects
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._chain.function_plan import FunctionPlan
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf._engine.operators.memory import BatchToken, InputBatch
from asyncudf._engine.operators.outputs import OperatorOutput, RecordWriterOutput
from asyncudf._engine.stored.elements import RowsAsColumns
from asyncudf._observe.counters import TaskCounters
from asyncudf.testing import VirtualClockLoop

from ._work import BATCH, batches

__all__ = ("column", "engine", "with_figures")

TIMEOUT = 5.0  # seconds; a deadline for every row
LINGER = 0.1


def engine(
    function: Callable[[int], Awaitable[Any]],
    rows: Sequence[int | None],
    mode: str,
    read: Callable[[Sequence[int | None]], Iterable[Any]] = lambda batch: records_of(zip(batch), repeat(None)),
    are_plain: bool = False,
    write: Callable[[Sequence[int]], object] = lambda results: None,
    **options: Any,
) -> AsyncWaitOperator:
    """The operator with its input, to be run on the loop that runs; what is written is thrown away."""
    loop = asyncio.get_running_loop()
    clock = loop.time if isinstance(loop, VirtualClockLoop) else time.monotonic  # else that of Spark's workers
    source = batches(rows)

    def request_rows() -> None:
        batch = next(source, None)
        if batch is None:
            loop.call_soon(operator.end_of_input)
        else:
            batch = read(batch)
            loop.call_soon(operator.feed, batch.elements if isinstance(batch, InputBatch) else batch)

    udf = async_pandas_udf(function, output_mode=mode, timeout=TIMEOUT, **options)  # type: ignore[call-overload]
    stored = None
    if udf.options.store is not None:
        plan = FunctionPlan(udf.spec, udf.options, pa.int64())
        stored = TaskEnvironment(loop, random.Random(0)).stored(plan, are_plain=are_plain)
    writer = RecordWriterOutput(lambda results, _: write(results), BATCH, LINGER, loop)
    operator = AsyncWaitOperator(
        udf.spec,
        udf.options,
        OperatorOutput(writer),
        RuntimeContext("f", loop.time, timeout=TIMEOUT),
        loop=loop,
        rng=random.Random(0),
        stored=stored,
        may_edit=False,  # as of a column of whole numbers, which nobody can edit
        counters=TaskCounters(clock),
        request_rows=request_rows,
    )
    return operator


def column(function: Callable[[int], Awaitable[Any]], rows: Sequence[int | None], **options: Any) -> AsyncWaitOperator:
    """The same from Arrow arrays to Arrow arrays, as a column's worker has them from Spark and gives them back."""

    def read(batch: Sequence[int | None]) -> InputBatch:
        given, token = pa.array(batch, pa.int64()), BatchToken()
        values, _ = rows_of("f", [given], None)
        if "store" in options:
            return InputBatch(RowsAsColumns([*values], [token] * len(given)), token, size_as_objects(given))
        return InputBatch(records_of(values, repeat(token)), token, size_as_objects(given))

    return engine(
        function, rows, "ordered", read=read, are_plain=True, write=ResultArrays("f", pa.int64()).array, **options
    )


async def with_figures(operator: AsyncWaitOperator) -> None:
    """Run the operator to its end, and make its figures of what was counted for each row, as a task does."""
    await operator.run()
    operator.sample(was_blocked=False)
    operator.counters.totals.to_plain()
