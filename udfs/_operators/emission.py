"""Lets results leave an operator: while the next one has room, and not within itself."""

from __future__ import annotations

import contextvars

from asyncudf.queues import StreamElementQueue

from .fast_path import ImmediateResults
from .outputs import UNLIMITED, Output

__all__ = ("Emission",)


class Emission:
    """The way out of an operator's queue.

    What runs further down does not see the context variables of the call that caused the emission. It may complete
    another row of this operator: that row leaves behind those that are leaving.

    Args:
        is_bounded: whether the output's room is to be asked for.
    """

    # A row that leaves runs what is further down the chain right here, on the stack of whoever has completed the row.
    # If that completes another row of this operator, to emit it at once would let it overtake the one that is leaving:
    # so `is_going_on` is asked before, and the outer loop takes it in its turn.

    def __init__(self, queue: StreamElementQueue, output: Output, is_bounded: bool) -> None:
        self._queue = queue
        self._output = output
        self._is_bounded = is_bounded
        self._context = contextvars.copy_context()
        self.is_going_on = False

    def emit(self) -> bool:
        """Emit all that may leave; returns whether something has to wait for room."""
        self.is_going_on = True
        try:
            return self._context.run(self._emit_while_there_is_room)
        finally:
            self.is_going_on = False

    def emit_immediate(self, immediate: ImmediateResults) -> None:
        """Emit the rows that were done at once, if they may leave; the others take their places in the queue."""
        self.is_going_on = True
        try:
            if self._queue.may_pass():  # nothing before them waits: they need not be put
                self._context.run(immediate.leave, self._output, self._is_bounded)
        finally:
            self.is_going_on = False
            if immediate.records:
                try:
                    self._queue.put_completed(immediate.records, immediate.results)  # type: ignore[arg-type]
                finally:
                    immediate.drop(len(immediate.records))

    def _emit_while_there_is_room(self) -> bool:
        if not self._is_bounded:
            self._queue.emit_completed_elements(self._output, UNLIMITED)
        while self._output.room > 0 and self._queue.emit_completed_elements(self._output, 1):
            pass  # one by one: each may become many on its way
        return self._queue.has_completed_elements()
