"""Equal rows share one call, and its result is in the store before its rows are done."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamElementQueue

from .._calls.call import Call, RowSharing
from .._calls.calls import Calls
from .._calls.invokers import copied
from .._calls.resources import closing
from .._calls.slots import CallSlot
from .._functions.async_function import Results
from .._policies.options import Options
from .._policies.retry import is_lasting
from .._stores.values import StoredFailure
from .claims import Claims
from .coalescing import LandedResults, SingleFlight
from .lookup import LookedUpInput, LookupAhead
from .rows import CacheMiss, misses_of
from .stored_results import Found, StoredResults, StoreOperator, StoreWriter

__all__ = ("StoreSharing",)


class StoreSharing(RowSharing):
    """Shares calls between equal rows that the store has no result for, and keeps their results.

    Args:
        buffer: the input; gets the rows that were looked up.
        request_batch: asks for a batch of rows.
        is_single: whether each row has exactly one result.

    Attributes:
        inlet: takes rows, and looks them up.
    """

    # A row that enters the queue is done at once if the call of an equal row has landed since the row was looked up. If
    # such a call is in flight, the row follows it. If not, the row is called, and leads equal rows to come.
    #
    # A row with a call is in flight under its key, and leads, until its call is over: then it lands, when its result
    # has been written, or leaves without a result. A follower has a `Call` as well, for its deadline; it is made if the
    # row becomes the leader. _followers: these calls, by their entries.
    #
    # The deadline of a follower runs from when the call of its leader begins, or from when it comes itself, until there
    # is a result that only has to be written. _called: the keys of calls that run, and when each began.

    def __init__(
        self,
        operator: StoreOperator,
        stored: StoredResults,
        options: Options,
        calls: Calls,
        queue: StreamElementQueue,
        buffer: LookedUpInput,
        request_batch: Callable[[], None],
        *,
        is_single: bool,
    ) -> None:
        self._operator = operator
        self._stored = stored
        self._calls = calls
        self._pool = pool = calls.pool
        self._queue = queue
        self._retry = options.retry
        self._clock = operator.counters.clock
        self._totals = operator.counters.totals
        self._flights = SingleFlight[Entry]()
        self._followers: dict[Entry, Call] = {}
        self._called: dict[bytes, float] = {}
        self._landed = LandedResults[tuple[list[Any] | StoredFailure, float]]()  # with when it is too old
        self._writer = StoreWriter(operator, stored, lambda: pool.in_flight <= 1 or queue.places <= 0)
        self._claims = Claims(operator, self, stored, calls, options)
        self.inlet = LookupAhead(operator, stored, self._landed, buffer, request_batch, is_single=is_single)
        buffer.request_from(self.inlet.go_on)

    keeps_results = True

    # Opening and closing, in this order.

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        failure = f"results of {self._operator.name} could not be stored"
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(closing(self._close_in_own_task, failure, limit=self._stored.close_limit))
            yield

    def open(self) -> None:
        self.inlet.open()

    async def end(self) -> None:
        self._writer.end()
        await self.inlet.close()
        await self._claims.close()

    async def _close_in_own_task(self, *error: object) -> None:
        # In a task that is not to be cut short the time limits of the store would not hold.
        await asyncio.create_task(self._close())

    async def _close(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._stored.close()

    @property
    def is_waiting(self) -> bool:  # type: ignore[override]
        if (self._writer.is_writing or self._claims.is_waiting) and not self._pool.in_flight:
            return True
        return self.inlet.is_behind

    @property
    def followers(self) -> int:  # type: ignore[override]
        return len(self._followers)

    # Before the call.

    @property
    def takes_more(self) -> bool:  # type: ignore[override]
        return self._claims.takes_more

    def has_to_call(self, element: Any) -> bool:
        if not isinstance(element, CacheMiss) or element.key is None or element.found is not None:
            return False
        return not (self._flights.is_flying(element.key) or self._fresh(self._landed.get(element.key)) is not None)

    def needs_call(self, row: Any, entry: Entry) -> bool:
        key: bytes | None = row.key
        found: Found = row.found
        if key is not None and found is None:
            landed = self._landed.admit(key)
            if landed is not None and (found := self._fresh(landed)) is not None:
                self._totals.shared_flights += 1
            elif self._flights.join(key, entry):
                return True
        if found is not None:
            self._have(entry, found)
        elif row.error is not None:
            self._calls.conclude(self._calls.open_row(entry), [row.error])
        else:
            follower = self._followers[entry] = self._calls.open_row(entry)
            self._operator.waiting_has_changed()
            if key in self._called:
                self._calls.start_deadline(follower, follower.started)
        return False

    def _fresh(self, landed: tuple[list[Any] | StoredFailure, float] | None) -> Found:
        return landed[0] if landed is not None and self._clock() < landed[1] else None

    def _have(self, entry: Entry, found: Results | StoredFailure) -> None:
        """A row is done with what was found for it."""
        if isinstance(found, StoredFailure):
            self._calls.conclude(self._calls.open_row(entry), [self._stored.replayed(found)])
        else:
            self._calls.counts.uncalled([found])
            entry.complete(copied(found))

    def beginning(
        self, put_record: Callable[[Any], Entry], begin: Callable[[CallSlot, Entry], float | None]
    ) -> Callable[[CallSlot, Any], float | None]:
        claims, called, needs_call = self._claims, self._called, self.needs_call

        def begin_shared(slot: CallSlot, row: CacheMiss) -> float | None:
            entry = put_record(row)
            if not needs_call(row, entry):
                if entry.is_done:
                    self._operator.push()
                return None
            if claims.needs(row):
                claims.add(Call((row,), (entry,), row.looked_up))
                return None
            if (now := begin(slot, entry)) is not None and row.key is not None:
                called[row.key] = now
            return now

        return begin_shared

    def may_begin(self, call: Call) -> bool:
        if not self._claims.needs(call.records[0]):  # type: ignore[arg-type]
            return True
        self._claims.add(call)
        return False

    def found(self, row: CacheMiss, entry: Entry, found: Found) -> None:
        # The rows that follow this one have it too.
        key = row.key
        assert key is not None
        assert found is not None
        followers = self._flights.land(key, entry)
        self._end_lease(key)
        for one in (entry, *followers):
            self._followers.pop(one, None)
            self._totals.shared_flights += 1
            self._have(one, found)

    # While it is called.

    def begins(self, call: Call, now: float) -> None:
        for row, entry in misses_of(call):
            key = row.key
            if key is not None and not self._flights.is_flying(key):
                self._flights.join(key, entry)  # again: it was late, and an outage has excused it
            if key is not None and self._flights.leads(key, entry):
                self._called.setdefault(key, now)
                for follower in self._followers_of(key) if self._followers else ():
                    if follower.is_fresh:
                        self._calls.start_deadline(follower, now)

    def _followers_of(self, key: bytes) -> Iterable[Call]:
        return map(self._followers.__getitem__, self._flights.followers(key))

    def renewed(self, call: Call) -> Iterator[Call]:
        for row, entry in misses_of(call):
            if row.key is not None and self._flights.leads(row.key, entry):
                self._called.pop(row.key, None)
                yield from self._followers_of(row.key)

    def leaves(self, call: Call) -> None:
        for row, entry in misses_of(call):
            self._followers.pop(entry, None)
            if row.key is not None:
                self._leave_flight(row.key, entry)

    # Its result.

    def completing(self, complete: Callable[[Entry, Any], object]) -> Callable[[Entry, Any], object]:
        return self._keep

    def _keep(self, entry: Entry, result: Any) -> None:
        """Give a row the result of its first attempt."""
        row: Any = entry.element
        results = [result]
        self._finish(row.key, entry, results, results)
        if entry.is_done:
            self._operator.push()

    def complete(self, call: Call, completed: Sequence[Results], outcomes: Sequence[Results | BaseException]) -> None:
        for (row, entry), results, outcome in zip(misses_of(call), completed, outcomes, strict=True):
            self._finish(row.key, entry, results, outcome)

    def _finish(self, key: bytes | None, entry: Entry, results: Results, outcome: Results | BaseException) -> None:
        """Give a row its results, and keep them if its call has made them."""
        if key is None or not self._flights.leads(key, entry):
            entry.complete(results)
            return
        stored = self._stored
        found: Results | StoredFailure
        if not isinstance(outcome, BaseException):
            ttl, kept = stored.ttl, stored.encoded(key, outcome)
            value, found = (None, outcome) if kept is None else kept
            results = found
        elif stored.error_ttl is None or not is_lasting(outcome, self._retry):
            began = self._called.get(key, math.inf)
            is_repeated = self._leave_flight(key, entry)
            if stored.error_ttl is None and is_lasting(outcome, self._retry):
                self._totals.unkept_failures += 1
                self._totals.repeated_seconds += max(0.0, self._clock() - began) if is_repeated else 0.0
            entry.complete(results)
            return
        else:
            ttl, found = stored.error_ttl, stored.failure(outcome)
            value = stored.encoded_failure(key, found)
        # The call is over: no deadline runs while its outcome is written.
        self._called.pop(key, None)
        if self._followers:
            for follower in self._flights.followers(key):
                self._calls.stop_deadline(follower)
        if value is None:
            self._land(key, entry, results, found, ttl)
        elif (memory := self._queue.memory) is None:
            self._writer.put(key, value, ttl, partial(self._land, key, entry, results, found, ttl))
        else:
            # Until they are written these results wait here, and count as if they were in the queue.
            release = partial(memory.release, memory.hold_results(results))
            land = partial(self._land_written, release, key, entry, results, found, ttl)
            self._writer.put(key, value, ttl, land)

    def _land_written(self, release: Callable[[], None], *landed: Any) -> None:
        release()
        self._land(*landed)

    def _land(
        self, key: bytes, entry: Entry, results: Results, found: Results | StoredFailure, ttl: float | None
    ) -> None:
        """The outcome is in the store: all rows that have waited for it are done.

        Args:
            found: what rows have that find it there.
        """
        if self._landed.wants(key):
            # A copy for rows to come: code further down may edit these results.
            self._landed.note(key, (copied(found), math.inf if ttl is None else self._clock() + ttl))
        followers = self._flights.land(key, entry)
        self._end_lease(key)
        entry.complete(results)
        for follower in followers:
            self._followers.pop(follower).done = True
            self._totals.shared_flights += 1
            self._have(follower, found)
        if followers:
            self._operator.waiting_has_changed()

    def _end_lease(self, key: bytes) -> None:
        """Give back the lease of a key whose call is over, or is not made."""
        if (leases := self._stored.leases) is not None and not self._flights.is_flying(key):
            leases.give_back(key)

    def _leave_flight(self, key: bytes, entry: Entry) -> bool:
        """End a call without results; returns whether a row that followed it is called now."""
        leads = self._flights.leads(key, entry)
        heir = self._flights.leave(key, entry)
        if heir is not None:
            self._calls.ready.append(self._followers.pop(heir))
            self._pool.wake()
        elif leads:
            self._called.pop(key, None)
            self._end_lease(key)
        return heir is not None
