"""The last look before a call: does another task of the host have the result by now, or does one call for it?"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from .._calls.calls import Calls
from .._calls.row import Batch, Call, Row
from .._loop.shutdown import end_tasks
from .._policies.options import Options
from .stored_results import Found, StoredResults, StoreOperator

LOOKUP_AGE = (
    0.2  # seconds after which a lookup is old: where limits hold calls back, so many are claimed as begin in it
)
CLAIMED_AHEAD = 0.02  # seconds: as many are claimed beyond the free slots as begin in this time
SHORTEST_WAIT, LONGEST_WAIT = 0.002, 0.05  # seconds between two looks whether leases of others have ended
TRIED_AT_ONCE = 100  # leases of others that one look tries to get
PATIENCE = 180.0  # seconds that a row without a timeout waits for the call of another task


class Claimant(Protocol):
    """Gets the decisions about calls."""

    def found(self, row: Row, found: Found, /) -> None:
        """The store has a result by now for a row that was to be called."""


class Claims:
    """Calls that wait until it is clear that no other task has made them or makes them.

    Calls that come together are looked up together. Where the store has leases, each row's key is leased first; a row
    whose key another task has leased waits until that lease ends, but no longer than its own timeout.
    """

    # Tasks cannot wait for each other in a circle: a row with a lease needs nothing but a slot for its call, and slots
    # are held by calls. That is why a lease is taken last: when the row has its place in the queue, and its micro-batch
    # is full. A row that waits for a lease holds neither another lease nor a slot.
    #
    # A call is in one place: _undecided, in the lookup of _task, or, one row each, in _held: by the key, with the time
    # when the row waits no longer.
    # _claimed: calls so far, of which those in _ready have not begun
    # _last: the time of the last lookup, and the calls that had begun by then
    # _ahead: how many may wait to begin, whatever slots are free

    def __init__(
        self,
        operator: StoreOperator,
        claimant: Claimant,
        stored: StoredResults,
        calls: Calls,
        options: Options,
    ) -> None:
        self._operator = operator
        self._claimant = claimant
        self._stored = stored
        self._pool, self._ready = calls.pool, calls.ready
        self._clock = operator.counters.clock
        self._patience = PATIENCE if options.timeout is None else options.timeout
        self._is_limited = bool(options.rate_limit) or options.job_capacity is not None
        self._undecided: list[Call] = []
        self._held: dict[bytes, tuple[Row, float]] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST_WAIT
        self._ahead, self._claimed, self._last = 1, 0, (0.0, 0)
        self._is_closed = False
        self._context = contextvars.copy_context()

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows that no decision was made about."""
        return self._task is not None or bool(self._held)

    @property
    def takes_more(self) -> bool:
        """Whether another call should be formed: it begins soon, or there is a free slot for it."""
        if not (self._undecided or self._ready):
            return True
        # Where limits hold calls back, a free slot does not say that a call begins soon: its lookup would be old by
        # then, or its lease would keep other tasks from the call all that time.
        formed, pool = len(self._undecided) + len(self._ready), self._pool
        return formed < self._ahead or (not self._is_limited and formed < pool.capacity - pool.in_flight)

    def claim(self, call: Call) -> bool:
        """Decide soon about a call that has to be claimed: there are leases, or it was looked up long ago.

        Returns:
            Whether it has to be.
        """
        if self._stored.leases is None and call.rows[0].record.looked_up + LOOKUP_AGE >= self._clock():
            return False
        self._undecided.append(call)
        if self._task is None:
            self._start()
        return True

    async def close(self) -> None:
        """Decide about no more calls. Leases end with the store, when the last results are written."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await end_tasks([self._task])

    def _start(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = self._operator.loop.create_task(self._decide(), context=self._context)

    async def _decide(self) -> None:
        try:
            while self._undecided:
                calls, self._undecided = self._undecided, []
                (last, before), (now, begun) = self._last, (self._clock(), self._claimed - len(self._ready))
                await self._look_up([left for call in calls if (left := self._leased(call, now)) is not None])
                seconds = LOOKUP_AGE + self._clock() - now if self._is_limited else CLAIMED_AHEAD
                soon = math.ceil(seconds * (begun - before) / max(now - last, 1e-6))
                self._ahead = max(1, min(soon, 2 * self._ahead, self._pool.capacity))
                self._last, self._claimed = (now, begun), self._claimed + len(calls)
                self._operator.pump()
            self._task = None
            self._watch()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # no code awaits this task
            self._operator.fail(error)

    def _leased(self, call: Call, now: float) -> Call | None:
        """Lease the keys of a call; returns what is left of it without rows whose key another task has."""
        if (leases := self._stored.leases) is None:
            return call
        lost: set[Row] = set()
        for row in call.rows:
            key: bytes = row.record.key
            end = self._held.pop(key)[1] if key in self._held else now + self._patience
            if not leases.take(key) and end > now:
                self._held[key] = row, end
                lost.add(row)
        return _without(call, lost)

    async def _look_up(self, calls: Sequence[Call]) -> None:
        keys: list[bytes] = [row.record.key for call in calls for row in call.rows]
        found: list[Found] = []
        while len(found) < len(keys):
            found += await self._stored.look_up(keys[len(found) : len(found) + self._stored.rows_at_once])
        answers = iter(found)
        for call in calls:
            lost = set()
            for row, answer in zip(call.rows, answers, strict=False):
                if answer is not None:
                    self._claimant.found(row, answer)
                    lost.add(row)
            if (left := _without(call, lost)) is not None:
                self._ready.append(left)

    def _watch(self) -> None:
        if self._held and self._timer is None and not self._is_closed:
            self._timer = self._operator.loop.call_later(self._pause, self._try_held, context=self._context)

    def _try_held(self) -> None:
        """See whether leases of others have ended."""
        self._timer = None
        leases, now = self._stored.leases, self._clock()
        before = len(self._undecided)
        for key in [*islice(self._held, TRIED_AT_ONCE)]:
            row, end = self._held[key]
            if end <= now or leases is None or leases.take(key):
                self._undecided.append(row)  # which looks for `end` once more
            else:  # behind the keys that were not tried
                self._held[key] = self._held.pop(key)
        self._pause = SHORTEST_WAIT if len(self._undecided) > before else min(2 * self._pause, LONGEST_WAIT)
        if self._undecided:
            self._start()
        else:
            self._watch()


def _without(call: Call, lost: set[Row]) -> Call | None:
    """What is left of a call without these rows of it."""
    if not lost:
        return call
    left = [row for row in call.rows if row not in lost]
    return Batch(left) if left else None
