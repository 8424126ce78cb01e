"""Where rows wait in an operator: the queue of its output mode, bounded in rows and, where it matters, in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncudf.queues import OrderedStreamElementQueue, StreamElementQueue, UnorderedStreamElementQueue

from .._policies.options import Options, OutputMode
from .byte_bound import ByteBoundedQueue, UnloadingOutput
from .outputs import Output

__all__ = ("queue_of",)


_QUEUES: dict[OutputMode, Callable[[int], StreamElementQueue]] = {
    OutputMode.ORDERED: OrderedStreamElementQueue,
    OutputMode.UNORDERED: UnorderedStreamElementQueue,
}


def queue_of(
    options: Options, output: Output, weigh: Callable[[Any], int] | None
) -> tuple[StreamElementQueue, Output, ByteBoundedQueue | None]:
    """The queue, the output that it emits to, and the bound in bytes if there is one."""
    # Rows of fixed size are bounded well enough by their number; to weigh each of them would be for nothing.
    queue = _QUEUES[options.output_mode](options.queue_rows)
    if weigh is None or options.max_buffered_bytes is None:
        return queue, output, None
    bounded = ByteBoundedQueue(queue, options.max_buffered_bytes, weigh)
    return bounded, UnloadingOutput(output, bounded), bounded
