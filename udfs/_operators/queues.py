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

from .._policies.options import Options, OutputMode
from .outputs import UNLIMITED, Output

__all__ = ("Emitter", "queue_of")


# Rows that leave before timers and the mailbox get their turn. More than calls that return at once can add before the
# next turn, or a long queue would never shrink.
AT_ONCE = 10_000

_QUEUES: dict[OutputMode, Callable[[int], StreamElementQueue]] = {
    OutputMode.ORDERED: OrderedStreamElementQueue,
    OutputMode.UNORDERED: UnorderedStreamElementQueue,
}


def queue_of(options: Options) -> StreamElementQueue:
    """The queue of an operator."""
    return _QUEUES[options.output_mode](options.queue_rows)


class Emitter:
    """Lets results leave the queue while the output can take more, one row after the other.

    Operators further down do not see the context variables of the call that caused the emission. If they complete
    another row of this operator, that row leaves after the rows that are leaving.

    Attributes:
        is_bounded: whether the output can take only so many rows.
        is_going_on: whether a row is leaving at this moment.
    """

    # A row that leaves runs the operators further down right here, on the stack of the code that has completed the row.
    # If they complete another row of this operator, that row must not overtake the row that is leaving: so callers look
    # at `is_going_on` first, and the outer loop takes the other row in its turn.

    def __init__(self, queue: StreamElementQueue, output: Output) -> None:
        self._queue = queue
        self._output = output
        self.is_bounded = output.available < UNLIMITED
        self._context = contextvars.copy_context()
        self.is_going_on = False

    @property
    def places(self) -> int:
        """How many rows may be taken in now, if each of them is done at once."""
        places = self._queue.places
        if self.is_bounded and self._queue.may_pass() and (available := self._output.available) > 0:
            return min(places, available)
        return places

    def emit(self) -> bool:
        """Emit what may leave, at most `AT_ONCE` rows; returns whether there is more, which may wait for the output."""
        self.is_going_on = True
        try:
            return self._context.run(self._emit_while_there_is_room)
        finally:
            self.is_going_on = False

    def emit_plainly(self) -> bool:
        """The same, where an output takes everything and no code runs behind it that could complete another row."""
        return self._queue.emit_completed_elements(self._output, AT_ONCE) == AT_ONCE

    def emit_done(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, if they may leave; the others take their places in the queue.

        Both lists are empty afterwards.
        """
        self.is_going_on = True
        try:
            if self._queue.may_pass():  # nothing before them waits: they need not be put
                self._context.run(self._leave, records, results)
        finally:
            self.is_going_on = False
            if records:
                try:
                    self._queue.put_completed(records, results)
                finally:
                    records.clear()
                    results.clear()

    def _emit_while_there_is_room(self) -> bool:
        if not self.is_bounded:
            self._queue.emit_completed_elements(self._output, AT_ONCE)
        else:  # one by one: each may become many on its way
            for _ in range(AT_ONCE):
                if self._output.available <= 0 or not self._queue.emit_completed_elements(self._output, 1):
                    break
        return self._queue.has_completed_elements()

    def _leave(self, records: list[Any], results: list[Any]) -> None:
        count = 0
        try:
            if not self.is_bounded:
                count = len(records)
                self._output.collect_results(records, results)
            while count < len(records) and self._output.available > 0:  # one by one: each may become many on its way
                count += 1
                self._output.collect_results(records[count - 1 : count], results[count - 1 : count])
        finally:
            del records[:count], results[:count]
