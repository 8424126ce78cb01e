"""Starting a function's chain in Spark's Python worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from .._arrow.rows import warm_up
from .._arrow.vectors import VectorCodec
from .._chain.builder import chain_of_one
from .._chain.chain import Chain
from .._chain.factories import TaskEnvironment
from .._chain.function_plan import FunctionPlan
from .._loop.bridge import Bridge, Reader
from .._loop.event_loops import new_event_loop
from .._operators.input_buffer import InputElement
from .._operators.writer import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput
from .connection import settler

__all__ = ("bridge_of", "start_bridge", "task_of")


def start_bridge(
    function_plan: FunctionPlan, write: Any, arrow_types: Sequence[pa.DataType], names: Sequence[str] | None, rows: int
) -> Bridge[Iterable[InputElement], Any]:
    """The function of a column or a table in the Spark task that this runs in.

    `write` makes what Spark gets of results and their origins, of at most `rows` together: as many as Spark's input
    batches have, or a few more. Large results are bounded in bytes as well.
    """
    warm_up()
    spec = function_plan.spec
    codec = VectorCodec(spec.name, spec.vectors, names or spec.parameters, arrow_types) if spec.vectorized else None
    may_edit = any(map(pa.types.is_nested, arrow_types))
    return bridge_of(
        function_plan,
        write,
        codec,
        rows,
        *task_of(),
        may_edit=may_edit,
        reader=Reader(settler(), lambda: write([], [])),
    )


def bridge_of(
    function_plan: FunctionPlan,
    write: Any,
    codec: VectorCodec | None,
    rows: int,
    partition: int = 0,
    attempt: int = 0,
    *,
    may_edit: bool = True,
    reader: Reader[Any] | None = None,
) -> Bridge[Iterable[InputElement], Any]:
    """Start the chain of one function on a loop of its own."""

    def build(loop: Any, request_batch: Callable[[], None], emit: Callable[[Any], None]) -> Chain:
        writer = RecordWriterOutput(
            lambda *results: emit(write(*results)),
            rows,
            OUTPUT_LINGER,
            loop,
            weigh=None if (weigh := function_plan.weigh) is None else lambda value, origin: weigh(value),
            max_bytes=OUTPUT_BYTES,
        )
        environment = TaskEnvironment(loop, random.Random(), partition, attempt)
        return chain_of_one(function_plan, environment, writer, codec, request_batch, may_edit=may_edit)

    return Bridge(build, function_plan.threads, new_event_loop(function_plan.options.loop), reader)


def task_of() -> tuple[int, int]:
    """Partition and attempt of the Spark task that this runs in."""
    task = TaskContext.get()
    return (task.partitionId(), task.attemptNumber()) if task is not None else (0, 0)
