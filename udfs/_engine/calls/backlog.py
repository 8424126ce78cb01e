"""Attempts that are ready to begin, and those that will be: rows in back-off, and keys at their limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .attempt import Attempt
from .costs import GroupBounds
from .gatekeeper import Gatekeeper
from .key_lines import KeyLines
from .row import Row, RowState
from .slots import HostOperator, SlotPool

GATHERED_FOR = 1.0  # seconds for which rows to be called again wait for others, where a rate limit makes calls precious
TIMERS_EARLY = 0.002  # seconds, at most: uvloop counts whole milliseconds


class Backlog:
    """Attempts in the order in which they begin, before rows that come now.

    `may_go_on` says whether a row still needs an attempt; it ends a row that is late.
    """

    # Rows of attempts in `ready` were READY when they were put there. A row that is late since then is not READY any
    # more, and is left out. A READY row is there once.

    def __init__(
        self,
        operator: HostOperator,
        pool: SlotPool,
        gatekeeper: Gatekeeper,
        bounds: GroupBounds,
        may_go_on: Callable[[Row], bool],
        weight_of: Callable[[Row], float | None],
    ) -> None:
        self._operator, self._pool, self._gatekeeper, self._bounds = operator, pool, gatekeeper, bounds
        self._may_go_on, self._weight_of = may_go_on, weight_of
        self.ready: deque[Attempt] = deque()  # attempts that may begin
        self._backing_off: set[Row] = set()  # rows that wait before they are ready again
        self.aside = KeyLines(operator, self.put)  # attempts whose key is at its limit

    @property
    def later(self) -> int:
        """How many rows are in back-off, or aside."""
        return len(self._backing_off) + len(self.aside.attempts)

    @property
    def is_backing_off(self) -> bool:
        return bool(self._backing_off)

    @property
    def is_waiting(self) -> bool:
        return bool(self.ready or self._backing_off or self.aside.attempts)

    @property
    def rows(self) -> Iterator[Row]:
        yield from [*self._backing_off]
        yield from self.aside.rows
        for attempt in [*self.ready]:
            yield from (row for row in attempt.rows if row.state is RowState.READY)

    @property
    def has_new(self) -> bool:
        """Whether the next attempt is the first attempt of its rows."""
        return bool(self.ready) and not self.ready[0].rows[0].attempts

    def put(self, attempt: Attempt) -> None:
        for row in attempt.rows:
            row.move(RowState.READY)
        self.ready.append(attempt)
        self._pool.wake()

    def put_back(self, attempt: Attempt) -> None:
        """An attempt that was next could not begin: it stays the next one."""
        for row in attempt.rows:
            if row.state is not RowState.READY:
                row.move(RowState.READY)
        self.ready.appendleft(attempt)

    def take_out(self, row: Row) -> None:
        """A row that is ready or aside is not called next, but may be put again."""
        if row.state is RowState.ASIDE:
            self.withdraw(self.aside.take_out(row))
            return
        for place in range(len(self.ready) - 1, -1, -1):  # most such rows came last
            if row in (rows := self.ready[place].rows):
                if len(rows) > 1:
                    self.ready[place].rows = [one for one in rows if one is not row]
                    return
                attempt = self.ready[place]
                del self.ready[place]
                self.withdraw(attempt)
                return

    def withdraw(self, attempt: Attempt) -> None:
        """An attempt is not to begin any more: give back what the limits hold for it."""
        if attempt.keys:
            self._gatekeeper.withdrawn(attempt)
            self.aside.leaves(attempt)
            self.aside.ended(attempt)

    def back_off(self, rows: Sequence[Row], seconds: float, *, as_one: bool) -> None:
        """Let rows be ready after so many seconds, before their deadlines: in one attempt `as_one`, else one each."""
        for row in rows:
            row.move(RowState.BACKING_OFF)
        self._backing_off.update(rows)
        self._operator.waiting_has_changed()
        self._operator.loop.call_later(seconds, self._end_back_off, rows, as_one)

    def _end_back_off(self, rows: Sequence[Row], as_one: bool) -> None:
        self._backing_off.difference_update(rows)
        self._operator.waiting_has_changed()
        self.again([row for row in rows if row.state is RowState.BACKING_OFF], as_one=as_one)

    def again(self, rows: Sequence[Row], *, as_one: bool = False) -> None:
        """Rows that had an attempt are ready for another one."""
        now = self._operator.counters.clock()
        for row in rows:
            row.own_trouble().ready = now
        is_joint = self._bounds.is_many and not as_one
        for part in [rows] if as_one and rows else [(row,) for row in rows]:
            self.put(Attempt(part, may_be_joined=is_joint))
        if is_joint and self._gatekeeper.has_rate_limit:
            self._operator.loop.call_later(GATHERED_FOR, self._pool.wake)

    def waits_for_more(self) -> bool:
        """Whether the rows to be called again are few, and should wait a little for others: each call costs permits."""
        # Attempts behind the first one wait with it, also those that no other row joins: for `GATHERED_FOR` at most, as
        # each row that waits for others has a timer that wakes the pool. What ends the wait before wakes it too.
        first = self.ready[0]
        if not (first.may_be_joined and self._gatekeeper.has_rate_limit) or len(self.ready) >= self._bounds.size:
            return False
        (row,) = first.rows
        end = row.trouble.ready + GATHERED_FOR - TIMERS_EARLY
        return self._operator.counters.clock() < end and (row.deadline is None or end < row.deadline)

    def next(self) -> Attempt | None:
        """The next attempt, without rows that need no attempt any more."""
        while self.ready:
            attempt = self.ready.popleft()
            rows = [row for row in attempt.rows if self._may_go_on(row)]
            if attempt.may_be_joined:
                rows = self._joined(rows)
            if rows == [*attempt.rows]:  # not only as many: one that cannot be weighed has another one in its place
                return attempt
            if rows:
                return Attempt(rows)
            self.withdraw(attempt)
        return None

    def _joined(self, rows: Sequence[Row]) -> list[Row]:
        """These rows, and the next rows that may join them, as many as one call takes."""
        joined, weight, bounds = list[Row](), 0.0, self._bounds
        while rows:
            (row,) = rows
            if (more := self._weight_of(row)) is not None:
                if joined and weight + more > bounds.most_weight:
                    self.ready.appendleft(Attempt(rows, may_be_joined=True))
                    break
                joined.append(row)
                weight += more
            rows = self._next_that_joins() if len(joined) < bounds.size else ()
        return joined

    def _next_that_joins(self) -> Sequence[Row]:
        while self.ready and self.ready[0].may_be_joined:
            rows = self.ready.popleft().rows
            if self._may_go_on(rows[0]):
                return rows
        return ()
