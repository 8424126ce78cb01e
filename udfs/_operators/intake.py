"""How rows enter an operator: they wait in the input, gather for a call, and get their place in the queue."""

from __future__ import annotations

import asyncio
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from asyncudf.queues import Entry, StreamElement, StreamElementQueue, StreamRecord

from .._calls.call import RowSharing
from .._stored.rows import CachedRows

__all__ = (
    "InputBuffer",
    "InputElement",
    "Intake",
    "MicroBatch",
)


TOGETHER = 200  # cached rows that are emitted together


class IntakeOperator(Protocol):
    """The operator that rows enter."""

    def push(self) -> None:
        """Emit what may leave."""

    def emit_cached(self, records: list[Any], results: list[Any], /) -> None:
        """Emit rows that need no call, or give them their places; there are places for all."""


class Intake:
    """Leads rows from the input into the queue, each when its call can begin; rows that need no call do not wait.

    Args:
        sharing: knows which row has a call of its own.
        has_uncalled: whether rows may come that need no call.
    """

    # A row in the queue holds a place and, in the ordered mode, all rows behind it. So rows wait in the input, in the
    # batch that they came in, and a slot takes them out one by one, each when its call can begin.
    #
    # An element that needs no call (a marker, cached rows, a row that shares a call) must not wait for a slot: all
    # slots may be held by coroutines that run on after their rows are done.
    #
    # A row is in exactly one place: in the input, or in the queue, or emitted.
    # Each unfinished row in the queue is in the batch, or follows a call, or belongs to one Call.
    # _is_admitting: an element is on its way into the queue. If an emission meanwhile leads here again, the elements
    # behind it stay in the input, as they must not pass it.

    def __init__(
        self,
        operator: IntakeOperator,
        buffer: InputBuffer,
        queue: StreamElementQueue,
        batch: MicroBatch,
        sharing: RowSharing,
        *,
        has_uncalled: bool,
    ) -> None:
        self._operator = operator
        self.buffer = buffer
        self.queue = queue
        self._batch = batch
        self._sharing = sharing
        self._has_uncalled = has_uncalled
        self._is_admitting = False

    @property
    def takes_more(self) -> bool:
        """Whether another call should be formed."""
        return self._sharing.takes_more

    @property
    def has_call(self) -> bool:
        """Whether a slot would probably find rows for a call; sure only after one was taken."""
        if not self._sharing.takes_more:
            return False
        can_admit = self.buffer.may_have_more and self.queue.places > 0
        return can_admit or (len(self._batch) > 0 and (self._batch.is_ready or self._is_starved()))

    @property
    def may_admit_without_slot(self) -> bool:
        """Whether elements that need no call may be admitted now, while no slot is free."""
        if self._is_admitting:
            return False
        # Without such rows there are only markers, and a marker behind rows has time until they have left.
        return self.queue.places > 0 if self._has_uncalled else self.queue.is_empty()

    @property
    def is_drained(self) -> bool:
        """Whether everything has been emitted and the input has ended."""
        return self.buffer.is_drained and self.queue.is_empty()

    def rows_of_a_call(self) -> Sequence[tuple[StreamRecord, Entry]]:
        """The rows of the next call with their entries in the queue; none if no call can be formed now."""
        return self._batch.gather(self._next_row, self._is_starved)

    def admit_without_slot(self) -> bool:
        """Take the next element if it needs no call; returns whether it was one."""
        element: Any = self.buffer.take_unless(self._sharing.has_to_call)
        if element is None:
            return False
        self.admit_uncalled(element)
        return True

    def admit_uncalled(self, element: Any) -> None:
        """Admit an element that was taken out of the input and needs no call."""
        self._is_admitting = True
        try:
            self._admit(element)
        finally:
            self._is_admitting = False
        if self.queue.has_completed_elements():
            self._operator.push()

    def _next_row(self) -> tuple[StreamRecord, Entry] | None:
        """The next row with a call of its own, if the queue has a place; elements before it are admitted."""
        if self._is_admitting or not self._sharing.takes_more:
            return None
        self._is_admitting = True
        try:
            while self.queue.places and (element := self.buffer.next()) is not None:
                if (entry := self._admit(element)) is not None:
                    return element, entry  # type: ignore[return-value]
                if not self.queue.places:
                    self._operator.push()
            return None
        finally:
            self._is_admitting = False
            if self.queue.has_completed_elements():
                self._operator.push()

    def _admit(self, element: Any) -> Entry | None:
        """Give an element its place in the queue; returns the entry of a row that is to be called."""
        if type(element) is CachedRows:
            self._admit_cached(element)
            return None
        # It was taken out of the input while there was a place, which results of rows before it may have filled since.
        if isinstance(element, StreamRecord):
            entry = self.queue.put_record(element)
            return entry if self._sharing.needs_call(element, entry) else None
        self.queue.put_marker(element)
        self._operator.push()
        return None

    def _admit_cached(self, rows: CachedRows) -> None:
        """Emit cached rows, or give them their places, as far as there are places; the others stay in the input."""
        while len(rows) and (places := self.queue.places) > 0:
            self._operator.emit_cached(*rows.take(min(places, TOGETHER)))
        if len(rows):
            self.buffer.put_back(rows)  # type: ignore[arg-type]

    def _is_starved(self) -> bool:
        return self.buffer.has_ended or not self.queue.places  # a full queue waits for the rows of the batch


MANY = 10_000  # elements, if the number is not known


# Whole batches come as plain tuples of value, timestamp and origin: most rows never need to be records.
InputElement = StreamElement | tuple[Any, int | None, Any]


def record_of(element: InputElement) -> StreamElement:
    """The element, a plain tuple made a record."""
    return StreamRecord._make(element) if type(element) is tuple else element  # type: ignore[return-value]


class InputBuffer:
    """Batches of elements, in order; asks for another batch when the last one begins.

    Args:
        request_batch: asks for one more batch.
    """

    # Batches stay iterators, and `current` is open to the fast path, so that taking a row costs one step of a C
    # iterator and no call. A chain puts rows one by one: all of them share one iterator that reads from `_line`.
    # Asking for the next batch when the last one begins, not when it ends, lets Spark read while calls go on.
    #
    # may_have_more is False only when every element has been taken
    # has_ended: nothing more is fed
    # _line: elements that were put one by one and not taken; _reads_line: one of _batches, or `current`, reads it
    # current: yields the rest of _inserted, then the rest of _behind
    # _is_listed: `values` reads the batches, and asks for no more

    def __init__(self, request_batch: Callable[[], None]) -> None:
        self._request_batch = request_batch
        self._batches: deque[Iterator[InputElement]] = deque()
        self.current: Iterator[InputElement] = iter(())
        self._behind = self.current
        self.may_have_more = False
        self.has_ended = False
        self._line: deque[StreamElement] = deque()
        self._inserted: deque[StreamElement] = deque()
        self._is_listed = self._reads_line = False

    @property
    def waiting(self) -> int:
        """How many elements that were put one by one have not been taken."""
        return len(self._line)

    @property
    def known_rows(self) -> int:
        """About how many elements can be taken before more are fed."""
        if self._batches or not self.may_have_more:
            return len(self._line) + MANY * bool(self._batches)
        return operator.length_hint(self.current, MANY)

    @property
    def has_batches(self) -> bool:
        """Whether there is a batch behind the one that elements are taken from."""
        return bool(self._batches)

    @property
    def is_drained(self) -> bool:
        """Whether everything was taken and nothing follows."""
        return self.has_ended and not self.may_have_more

    def feed(self, batch: Iterable[InputElement]) -> None:
        """Add a batch behind all elements."""
        self._batches.append(iter(batch))
        self.may_have_more = True

    def put(self, element: StreamElement) -> None:
        """Add one element behind all others; once all such elements were taken `request_batch` is called."""
        if not self._reads_line:
            self._batches.append(self._take_line())
            self._reads_line = self.may_have_more = True
        self._line.append(element)

    def _take_line(self) -> Iterator[StreamElement]:
        # Elements that are put meanwhile are read too; once the line is empty `put` starts another iterator.
        line = self._line
        while line:
            yield line.popleft()
        self._reads_line = False
        if not self._is_listed:
            self._request_batch()

    def end(self) -> None:
        """Nothing follows."""
        self.has_ended = True

    def request_from(self, request_batch: Callable[[], None]) -> None:
        """Ask here for batches, from now on."""
        self._request_batch = request_batch

    def insert(self, element: StreamElement) -> None:
        """Put an element before all others, but behind those inserted earlier."""
        if not self._inserted:  # one chain for all of them: a chain for each would nest without end
            self.current = chain(self._take_inserted(), self._behind)
            self.may_have_more = True
        self._inserted.append(element)

    def take_unless(self, stays: Callable[[StreamElement], bool]) -> StreamElement | None:
        """Take the next element, unless `stays` is true for it."""
        if self._inserted and stays(self._inserted[0]):
            return None
        element = self.next()
        if element is not None and stays(element):
            self.put_back(element)
            return None
        return element

    def put_back(self, element: StreamElement) -> None:
        """Put an element that was taken back to where it was."""
        self.insert(element)
        self._inserted.rotate()

    def _take_inserted(self) -> Iterator[StreamElement]:
        while self._inserted:
            yield self._inserted.popleft()

    def restore(self, elements: Iterable[StreamElement]) -> None:
        """Put elements before all others."""
        self.current = self._behind = chain(elements, self.current)
        self.may_have_more = True

    def refill(self) -> bool:
        """Go on to the next batch, when `current` is exhausted; False if there is none."""
        if not self._batches:
            self.may_have_more = False
            return False
        self.current = self._behind = self._batches.popleft()
        if not self._batches and not self.has_ended:
            self._request_batch()
        return True

    def next(self) -> StreamElement | None:
        """Take the next element, None if there is none now."""
        while (element := next(self.current, None)) is None:
            if not self.refill():
                return None
        return record_of(element)

    def values(self) -> list[StreamElement]:
        """All elements, in order; they stay where they are."""
        line, is_read = list(self._line), self._reads_line  # is behind all else
        self._line.clear()
        self._is_listed = True
        batches: list[Any] = [list(batch) for batch in (self.current, *self._batches)]
        self._is_listed = False
        listed = [*map(record_of, chain.from_iterable(batches)), *line]
        if is_read:
            self._line.extend(line)
            self._reads_line = True
            batches[-1] = chain(batches[-1], self._take_line())
        self._batches = deque(map(iter, batches))
        self.current = self._behind = self._batches.popleft()
        return listed


Row = tuple[StreamRecord, Entry]


class MicroBatch:
    """The rows of a vectorized function's next call: gathers rows until the batch is full or has waited long enough.

    Args:
        size: rows of a full batch.
        linger: seconds after which a batch is ready though not full; None: never.
        wake: called when that time has come.
    """

    # Its rows are in the queue already: they count there, and keep their place in the order while they wait here. So a
    # batch must not wait for more rows when the queue has no place for them: `is_starved` says so.
    #
    # len(_rows) <= size; _timer runs from the first row on, and only while there is one; _has_waited: it has fired

    def __init__(
        self, size: int, linger: float | None, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]
    ) -> None:
        self._size = size
        self._linger = linger
        self._loop = loop
        self._wake = wake
        self._rows: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_ready(self) -> bool:
        """Whether the batch must go out as it is."""
        return len(self._rows) == self._size or self._has_waited

    def gather(self, next_row: Callable[[], Row | None], is_starved: Callable[[], bool]) -> Sequence[Row]:
        """The rows of the next call: a full batch, or a partial one that must not wait any longer; else none.

        Args:
            next_row: a row that is in the queue already, None if there is none now.
            is_starved: whether nothing can join the batch any more.
        """
        while not self.is_ready:
            row = next_row()
            if row is not None:
                self._add(row)
            elif is_starved():
                break
            else:
                return ()
        return self._take()

    def _add(self, row: Row) -> None:
        if not self._rows and self._linger is not None:
            self._timer = self._loop.call_later(self._linger, self._due)
        self._rows.append(row)

    def _take(self) -> Sequence[Row]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows, self._has_waited = self._rows, [], False
        return rows

    def _due(self) -> None:
        self._has_waited = True
        self._wake()
