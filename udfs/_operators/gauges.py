"""What an async operator looks like from outside: what its free slots wait for, and how much is in it."""

from __future__ import annotations

from collections.abc import Callable

from asyncudf.queues import StreamElementQueue

from .._calls.slots import SlotPool
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .byte_bound import ByteBoundedQueue
from .input_buffer import InputBuffer

__all__ = ("Gauges",)


class Gauges:
    """Reads the parts of an operator for its counters, and changes none of them.

    Args:
        weighed: the queue, if it is bounded in bytes.
    """

    def __init__(
        self,
        counters: TaskCounters,
        pool: SlotPool,
        queue: StreamElementQueue,
        weighed: ByteBoundedQueue | None,
        buffer: InputBuffer,
    ) -> None:
        self._counters = counters
        self._pool = pool
        self._queue = queue
        self._weighed = weighed
        self._input = buffer
        self.count_open: Callable[[], None]
        self.waits_for_store: Callable[[], bool] = lambda: False

    def why_idle(self, is_held_back: bool) -> State:
        """What a free slot waits for."""
        if is_held_back:
            return State.OUTPUT
        if self.waits_for_store():
            return State.STORE
        if self._queue.places <= 0:
            return State.HEAD_OF_LINE
        return State.WINDING_DOWN if self._input.is_drained else State.INPUT

    @property
    def now(self) -> tuple[int, int]:
        """Calls in flight, and rows in the queue."""
        return self._pool.in_flight, len(self._queue)

    def look(self, *, was_blocked: bool) -> None:
        """Bring the counters up to date."""
        totals = self._counters.totals
        totals.in_flight_peak = max(totals.in_flight_peak, self._pool.most)
        if totals.calls:  # those that fail at once are never waited for
            totals.in_flight_peak = max(totals.in_flight_peak, 1)
        totals.bytes_peak = 0 if self._weighed is None else self._weighed.most
        self._counters.look(*self.now, was_blocked=was_blocked)
