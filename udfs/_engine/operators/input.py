"""The rows in front of an operator: rows not taken yet, and rows gathered for a vectorized call."""

from __future__ import annotations

import asyncio
import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from asyncudf.queues import StreamElement

from ..calls.attempt import Attempt
from ..calls.costs import GroupBounds
from ..calls.row import Row

UNKNOWN_ROWS = 10_000  # elements, if the number is not known


# Whole batches come as plain tuples of value, timestamp and origin: most rows never need to be records.
InputElement = StreamElement | tuple[Any, int | None, Any]


class InputBuffer:
    """Batches of elements, in order; asks for another batch when the last one begins."""

    # Batches stay iterators, and `current` is open to `_call_rows`, so that taking a row costs one step of a C
    # iterator and no call. A chain puts rows one by one: all of them share one iterator that reads from `_single`.
    # Asking for the next batch when the last one begins, not when it ends, lets Spark read while calls go on.
    #
    # may_have_more is False only when every element has been taken

    def __init__(self, request_rows: Callable[[], None]) -> None:
        self._request_rows = request_rows
        self._batches: deque[Iterator[InputElement]] = deque()
        self.current: Iterator[InputElement] = iter(())  # yields the rest of _inserted, then the rest of _behind
        self._behind = self.current
        self.may_have_more = False
        self.has_ended = False  # nothing more is fed
        self._single: deque[StreamElement] = deque()  # put one by one and not taken
        self._inserted: deque[InputElement] = deque()
        self._reads_single = False  # one of _batches, or `current`, reads _single
        self._is_listed = False  # `values` reads the batches, and asks for no more

    @property
    def waiting(self) -> int:
        return len(self._single)

    @property
    def known_rows(self) -> int:
        """About how many elements can be taken before more are fed."""
        if self._batches or not self.may_have_more:
            return len(self._single) + UNKNOWN_ROWS * bool(self._batches)
        return operator.length_hint(self.current, UNKNOWN_ROWS)

    @property
    def has_batches(self) -> bool:
        return bool(self._batches)

    @property
    def is_drained(self) -> bool:
        return self.has_ended and not self.may_have_more

    def feed(self, batch: Iterable[InputElement]) -> None:
        self._batches.append(iter(batch))
        self.may_have_more = True

    def put(self, element: StreamElement) -> None:
        """Add one element behind all others; once all such elements were taken `request_rows` is called."""
        if not self._reads_single:
            self._batches.append(self._take_single())
            self._reads_single = self.may_have_more = True
        self._single.append(element)

    def _take_single(self) -> Iterator[StreamElement]:
        # Elements that are put meanwhile are read too; once there are none `put` starts another iterator.
        single = self._single
        while single:
            yield single.popleft()
        self._reads_single = False
        if not self._is_listed:
            self._request_rows()

    def end(self) -> None:
        self.has_ended = True

    def request_from(self, request_rows: Callable[[], None]) -> None:
        self._request_rows = request_rows

    def insert(self, element: InputElement) -> None:
        """Put an element before all others, but behind those inserted earlier."""
        if not self._inserted:  # one chain for all of them: a chain for each would nest without end
            self.current = chain(self._take_inserted(), self._behind)
            self.may_have_more = True
        self._inserted.append(element)

    def take_unless(self, stays: Callable[[InputElement], bool]) -> InputElement | None:
        """Take the next element, unless `stays` is true for it."""
        if self._inserted and stays(self._inserted[0]):
            return None
        element = self.take()
        if element is not None and stays(element):
            self.put_back(element)
            return None
        return element

    def put_back(self, element: InputElement) -> None:
        self.insert(element)
        self._inserted.rotate()

    def _take_inserted(self) -> Iterator[InputElement]:
        while self._inserted:
            yield self._inserted.popleft()

    def restore(self, elements: Iterable[StreamElement]) -> None:
        self.current = self._behind = chain(elements, self.current)
        self.may_have_more = True

    def refill(self) -> bool:
        """Go on to the next batch, when `current` is exhausted; False if there is none."""
        if not self._batches:
            self.may_have_more = False
            return False
        self.current = self._behind = self._batches.popleft()
        if not self._batches and not self.has_ended:
            self._request_rows()
        return True

    def take(self) -> InputElement | None:
        """Take the next element, None if there is none now."""
        while (element := next(self.current, None)) is None:
            if not self.refill():
                return None
        return element

    def values(self) -> list[Any]:
        single, is_read = list(self._single), self._reads_single  # is behind all else
        self._single.clear()
        self._is_listed = True
        batches: list[Any] = [list(batch) for batch in (self.current, *self._batches)]
        self._is_listed = False
        listed = [*chain.from_iterable(batches), *single]
        if is_read:
            self._single.extend(single)
            self._reads_single = True
            batches[-1] = chain(batches[-1], self._take_single())
        self._batches = deque(map(iter, batches))
        self.current = self._behind = self._batches.popleft()
        return listed


@dataclasses.dataclass(eq=False, repr=False)
class RowGroup:
    """The rows of a vectorized function's next call: gathers rows until the group is full or has waited long enough.

    `linger`: seconds after which it is ready though not full, when `wake` is called; None: never.
    """

    # Its rows are in the queue already: they count there, and keep their place in the order while they wait here. So a
    # group must not wait for more rows when the queue has no place for them: `is_starved` says so.
    #
    # len(_rows) <= bounds.size; _timer runs from the first row on, and only while there is one

    bounds: GroupBounds
    weight_of: Callable[[Row], float | None]
    linger: float | None
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], None]
    _rows: list[Row] = dataclasses.field(default_factory=list, init=False)
    _timer: asyncio.TimerHandle | None = dataclasses.field(default=None, init=False)
    # A row that would have made the group too heavy, with its weight; it begins the next one.
    _next: tuple[Row, float] | None = dataclasses.field(default=None, init=False)
    _has_waited = False  # whether _timer has fired
    _weight = 0.0  # of all rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_ready(self) -> bool:
        """Whether the group must go out as it is."""
        bounds = self.bounds
        is_full = len(self._rows) == bounds.size or self._weight >= bounds.most_weight or self._next is not None
        return is_full or self._has_waited

    def gather(self, next_row: Callable[[], Row | None], is_starved: Callable[[], bool]) -> Attempt | None:
        """The next call: of a full group, of a group that has waited long enough, or that no other row can join."""
        while not self.is_ready:
            row = next_row()
            if row is not None:
                self._weigh(row)
            elif is_starved():
                break
            else:
                return None
        return Attempt(self._take()) if self._rows else None

    def _weigh(self, row: Row) -> None:
        if (weight := self.weight_of(row)) is not None:
            if self._rows and self._weight + weight > self.bounds.most_weight:
                self._next = row, weight
            else:
                self._add(row, weight)

    def _add(self, row: Row, weight: float) -> None:
        self._weight += weight
        if not self._rows and self.linger is not None:
            self._timer = self.loop.call_later(self.linger, self._due)
        self._rows.append(row)

    def _take(self) -> Sequence[Row]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows, self._has_waited, self._weight = self._rows, [], False, 0.0
        if self._next is not None:
            (row, weight), self._next = self._next, None
            self._add(row, weight)
        return rows

    def _due(self) -> None:
        self._has_waited = True
        self.wake()
