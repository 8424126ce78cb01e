"""The fast path for calls that return at once: a row goes from input to output, without a place in the queue."""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from asyncudf.queues import StreamElementQueue

from ..calls.attempt import Attempt
from ..calls.lifecycle import RowLifecycle
from ..calls.row import Row
from ..calls.slots import Slot, notify_on_suspend
from ..stored.elements import ROWS
from .input import InputBuffer
from .outputs import UNLIMITED, OpenBatch, StreamOutput, Weight

BURST = 200  # rows whose calls return at once, one after another, before the event loop gets its turn for sure
NO_BATCH = OpenBatch([], [], 0)
_NOT_WEIGHED = Weight(None, UNLIMITED)


@enum.unique
class FastPathEnd(enum.Enum):
    """What follows a run of rows on the fast path."""

    TURN = "turn"  # the event loop gets its turn; there may be more rows
    NOTHING = "nothing"  # there is no row now, or no place for one
    QUEUE = "queue"  # a call has waited, and the loop has had its turn: rows go on through the queue


class FastPathOperator(Protocol):
    """The operator whose rows are called."""

    is_taking: bool  # an element is on its way from the input to its place, and none may pass it

    def may_call_rows(self) -> bool:  # whether rows may be called as soon as they have their places
        ...

    def take_in(self, element: Any, /) -> None:
        """Give an element that is no row to call its place."""

    def fail(self, error: BaseException, /) -> None:
        """The task must end with this error."""


class FastPath:
    """Calls one row after another, and sends each result to the output, while the queue is empty and no call waits.

    A row whose call waits, fails or takes long gets a place in the queue then. Its call goes on, and the row is treated
    as all other rows.

    Args:
        output: an output that leaves the chain.
        starts, returned: the functions of `plain.py`, for rows that get a place.
        is_over: whether the operator has ended.
    """

    # A row that enters the queue and leaves it in one step of its call has been there for nobody to see: so it is not
    # put. All that can be seen is done for each row: its latency, the context that it finds, whether there is a place,
    # whether the task has ended. No deadline comes before the time at which the event loop gets its turn: a result
    # after that time goes on through the queue, where it is checked.

    def __init__(
        self,
        operator: FastPathOperator,
        lifecycle: RowLifecycle,
        source: InputBuffer,
        queue: StreamElementQueue,
        output: StreamOutput,
        starts: Callable[[Slot, Row, float], None],
        returned: Callable[[Slot, Attempt, Any], float],
        is_over: Callable[[], bool],
    ) -> None:
        self._operator, self._lifecycle = operator, lifecycle
        self._source, self._queue, self._output = source, queue, output
        self._batch, self._weight = output.open_batch or NO_BATCH, _NOT_WEIGHED
        if output.weighed_batch is not None:
            self._batch, self._weight = output.weighed_batch
        self._starts, self._returned, self._is_over = starts, returned, is_over
        self._called: Any = None  # the row in the first step of its call; no element passes it
        self._began = 0.0  # when that step began

    @classmethod
    def suits(cls, lifecycle: RowLifecycle, output: StreamOutput) -> bool:
        """Whether calls need no more than their rows, and results no more than the output."""
        is_asked = lifecycle.asks or lifecycle.decisions.looks_at_results
        return lifecycle.function is not None and not is_asked and output.leaves_chain

    def values(self) -> list[Any]:
        """The row that is called, if it has no place in the queue yet."""
        return [] if self._called is None else [self._called]

    def may_begin(self) -> bool:
        """Whether a row that comes now could leave before all others."""
        return self._queue.may_pass()

    async def of(self, slot: Slot) -> FastPathEnd:
        """Call rows in this slot; only where rows may be called, and `may_begin`."""
        end = await notify_on_suspend(self._rows(slot), slot, self._waits)
        if slot.is_suspended:  # another slot may have had a run since
            slot.is_suspended = False
        else:
            self._called, self._operator.is_taking = None, False
        return end

    def _waits(self, slot: Slot) -> None:
        """The call in this slot waits."""
        self._goes_on(slot)
        self._lifecycle.pool.release(slot)

    def _goes_on(self, slot: Slot) -> None:
        """Give the called row its place in the queue, and its deadlines from the begin of its call on."""
        if self._weight.size_of is not None and self._queue.memory is not None:
            self._queue.memory.note_results(self._weight.bytes, len(self._batch.values))
        row, self._called, self._operator.is_taking = self._called, None, False
        self._starts(slot, self._queue.put_record(row), self._began)

    def _may_go_on(self, slot: Slot) -> bool:
        """Whether the next row may be called, after more has happened than one plain call."""
        is_free = self._queue.places > 0 and self.may_begin() and self._operator.may_call_rows()
        return is_free and not (slot.is_dirty() or self._is_over())

    async def _rows(self, slot: Slot) -> FastPathEnd:
        # What never changes is looked up once: this is done for each row. The clock is read once for each: the end of a
        # call is the start of the next.
        operator, lifecycle, source, queue = self._operator, self._lifecycle, self._source, self._queue
        function, validate = lifecycle.function, lifecycle.validate
        clock, latencies = lifecycle.clock, lifecycle.latencies
        memory, entries, context, is_over = queue.memory, queue.entries, slot.context, self._is_over
        collect, held = self._output.collect_result, self._weight
        weigh, most = held.size_of, held.most
        values, origins, full = self._batch
        assert function is not None
        last = full - 1  # place in the batch
        began = clock()
        end = began + lifecycle.longest_turn  # when the event loop gets its turn
        result: Any = None
        size = 0  # of the results in the batch, with this one
        while len(entries) < queue.most:
            element, rows = None, source.current
            operator.is_taking = True
            for element in islice(rows, BURST):
                if type(element) is not tuple and type(element) not in ROWS:
                    break
                result = None  # or the last one would live on through this call
                self._called = element
                self._began = began
                try:
                    result = await function(*element[0])  # type: ignore[index, misc]
                    now = clock()
                    if now > end or slot.is_suspended:
                        break
                    if validate is not None:
                        result = validate(result)
                except BaseException as error:  # every error of the user's code has its policy
                    if slot.is_suspended:
                        lifecycle.coroutine_ended(slot, slot.own, None, error)
                        return FastPathEnd.QUEUE
                    self._goes_on(slot)
                    lifecycle.coroutine_ended(slot, slot.own, None, error)
                    began = clock()
                    if began > end or source.current is not rows or not self._may_go_on(slot):
                        return FastPathEnd.TURN
                    operator.is_taking = True
                    continue
                latencies.append(now - began)
                began = now
                try:
                    if values and len(values) < last and (weigh is None or (size := held.bytes + weigh(result)) < most):
                        values.append(result)
                        origins.append(element[2])  # type: ignore[index, misc]
                        if weigh is not None:
                            held.bytes = size
                    else:
                        if memory is not None:
                            memory.note_result(result)
                        collect(element, result)
                        if len(entries) >= queue.most:  # Spark takes no more
                            return FastPathEnd.NOTHING
                except BaseException as error:  # the output's
                    operator.fail(error)
                try:
                    if context != slot.clean or slot.is_cancelled or is_over():
                        return FastPathEnd.TURN
                except BaseException:  # variables that cannot be compared
                    return FastPathEnd.TURN
            else:
                if element is not None:
                    return FastPathEnd.TURN
                if not source.refill():
                    return FastPathEnd.NOTHING
            if type(element) in ROWS:  # its call has waited, or has taken long
                return self._ends_in_queue(slot, result)
            operator.is_taking = False
            if element is not None:
                operator.take_in(element)
            if not self._may_go_on(slot):
                return FastPathEnd.TURN
        return FastPathEnd.NOTHING

    def _ends_in_queue(self, slot: Slot, result: Any) -> FastPathEnd:
        """A call has returned, but not at once."""
        if not slot.is_suspended:
            self._goes_on(slot)
        if slot.attempt is slot.own:
            self._returned(slot, slot.own, result)
        return FastPathEnd.QUEUE if slot.is_suspended else FastPathEnd.TURN
