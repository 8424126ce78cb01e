"""Where rows wait in an operator and how they leave: the queue of its output mode, and the emitter."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from asyncudf.queues import (
    OrderedStreamElementQueue,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)

from ..._functions.options import Options, OutputMode
from ..calls.row import Row
from .outputs import UNLIMITED, Output

_QUEUES: dict[OutputMode, Callable[[int], StreamElementQueue]] = {
    OutputMode.ORDERED: OrderedStreamElementQueue,
    OutputMode.UNORDERED: UnorderedStreamElementQueue,
}


def queue_of(options: Options) -> StreamElementQueue:
    """The queue of an operator."""
    queue = _QUEUES[options.output_mode](options.queue_rows)
    queue.entry_class = Row
    return queue


class Emitter:
    """Lets results leave the queue while the output can take more, one row after the other.

    Operators further down do not see the context variables of the call that caused the emission.
    """

    # A row that leaves runs the operators further down right here, on the stack of the code that has completed the row.
    # If they complete another row of this operator it must not overtake the row that is leaving: so only the operator's
    # `pump` emits, and while it does so it lets nothing else leave.
    #
    # _is_bounded: whether the output can take only so many rows

    def __init__(self, queue: StreamElementQueue, output: Output) -> None:
        self._queue = queue
        self._output = output
        self._is_bounded = output.available < UNLIMITED
        self._context = contextvars.copy_context()

    def emit(self, most: int) -> int:
        """Emit what may leave, at most so many elements; returns how many."""
        if not self._queue.has_completed_elements():
            return 0
        if self._output.leaves_chain:  # no code runs there that sees the variables of a call
            return self._queue.emit_completed_elements(self._output, most)
        return self._context.run(self._emit_while_there_is_room, most)

    def _emit_while_there_is_room(self, most: int) -> int:
        if not self._is_bounded:
            return self._queue.emit_completed_elements(self._output, most)
        emitted = 0  # one by one: each may become many on its way
        while emitted < most and self._output.available > 0 and self._queue.emit_completed_elements(self._output, 1):
            emitted += 1
        return emitted

    def leave(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, if they may leave; the others take their places in the queue.

        Both lists are empty afterwards.
        """
        try:
            if self._queue.may_pass():  # nothing before them waits: they need not be put
                self._context.run(self._leave, records, results)
        finally:
            if records:
                try:
                    self._queue.put_completed(records, results)
                finally:
                    records.clear()
                    results.clear()

    def _leave(self, records: list[Any], results: list[Any]) -> None:
        count = 0
        try:
            if not self._is_bounded:
                count = len(records)
                self._output.collect_results(records, results)
            while count < len(records) and self._output.available > 0:  # one by one: each may become many on its way
                count += 1
                self._output.collect_results(records[count - 1 : count], results[count - 1 : count])
        finally:
            del records[:count], results[:count]
