"""The last look before a call: has another task got the result meanwhile, or is another task calling for it?"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from asyncudf.queues import Entry, StreamRecord

from .._loop.shutdown import end_tasks
from .call import Call
from .slots import SlotPool
from .stored_results import Found, StoredResults

__all__ = ("Claims",)


MOMENT = 0.2  # seconds after which what a lookup said is old
AHEAD = 0.02  # seconds: so many rows are claimed ahead as begin in this time
SHORTEST, LONGEST = 0.002, 0.05  # seconds between two looks whether leases of others have ended
TRIED_AT_ONCE = 100  # leases of others that one look tries to get
PATIENCE = 180.0  # seconds that a row without a timeout waits for the call of another task


class Claims:
    """Calls that are formed and have not begun, until it is clear that nobody else has made them or makes them.

    Those that come together are looked up together. Where the store has leases, each row's key is leased first; one
    that another task has leased waits until that lease ends, but no longer than its own timeout.

    Args:
        patience: seconds that a row waits for another task; None: `PATIENCE`.
        begin: takes a call that is to be made.
        found: takes a row, and what the store has for it by now.
        decided: called after some of these.
        fail: told of the error that ends the task.
    """

    # Tasks cannot wait for each other in a circle: who has a lease has a call that needs nothing but a slot to begin,
    # and slots are held by calls. That is why a lease is taken last: when the row has its place in the queue, and its
    # micro-batch is full. A row that waits for a lease holds neither another one nor a slot.
    #
    # A call is in one place: _undecided, in the lookup of _task, or (a row each, by its key, with the time when its
    # patience ends) in _held.

    def __init__(
        self,
        stored: StoredResults,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        pool: SlotPool,
        patience: float | None,
        begin: Callable[[Call], None],
        found: Callable[[StreamRecord, Entry, Found], None],
        decided: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._stored = stored
        self._loop = loop
        self._clock = clock
        self._pool = pool
        self._patience = PATIENCE if patience is None else patience
        self._begin = begin
        self._found = found
        self._decided = decided
        self._fail = fail
        self._undecided: list[Call] = []
        self._held: dict[bytes, tuple[Call, float]] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST
        self._last, self._ahead = 0.0, 0  # when calls were claimed last, and how many may be claimed ahead
        self._is_closed = False
        self._context = contextvars.copy_context()

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows of which it is not clear who calls."""
        return self._task is not None or bool(self._held)

    @property
    def takes_more(self) -> bool:
        """Whether another call should be formed: there are free slots for it, or calls end quickly."""
        if not self._undecided:
            return True
        pool = self._pool
        return len(self._undecided) < max(pool.capacity - pool.in_flight, min(pool.capacity, self._ahead))

    def needs(self, records: Sequence[Any]) -> bool:
        """Whether a call has to be claimed: there are leases, or its rows were looked up long ago."""
        is_old = records[0].looked_up + MOMENT < self._clock()
        return is_old or self._stored.leases is not None

    def add(self, call: Call) -> None:
        """Decide about a call, soon."""
        self._undecided.append(call)
        self._start()

    def give_back(self, key: bytes) -> None:
        """There will be no call for a key any more: others may make it, or have its result."""
        if (leases := self._stored.leases) is not None:
            leases.give_back(key)

    async def close(self) -> None:
        """Decide nothing more. Leases end with the store, when the last results are written."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await end_tasks([self._task])

    def _start(self) -> None:
        if self._task is None and not self._is_closed:
            self._task = self._loop.create_task(self._decide(), context=self._context)

    async def _decide(self) -> None:
        try:
            while self._undecided:
                calls, self._undecided = self._undecided, []
                now = self._clock()
                self._ahead = int(len(calls) * AHEAD / max(now - self._last, 1e-6))
                self._last = now
                await self._look_up([call for call in calls if self._lease(call, now)])
                self._decided()
            self._task = None
            self._watch()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # nobody waits for this task
            self._fail(error)

    def _lease(self, call: Call, now: float) -> bool:
        """Lease the keys of a call; rows whose key another task has are taken out of it."""
        leases = self._stored.leases
        if leases is None:
            return True
        rows: list[tuple[Any, Entry]] = []
        for record, entry in zip(call.records, call.entries, strict=True):
            key = record.key  # type: ignore[attr-defined]
            _, end = self._held.pop(key, (call, now + self._patience))
            if leases.take(key) or end <= now:
                rows.append((record, entry))
            else:
                self._held[key] = Call((record,), (entry,), now), end
        return self._keep(call, rows)

    def _keep(self, call: Call, rows: Sequence[tuple[Any, Entry]]) -> bool:
        if len(rows) < len(call.records):
            call.done = not rows
            call.records, call.entries = zip(*rows, strict=True) if rows else ((), ())
        return bool(rows)

    async def _look_up(self, calls: Sequence[Call]) -> None:
        keys = [record.key for call in calls for record in call.records]  # type: ignore[attr-defined]
        found: list[Found] = []
        while len(found) < len(keys):
            found += await self._stored.look_up(keys[len(found) : len(found) + self._stored.rows_at_once])
        answers = iter(found)
        for call in calls:
            rows = []
            for record, entry in zip(call.records, call.entries, strict=True):
                if (answer := next(answers)) is None:
                    rows.append((record, entry))
                else:
                    self._found(record, entry, answer)
            if self._keep(call, rows):
                self._begin(call)

    def _watch(self) -> None:
        if self._held and self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(self._pause, self._try_held, context=self._context)

    def _try_held(self) -> None:
        """See whether leases of others have ended."""
        self._timer = None
        leases, now = self._stored.leases, self._clock()
        before = len(self._undecided)
        for key in [*islice(self._held, TRIED_AT_ONCE)]:
            call, end = self._held[key]
            if end <= now or leases is None or leases.take(key):
                self._undecided.append(call)  # which looks for `end` once more
            else:  # behind those that were not tried
                self._held[key] = self._held.pop(key)
        self._pause = SHORTEST if len(self._undecided) > before else min(2 * self._pause, LONGEST)
        if self._undecided:
            self._start()
        else:
            self._watch()
