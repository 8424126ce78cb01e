"""Starting a function's chain in Spark's Python worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from .._arrow.rows import warm_up
from .._arrow.vectors import Codec
from .._chain.builder import chain_of_one
from .._chain.chain import Chain
from .._chain.factories import Site
from .._chain.function_plan import Work
from .._loop.bridge import Bridge, Reader
from .._loop.event_loops import new_event_loop
from .._operators.input_buffer import Fed
from .._operators.writer import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput
from .connection import settler

__all__ = (
    "bridge_of",
    "start_bridge",
    "task_of",
)


def start_bridge(
    work: Work, write: Any, kinds: Sequence[pa.DataType], names: Sequence[str] | None, rows: int
) -> Bridge[Iterable[Fed], Any]:
    """The function of a column or a table in the Spark task that this runs in.

    `write` makes what Spark gets of results and their origins, of at most `rows` together: as many as Spark's input
    batches have, or a few more. Large results are bounded in bytes as well.
    """
    warm_up()
    spec = work.spec
    codec = Codec(spec.name, spec.vectors, names or spec.parameters, kinds) if spec.vectorized else None
    may_edit = any(map(pa.types.is_nested, kinds))
    return bridge_of(
        work, write, codec, rows, *task_of(), may_edit=may_edit, reader=Reader(settler(), lambda: write([], []))
    )


def bridge_of(
    work: Work,
    write: Any,
    codec: Codec | None,
    rows: int,
    partition: int = 0,
    attempt: int = 0,
    *,
    may_edit: bool = True,
    reader: Reader[Any] | None = None,
) -> Bridge[Iterable[Fed], Any]:
    """Start the chain of one function on a loop of its own."""

    def build(loop: Any, want: Callable[[], None], emit: Callable[[Any], None]) -> Chain:
        writer = RecordWriterOutput(
            lambda *results: emit(write(*results)),
            rows,
            OUTPUT_LINGER,
            loop,
            weigh=None if (weigh := work.weigh) is None else lambda value, origin: weigh(value),
            max_bytes=OUTPUT_BYTES,
        )
        site = Site(loop, random.Random(), partition, attempt)
        return chain_of_one(work, site, writer, codec, want, may_edit=may_edit)

    return Bridge(build, work.threads, new_event_loop(work.options.loop), reader)


def task_of() -> tuple[int, int]:
    """Partition and attempt of the Spark task that this runs in."""
    task = TaskContext.get()
    return (task.partitionId(), task.attemptNumber()) if task is not None else (0, 0)
