"""Calls whose results are kept: equal rows have one call, and its result is in the store before its row is done."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from asyncudf.queues import Entry, StreamElement

from .._functions.async_function import Results
from .._functions.context import RuntimeContext
from .._functions.signature import FunctionSpec
from .._limits.limits import Limits
from .._metrics.counters import TaskCounters
from .._policies.options import Options
from .._policies.retry import EndedAttempt, is_lasting
from .._stores.values import StoredFailure
from .answers import Validate
from .call import Call, CallHooks
from .calls import Calls
from .claims import Claims
from .coalescing import LandedResults, SingleFlight
from .copies import copied
from .costs import Costs
from .looked_up import KeyedRecord
from .result_writer import ResultWriter
from .slots import CallSlot, SlotPool
from .stored_results import StoredResults, replayed

__all__ = ("StoredCalls",)


class Weighed(Protocol):
    """What bounds the bytes of results that wait."""

    def load(self, results: Sequence[Any], /) -> None: ...
    def unload(self, result: Any, /) -> None: ...


class StoredCalls(Calls):
    """The calls of rows that the store had nothing for.

    Args:
        stored: the store.
        is_starved: whether no other call can begin before a result has left.
        is_over: whether nobody waits for results any more.
        weighed: the queue, if it is bounded in bytes.
    """

    # A row that comes out of the line is done at once, if an equal one has landed since it was looked up; or it
    # follows the call of an equal one that is in flight; or it is called, and leads those to come.
    #
    # Each row with a call is in flight under its key, and leads, until its call is over: then it lands when its result
    # has been written, or leaves without. A follower has a `Call` as well, for its deadline, which is called if it
    # becomes the heir. _followers: these calls, by their entries.
    #
    # A follower's time is that of the call it waits for: its deadline runs from when that begins, or from when it comes
    # itself, and no longer once there is a result, which is only to be written. _called: the keys of calls that run.

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        validate: Validate | None,
        may_edit: bool,
        context: RuntimeContext,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        pool: SlotPool,
        counters: TaskCounters,
        costs: Costs,
        limits: Limits,
        hooks: CallHooks,
        *,
        stored: StoredResults,
        is_starved: Callable[[], bool],
        is_over: Callable[[], bool],
        weighed: Weighed | None,
    ) -> None:
        hooks = dataclasses.replace(hooks, complete=self._keep)
        super().__init__(spec, options, validate, may_edit, context, rng, loop, pool, counters, costs, limits, hooks)
        self._stored = stored
        self._counters = counters
        self._flights = SingleFlight[Entry]()
        self._followers: dict[Entry, Call] = {}
        self._outcomes: Sequence[Results | BaseException] | None = None  # of the call that is being concluded
        self._called: set[bytes] = set()
        self._weighed = weighed
        self.landed = LandedResults[tuple[Results | StoredFailure, float]]()  # with when it is too old
        self.writer = ResultWriter(
            stored, loop, lambda: pool.in_flight <= 1 or is_starved(), is_over, hooks.finished, hooks.failed
        )
        self.claims = Claims(
            stored,
            loop,
            self._clock,
            pool,
            options.timeout,
            self.ready.append,
            self._found,
            hooks.finished,
            hooks.failed,
        )

    def beginning(self, put_record: Callable[[Any], Entry]) -> Callable[[CallSlot, Any], float | None]:
        start, called, finished, claims = self._start, self._called, self._hooks.finished, self.claims

        def begin(slot: CallSlot, record: KeyedRecord) -> float | None:
            entry = put_record(record)
            if not self.needs_call(record, entry):
                if entry.is_done:
                    finished()
                return None
            if claims.needs((record,)):
                claims.add(self.open((record,), (entry,)))
                return None
            if (now := start(slot, entry)) is not None:
                called.add(record.key)  # type: ignore[arg-type]
            return now

        return begin

    def _keep(self, entry: Entry, result: Any) -> None:
        """A row has its result from its first attempt."""
        record: Any = entry.element
        results = [result]
        self._settle(record.key, entry, results, results)
        if entry.is_done:
            self._hooks.finished()

    def needs_call(self, record: KeyedRecord, entry: Entry) -> bool:
        key = record.key
        found: Results | StoredFailure | None = record.found
        if key is not None and found is None:
            found = self._fresh(self.landed.admit(key))
            self._counters.totals.shared_flights += found is not None
            if found is None and self._flights.join(key, entry):
                return True
        if found is not None:
            self._have(record, entry, found)
        elif record.error is not None:
            self._conclude(self.open((record,), (entry,)), [record.error])
        else:
            follower = self._followers[entry] = self.open((record,), (entry,))
            if key in self._called:
                self._begin(follower, follower.started)
        return False

    def _have(self, record: KeyedRecord, entry: Entry, found: Results | StoredFailure) -> None:
        """A row has what was found for it."""
        if isinstance(found, StoredFailure):
            self._conclude(self.open((record,), (entry,)), [replayed(found)])
        else:
            self.counts.uncalled(1, [found])
            entry.complete(copied(found))

    @property
    def takes_more(self) -> bool:  # type: ignore[override]
        return self.claims.takes_more

    def may_begin(self, call: Call) -> bool:
        if not self.claims.needs(call.records):
            return True
        self.claims.add(call)
        return False

    def _found(self, record: Any, entry: Entry, found: Any) -> None:
        """The store has something by now for a row that was to be called, and for all that follow it."""
        self.claims.give_back(record.key)
        for one in (entry, *self._flights.land(record.key, entry)):
            self._followers.pop(one, None)
            self._counters.totals.shared_flights += 1
            self._have(one.element, one, found)  # type: ignore[arg-type]

    def has_to_call(self, element: StreamElement) -> bool:
        if not isinstance(element, KeyedRecord) or element.key is None or element.found is not None:
            return False
        has_landed = self._fresh(self.landed.get(element.key)) is not None
        return not (has_landed or self._flights.is_flying(element.key))

    def _fresh(self, landed: tuple[Results | StoredFailure, float] | None) -> Results | StoredFailure | None:
        return landed[0] if landed is not None and self._clock() < landed[1] else None

    def invoke(self, slot: CallSlot, call: Call) -> Any:
        if call.is_fresh or not call.attempt:
            now = self._clock()
            for record in call.records:
                self._begin_with(record.key, now)  # type: ignore[attr-defined]
        return super().invoke(slot, call)

    def _begin_with(self, key: bytes | None, now: float) -> None:
        """The call with this key begins, and so does the time of all that follow it."""
        if key is None:
            return
        self._called.add(key)
        for follower in map(self._followers.__getitem__, self._flights.followers(key)):
            if follower.is_fresh:
                self._begin(follower, now)

    def next_ready(self) -> Call | None:
        call = super().next_ready()
        if call is not None and not call.attempt:
            call.started = self._clock()  # its attempts begin now, though its deadline runs since it came
        return call

    def _time_out(self, call: Call) -> None:
        self._leave(call)  # what stands in for a result is nobody else's
        super()._time_out(call)

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        delay = super()._next_delay(call, error, results)
        retry = self._options.retry
        if delay is None and error is None and results is not None and retry is not None:
            last = EndedAttempt(call.attempt, 0.0, call.waited, None, self._invoker.seen_by_retry(results))
            if retry.asks_again(last):  # the last of the attempts: its result stands, and is not kept
                self._leave(call)
        return delay

    def _renew(self, call: Call) -> None:
        super()._renew(call)
        for record, entry in zip(call.records, call.entries, strict=True):
            key = record.key  # type: ignore[attr-defined]
            if key is not None and self._flights.leads(key, entry):
                self._called.discard(key)
                for follower in map(self._followers.__getitem__, self._flights.followers(key)):
                    super()._renew(follower)

    def _conclude(
        self,
        call: Call,
        outcomes: Sequence[Results | BaseException],
        cause: BaseException | None = None,
        *,
        may_hold: bool = True,
    ) -> None:
        self._outcomes = outcomes
        super()._conclude(call, outcomes, cause, may_hold=may_hold)
        self._outcomes = None

    def _complete(self, call: Call, completed: Sequence[Results], now: float) -> None:
        outcomes, self._outcomes = self._outcomes or completed, None
        call.done = True
        self._count(call, completed, now)
        if not call.slots:
            self._deadlines.stop(call.watched)
        for record, entry, results, outcome in zip(call.records, call.entries, completed, outcomes, strict=True):
            self._settle(record.key, entry, results, outcome)  # type: ignore[attr-defined]
        self._hooks.finished()

    def _settle(self, key: bytes | None, entry: Entry, results: Results, outcome: Results | BaseException) -> None:
        """A row has its results; they are kept if its call has given them."""
        if key is None or not self._flights.leads(key, entry):
            entry.complete(results)
        elif not isinstance(outcome, BaseException):
            kept = self._stored.encoded(key, outcome)
            if kept is None:
                self._land(key, entry, results)
                return
            value, results = kept
            self._called.discard(key)
            for follower in self._flights.followers(key):
                self._deadlines.stop(follower)
            self._write(key, value, self._stored.ttl, results, partial(self._land, key, entry, results))
        elif self._stored.error_ttl is None or not is_lasting(outcome, self._options.retry):
            self._leave_flight(key, entry)
            entry.complete(results)
        else:
            # The error is for rows that come; those that have followed have attempts of their own.
            self._leave_flight(key, entry, keeps_lease=True)
            failure = self._stored.failure(outcome)
            land = partial(self._land_failure, key, entry, results, failure)
            self._write(key, self._stored.encoded_failure(key, failure), self._stored.error_ttl, results, land)

    def _write(self, key: bytes, value: bytes, ttl: float | None, results: Results, land: Callable[[], None]) -> None:
        """Write a value; while it is not there, its results count as those that wait in the queue."""

        def written() -> None:
            if weighed is not None:
                for result in results:
                    weighed.unload(result)
            land()

        weighed = self._weighed
        if weighed is not None:
            weighed.load(results)
        self.writer.put(key, value, ttl, written)

    def _land(self, key: bytes, entry: Entry, results: Results) -> None:
        """The results are in the store: now all that have waited for them are done."""
        self._called.discard(key)
        followers = self._flights.land(key, entry)
        self._end_lease(key)
        if self.landed.wants(key):
            # Of these, somebody further down may edit what is in them.
            self.landed.note(key, (copied(results), self._end(self._stored.ttl)))
        entry.complete(results)
        for follower in followers:
            call = self._followers.pop(follower)
            call.done = True
            self._deadlines.stop(call.watched)
            self._counters.totals.shared_flights += 1
            self.counts.uncalled(1, [results])
            follower.complete(copied(results))

    def _land_failure(self, key: bytes, entry: Entry, results: Results, failure: StoredFailure) -> None:
        self.landed.note(key, (failure, self._end(self._stored.error_ttl)))
        self._end_lease(key)
        entry.complete(results)

    def _end(self, ttl: float | None) -> float:
        return math.inf if ttl is None else self._clock() + ttl

    def _leave(self, call: Call) -> None:
        """The call has nothing for others."""
        for record, entry in zip(call.records, call.entries, strict=True):
            self._followers.pop(entry, None)
            if record.key is not None:  # type: ignore[attr-defined]
                self._leave_flight(record.key, entry)  # type: ignore[attr-defined]

    def _end_lease(self, key: bytes) -> None:
        if not self._flights.is_flying(key):
            self.claims.give_back(key)

    def _leave_flight(self, key: bytes, entry: Entry, *, keeps_lease: bool = False) -> None:
        leads = self._flights.leads(key, entry)
        heir = self._flights.leave(key, entry)
        if heir is not None:
            self.ready.append(self._followers.pop(heir))
            self._pool.wake()
        elif leads:
            self._called.discard(key)
            if not keeps_lease:
                self.claims.give_back(key)
