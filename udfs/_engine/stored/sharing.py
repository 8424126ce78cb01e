"""Equal rows share one call, and its result is in the store before its rows are done.

Before a call the store is asked once more: another task of the host may have the result by now, or call for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from asyncudf.queues import StreamElementQueue

from ..._errors.failure import Failure
from ..._functions.async_function import Results
from ..._functions.attempts import is_lasting
from ..._functions.options import Options, limits_of
from ..._observe.waits import Wait, Waiting
from ..._stores.values import StoredFailure
from ..calls.arguments import copied
from ..calls.attempt import Attempt
from ..calls.lifecycle import RowLifecycle
from ..calls.outcomes import Outcome
from ..calls.resources import closing
from ..calls.row import NO_TROUBLE, Row, RowState
from ..calls.slots import HostOperator
from ..loop.event_loops import end_tasks
from .coalescing import LandedResults, SingleFlight
from .elements import LookedUpRow
from .lookup import LookedUpInput, LookupAhead
from .stored_results import Found, StoredResults, StoreWriter, failing

# Seconds after which a lookup is old; under limits, as many calls are claimed ahead as begin in this time.
LOOKUP_AGE = 0.2
CLAIMED_AHEAD = 0.02  # seconds: as many are claimed beyond the free slots as begin in this time
SHORTEST_WAIT, LONGEST_WAIT = 0.002, 0.05  # seconds between two looks whether leases of others have ended
TRIED_AT_ONCE = 100  # leases of others that one look tries to get
LONGEST_SHARED_WAIT = 180.0  # seconds that a row without a timeout waits for the call of another task


class ClaimPace:
    """How many attempts to claim: as many as begin before their claims are old, by the pace since the last claims."""

    # Claimed attempts that do not wait to begin have begun, needed no call in the end, or are held: as many others may
    # be claimed. A retry that waits counts like a new call.

    def __init__(self) -> None:
        self.ahead = 1  # how many may wait to begin, whatever slots are free; at most twice as many as before
        self._claimed = 0  # attempts so far
        self._last = (0.0, 0)  # when the claims before began, and how many attempts did not wait any more then

    def claimed(self, attempts: int, *, began: float, ready: int, seconds: float, most: int) -> None:
        """These many attempts were claimed, from `began` on, when `ready` others were ready to begin.

        A claim is old after `seconds`; at most `most` attempts may wait.
        """
        (last, before), gone = self._last, self._claimed - ready
        soon = math.ceil(seconds * (gone - before) / max(began - last, 1e-6))
        self.ahead = max(1, min(soon, 2 * self.ahead, most))
        self._last, self._claimed = (began, gone), self._claimed + attempts


class Claims:
    """Attempts that wait until it is clear that no other task has made their calls, or makes them now.

    Attempts that come together are looked up together. Where the store has leases, each row's key is leased first. A
    row whose key another task has leased waits until that lease ends, but no longer than its own timeout.
    """

    # Tasks cannot wait for each other in a circle: a row with a lease needs nothing but a slot for its call, and slots
    # are held by calls. That is why a lease is taken last: when the row has its place in the queue, and its group is
    # full. A row that waits for a lease holds neither another lease nor a slot.
    #
    # An attempt is in one place: _undecided, in the lookup of _task, or, one row each, in _waiting_rows. A row that is
    # tried again is in _undecided too, until `_leased` takes it out.

    def __init__(
        self,
        operator: HostOperator,
        sharing: StoreSharing,
        stored: StoredResults,
        lifecycle: RowLifecycle,
        options: Options,
    ) -> None:
        self._operator = operator
        self._sharing = sharing
        self._stored = stored
        self._pool, self._backlog = lifecycle.pool, lifecycle.backlog
        self._clock = operator.counters.clock
        self._patience = LONGEST_SHARED_WAIT if options.timeout is None else options.timeout
        self._is_limited = any(limit.holds_back for limit, _ in limits_of(options))
        self._undecided: list[Attempt] = []
        self._waiting_rows: dict[bytes, tuple[Row, float]] = {}  # by the key, with the time when each waits no longer
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST_WAIT
        self._pace = ClaimPace()
        self._is_closed = False
        self._context = contextvars.copy_context()

    @property
    def is_waiting(self) -> bool:
        """Whether some rows are not decided about yet."""
        return self._task is not None or bool(self._waiting_rows)

    @property
    def wait(self) -> Wait | None:
        """The wait of the row that has waited longest for the call of another task."""
        if not self._waiting_rows:
            return None
        first = min(end for _, end in self._waiting_rows.values())
        return Wait(Waiting.LEASE, self._operator.name, first - self._patience, self._patience)

    @property
    def takes_more(self) -> bool:
        """Whether another call should be formed: it begins soon, or there is a free slot for it."""
        if not (self._undecided or self._backlog.ready):  # the usual case, at less cost
            return True
        # Where limits hold calls back, a free slot does not say that a call begins soon: its lookup would be old by
        # then, or its lease would keep other tasks from the call all that time.
        formed, pool = len(self._undecided) + len(self._backlog.ready), self._pool
        return formed < self._pace.ahead or (not self._is_limited and formed < pool.capacity - pool.in_flight)

    def claim(self, attempt: Attempt) -> bool:
        """Decide soon about an attempt that has to be claimed, and return True: leased, or looked up long ago."""
        if self._stored.leases is None and attempt.rows[0].record.looked_up + LOOKUP_AGE >= self._clock():
            return False
        for row in attempt.rows:
            row.move(RowState.CLAIMED)
        self._undecided.append(attempt)
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
        with failing(self._operator):
            while self._undecided:
                attempts, self._undecided = self._undecided, []
                now, ready = self._clock(), len(self._backlog.ready)
                await self._look_up([left for one in attempts if (left := self._leased(one, now)) is not None])
                seconds = LOOKUP_AGE + self._clock() - now if self._is_limited else CLAIMED_AHEAD
                self._pace.claimed(len(attempts), began=now, ready=ready, seconds=seconds, most=self._pool.capacity)
                self._operator.pump()
            self._task = None
            self._watch()

    def _leased(self, attempt: Attempt, now: float) -> Attempt | None:
        """Lease the keys of an attempt; returns the attempt without rows that wait for another task's lease."""
        if (leases := self._stored.leases) is None:
            return attempt
        left: list[Row] = []
        for row in attempt.rows:
            key: bytes = row.record.key
            end = self._waiting_rows.pop(key)[1] if key in self._waiting_rows else now + self._patience
            if leases.take(key) or end <= now:
                left.append(row)
            else:
                self._waiting_rows[key] = row, end
        return _of_rows(attempt, left)

    async def _look_up(self, attempts: Sequence[Attempt]) -> None:
        keys: list[bytes] = [row.record.key for attempt in attempts for row in attempt.rows]
        found: list[Found] = []
        while len(found) < len(keys):
            found += await self._stored.look_up(keys[len(found) : len(found) + self._stored.rows_at_once])
        answers = iter(found)
        for attempt in attempts:
            left: list[Row] = []
            # In this order: `zip` takes an answer only where there is a row.
            for row, answer in zip(attempt.rows, answers, strict=False):
                if answer is None:
                    left.append(row)
                else:
                    self._sharing.found(row, answer)
            if (rest := _of_rows(attempt, left)) is not None:
                self._backlog.put(rest)

    def _watch(self) -> None:
        if self._waiting_rows and self._timer is None and not self._is_closed:
            self._timer = self._operator.loop.call_later(self._pause, self._try_held, context=self._context)

    def _try_held(self) -> None:
        """See whether leases of others have ended."""
        self._timer = None
        leases, now = self._stored.leases, self._clock()
        before = len(self._undecided)
        for key in [*islice(self._waiting_rows, TRIED_AT_ONCE)]:
            row, end = self._waiting_rows[key]
            if end <= now or leases is None or leases.take(key):
                self._undecided.append(Attempt((row,)))  # which looks for `end` once more
            else:  # behind the keys that were not tried
                self._waiting_rows[key] = self._waiting_rows.pop(key)
        self._pause = SHORTEST_WAIT if len(self._undecided) > before else min(2 * self._pause, LONGEST_WAIT)
        if self._undecided:
            self._start()
        else:
            self._watch()


def _of_rows(attempt: Attempt, rows: Sequence[Row]) -> Attempt | None:
    """The attempt with only these of its rows; None if there are none."""
    if len(rows) == len(attempt.rows):
        return attempt
    return Attempt(rows) if rows else None


class StoreSharing:
    """Shares calls between equal rows that the store has no result for, and keeps their results.

    `buffer` gets the rows that were looked up; `is_single`: each row has exactly one result.
    """

    # A row that enters the queue is done at once if the call of an equal row has landed since the row was looked up. If
    # such a call is in flight, the row follows it. If not, the row is called, and leads equal rows to come.
    #
    # A row with a call is in flight under its key, and leads, until its call is over: then it lands, when its result
    # has been written, or leaves without a result. A follower is called if it becomes the leader.
    #
    # The deadline of a follower runs from when the call of its leader begins, or from when it comes itself, until there
    # is a result that only has to be written. _called: the keys of calls that run, and when each began.

    def __init__(
        self,
        operator: HostOperator,
        stored: StoredResults,
        options: Options,
        lifecycle: RowLifecycle,
        queue: StreamElementQueue,
        buffer: LookedUpInput,
        request_rows: Callable[[], None],
        *,
        is_single: bool,
    ) -> None:
        self._operator = operator
        self._stored = stored
        self._lifecycle = lifecycle
        self._pool = pool = lifecycle.pool
        self._queue = queue
        self._retry = options.retry
        self._clock = operator.counters.clock
        self._totals = operator.counters.totals
        self._flights = SingleFlight[Row]()
        self._called: dict[bytes, float] = {}
        self._landed = LandedResults[tuple[list[Any] | StoredFailure, float]]()  # with when it is too old
        self._writer = StoreWriter(operator, stored, lambda: pool.in_flight <= 1 or queue.places <= 0)
        self.claims = Claims(operator, self, stored, lifecycle, options)
        self.inlet = LookupAhead(operator, stored, self._landed, buffer, request_rows, is_single=is_single)
        buffer.request_from(self.inlet.go_on)

    # Opening and closing, in this order.

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Results can be stored while the block runs; at its end all of them are in the store."""
        failure = f"results of {self._operator.name} could not be stored"
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(closing(self._close_in_own_task, failure, limit=self._stored.close_limit))
            yield

    async def end(self) -> None:
        """The operator ends: results are for no row any more."""
        self._writer.end()
        await self.inlet.close()
        await self.claims.close()

    async def _close_in_own_task(self, *error: object) -> None:
        # In a task that is not to be cut short the time limits of the store would not hold.
        await asyncio.create_task(self._close())

    async def _close(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._stored.close()

    @property
    def is_waiting(self) -> bool:
        """Whether free slots have to wait for the store."""
        if (self._writer.is_writing or self.claims.is_waiting) and not self._pool.in_flight:
            return True
        return self.inlet.is_behind

    @property
    def followers(self) -> int:
        return self._flights.following

    # Before the call.

    def has_to_call(self, element: Any) -> bool:
        """Whether the next element is a row that needs a call of its own."""
        if not isinstance(element, LookedUpRow) or element.key is None or element.found is not None:
            return False
        return not (self._flights.is_flying(element.key) or self._fresh(self._landed.get(element.key)) is not None)

    def admit(self, row: Row) -> bool:
        """Take a row that has just entered the queue; returns whether it has a call of its own.

        If not, it is done, or follows the call of an equal row. Rows with a single stored result never come here: they
        are `AnsweredRows`.
        """
        looked_up: LookedUpRow = row.record
        key, found = looked_up.key, looked_up.found
        if found is not None:
            self._totals.store_hits += 1
        else:
            self._totals.store_misses += 1
            if key is not None:
                landed = self._landed.admit(key)
                if landed is not None and (found := self._fresh(landed)) is not None:
                    self._totals.shared_flights += 1
                elif self._flights.join(key, row):
                    return True
        if found is not None:
            self._have(row, found)
        elif looked_up.error is not None:
            self._lifecycle.conclude([row], [Failure(looked_up.error)])
        else:
            row.move(RowState.FOLLOWING)
            self._operator.waiting_has_changed()
            if key in self._called:
                self._lifecycle.follow(row, self._clock())
        return False

    def _fresh(self, landed: tuple[list[Any] | StoredFailure, float] | None) -> Found:
        return landed[0] if landed is not None and self._clock() < landed[1] else None

    def _have(self, row: Row, found: Results | StoredFailure) -> None:
        """A row is done with the result that was found for it."""
        if isinstance(found, StoredFailure):
            self._totals.stored_failures += 1
            self._lifecycle.conclude([row], [Failure(self._stored.replayed(found))])
        else:
            row.move(RowState.DONE)
            self._lifecycle.deadlines.stop(row)
            self._lifecycle.counts.answered(found)
            row.complete(copied(found))

    def found(self, row: Row, found: Found) -> None:
        """The store has a result by now for a row that was to be called."""
        # The rows that follow this one have it too.
        key: bytes = row.record.key
        assert found is not None
        if followers := self._flights.land(key, row):
            self._operator.waiting_has_changed()  # before rows hold the results: they would count twice else
        self._end_lease(key)
        for one in (row, *followers):
            self._totals.shared_flights += 1
            self._have(one, found)

    # While it is called.

    def begins(self, row: Row, now: float) -> None:
        key: bytes | None = row.record.key
        if key is None:
            return
        flights = self._flights
        if row.trouble is not NO_TROUBLE:
            if not flights.is_flying(key):
                flights.join(key, row)  # again: it was late, and an outage has excused it
            if not flights.leads(key, row):
                return
        if key in self._called:  # a call of this flight has begun before, and each of its rows has its time since
            return
        self._called[key] = now
        for follower in flights.followers(key) if flights.following else ():
            if follower.started is None:
                self._lifecycle.follow(follower, now)

    def renewed(self, row: Row) -> Sequence[Row]:
        key: bytes | None = row.record.key
        if key is None or not self._flights.leads(key, row):
            return ()
        self._called.pop(key, None)
        return self._flights.followers(key)

    def leaves(self, row: Row) -> None:
        if (key := row.record.key) is not None:
            self._leave_flight(key, row)

    # Its result.

    def keep(self, row: Row, result: Any) -> None:
        """A row has this result, and keeps it."""
        results = [result]
        self.complete(row, results, results)
        if row.is_done:
            self._operator.pump()

    def complete(self, row: Row, results: Results, outcome: Outcome) -> None:
        """A row has these results; they are stored if its call made them. `outcome`: the results, or its failure."""
        key: bytes | None = row.record.key
        if key is None or not self._flights.leads(key, row):
            _done(row, results)
            return
        stored = self._stored
        found: Results | StoredFailure
        if type(outcome) is not Failure:
            ttl, kept = stored.ttl, stored.encoded(key, outcome)
            value, found = (None, outcome) if kept is None else kept
            results = found
        elif stored.error_ttl is None or not is_lasting(outcome, self._retry):
            began = self._called.get(key, math.inf)
            is_repeated = self._leave_flight(key, row)
            if stored.error_ttl is None and is_lasting(outcome, self._retry):
                self._totals.unkept_failures += 1
                self._totals.repeated_seconds += max(0.0, self._clock() - began) if is_repeated else 0.0
            _done(row, results)
            return
        else:
            ttl = stored.error_ttl
            value, found = stored.encoded_failure(key, outcome)
        # The call is over: no deadline runs while its outcome is written.
        self._called.pop(key, None)
        if self._flights.following:
            for follower in self._flights.followers(key):
                self._lifecycle.deadlines.stop(follower)
                follower.deadline = None
        if value is None:
            self._land(key, row, results, found, ttl)
        else:
            # Until they are written these results wait here, and count as if they were in the queue.
            held = 0 if self._queue.memory is None else self._queue.memory.hold_results(results)
            self._writer.put(key, value, ttl, partial(self._land, key, row, results, found, ttl, held))

    def _land(
        self, key: bytes, row: Row, results: Results, found: Results | StoredFailure, ttl: float | None, held: int = 0
    ) -> None:
        """The outcome is in the store: all rows that have waited for it are done.

        `found`: the outcome as the store gives it to waiting rows; `held`: bytes that were counted until now.
        """
        if held:
            self._queue.memory.release(held)  # type: ignore[union-attr]
        if self._landed.wants(key):
            # A copy for rows to come: code further down may edit these results.
            self._landed.note(key, (copied(found), math.inf if ttl is None else self._clock() + ttl))
        if followers := self._flights.land(key, row):
            self._operator.waiting_has_changed()  # before rows hold the results: they would count twice else
        if self._stored.leases is not None:
            self._end_lease(key)
        row.move(RowState.DONE)
        row.complete(results)
        for follower in followers:
            self._totals.shared_flights += 1
            self._have(follower, found)

    def _end_lease(self, key: bytes) -> None:
        """Give back the lease of a key if its call is over, or is not made."""
        if (leases := self._stored.leases) is not None and not self._flights.is_flying(key):
            leases.give_back(key)

    def _leave_flight(self, key: bytes, row: Row) -> bool:
        """End a call without results; returns whether a row that followed it is called now."""
        leads = self._flights.leads(key, row)
        following = self._flights.following
        heir = self._flights.leave(key, row)
        if self._flights.following != following:
            self._operator.waiting_has_changed()
        if heir is not None:
            self._lifecycle.backlog.again([heir])
        elif leads:
            self._called.pop(key, None)
            self._end_lease(key)
        return heir is not None


def _done(row: Row, results: Results) -> None:
    row.move(RowState.DONE)
    row.complete(results)
