"""One row's call from its deadline to its result.

The order of wrapping, outermost first, with the piece of code that does it:

    deadline(             Calls.open, _expire     covers all attempts and back-offs
      retry(              Calls._outcome          back-off holds no slot
        slot(             WorkerPool              one worker, one attempt
          attempt_timeout(  Calls.begin, _attempt_expired
            function)))   Invocation.invoke
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamRecord

from ._deadlines import Deadlines
from ._errors import AsyncTimeoutError, ResultError
from ._failures import is_fatal, located_error, told_error
from ._function import CURRENT_SLOT, CallSlot, Results, RuntimeContext
from ._invoke import Invocation
from ._options import OnError, Options
from ._retry import Attempt
from ._tags import DEAD_LETTERS, SideRecord
from ._text import short
from ._workers import Worker

__all__ = ("Call", "CallHooks", "Calls")

Finish = Callable[[Any], Any]


class Call:
    """A row, or the rows of one micro-batch, on the way to their results."""

    # done: the entries are complete. workers: those inside the function for this call (more than one when a
    # ResultFuture ended an attempt whose coroutine runs on).
    __slots__ = ("attempt", "deadline", "done", "entries", "records", "started", "waited", "workers")

    def __init__(self, records: Sequence[StreamRecord], entries: Sequence[Entry], started: float) -> None:
        self.records = records
        self.entries = entries
        self.started = started
        self.deadline: float | None = None
        self.attempt = 0
        self.waited = 0.0
        self.done = False
        self.workers: list[Worker] = []


@dataclasses.dataclass(frozen=True)
class CallHooks:
    """What the calls tell their operator."""

    finished: Callable[[], None]  # entries were completed
    failed: Callable[[BaseException], None]  # the task must fail
    wake: Callable[[], None]  # a slot is free or a retry is ready
    abandon: Callable[[Worker], None]  # a worker's call must end, its slot goes to another


class Calls:
    """The calls in progress, in back-off and ready to be tried again."""

    def __init__(
        self,
        options: Options,
        finish: Finish | None,
        context: RuntimeContext,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        hooks: CallHooks,
    ) -> None:
        self._invocation: Invocation
        self._options = options
        self._finish = finish
        self._context = context
        self._rng = rng
        self._loop = loop
        self._hooks = hooks
        self._deadlines: Deadlines[Call] = Deadlines(loop, options.timeout, self._expire)
        self._attempts: Deadlines[Call] = Deadlines(loop, options.attempt_timeout, self._attempt_expired)
        self._ready: deque[Call] = deque()
        self._limits_attempts = options.attempt_timeout is not None
        self._takes_any_result = options.retry is None or not options.retry.checks_results

    def use(self, invocation: Invocation) -> None:
        """The function is open."""
        self._invocation = invocation

    def open(self, records: Sequence[StreamRecord], entries: Sequence[Entry]) -> Call:
        """The call of rows that have just entered the queue: from here the deadline runs."""
        call = Call(records, entries, now := self._loop.time())
        call.deadline = self._deadlines.start(call, now)
        return call

    def admit(self, worker: Worker, entry: Entry) -> Call:
        """The call of a row whose first attempt is under way in the worker, whose slot knows it already."""
        call = Call((entry.element,), (entry,), now := self._loop.time())  # type: ignore[arg-type]
        worker.slot.deadline = call.deadline = self._deadlines.start(call, now)
        call.attempt = 1
        call.workers.append(worker)
        worker.call = call
        if self._limits_attempts:
            self._attempts.start(call, now)
        return call

    def begin(self, worker: Worker, call: Call) -> None:
        """The worker starts the call's next attempt."""
        call.attempt += 1
        call.workers.append(worker)
        worker.call = call
        slot = worker.slot
        records = call.records
        slot.element = records[0] if len(records) == 1 else StreamRecord(tuple(record.value for record in records))
        slot.attempt = call.attempt
        slot.deadline = call.deadline
        self._attempts.start(call, self._loop.time())

    def invoke(self, worker: Worker, call: Call) -> Any:
        """The coroutine of the call's next attempt."""
        self.begin(worker, call)
        return self._invocation.invoke([r.value for r in call.records], partial(self._delivered, worker, call))

    def next_ready(self) -> Call | None:
        """A call whose back-off is over."""
        while self._ready:
            call = self._ready.popleft()
            if not call.done:
                return call
        return None

    @property
    def any_ready(self) -> bool:
        return bool(self._ready)

    def ended(self, worker: Worker, call: Call, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The worker's coroutine is over."""
        call.workers.remove(worker)
        slot = worker.slot
        slot.attempt, slot.deadline = 0, None
        slot.is_suspended = False
        side, slot.side = slot.side, ()
        if worker.call is call:
            worker.call = None
            if self._limits_attempts:
                self._attempts.stop(call)
            if error is not None or side or not self._takes_any_result or not self._complete(call, results):
                self._outcome(call, results, error, side)
        elif call.done and not call.workers:
            self._deadlines.stop(call)

    def _complete(self, call: Call, results: Sequence[Results] | None) -> bool:
        """The usual end of a call of one row: its results fit, and nothing else is to be asked."""
        if results is None or len(call.entries) > 1 or call.done:
            return False
        try:
            finished = results[0] if self._finish is None else self._finished(results[0])
        except ResultError:
            return False
        call.done = True
        if not call.workers:
            self._deadlines.stop(call)
        call.entries[0].complete(finished)
        self._hooks.finished()
        return True

    def close(self) -> None:
        """Watch no deadline any more."""
        self._deadlines.close()
        self._attempts.close()

    def _delivered(self, worker: Worker, call: Call, results: Results | None, error: BaseException | None) -> None:
        """A ResultFuture was completed: the attempt is decided, though its coroutine may run on."""
        if worker.call is call and not worker.abandoned:
            worker.call = None
            self._attempts.stop(call)
            self._outcome(call, None if results is None else [results], error, worker.slot.side)

    def _expire(self, call: Call) -> None:
        self._abandon_workers(call)
        self._attempts.stop(call)
        if not call.done:
            self._time_out(call)
        self._hooks.wake()

    def _attempt_expired(self, call: Call) -> None:
        self._abandon_workers(call)
        limit = self._options.attempt_timeout
        self._outcome(call, None, AsyncTimeoutError(f"attempt {call.attempt} gave no result within {limit:g} s"))
        self._hooks.wake()

    def _abandon_workers(self, call: Call) -> None:
        for worker in call.workers:
            self._hooks.abandon(worker)
        call.workers.clear()

    def _time_out(self, call: Call) -> None:
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        self._conclude(call, [self._timed_out(call, record, error) for record in call.records])

    def _timed_out(self, call: Call, record: StreamRecord, error: BaseException) -> Results | BaseException:
        slot = CallSlot()  # the function's own answer may ask its context too
        slot.element, slot.attempt, slot.deadline = record, call.attempt, call.deadline
        token = CURRENT_SLOT.set(slot)
        try:
            return [*self._finished(self._invocation.timed_out(record.value, error)), *slot.side]
        except BaseException as own:
            return own
        finally:
            CURRENT_SLOT.reset(token)

    def _outcome(
        self,
        call: Call,
        results: Sequence[Results] | None,
        error: BaseException | None,
        side: Sequence[SideRecord] = (),
    ) -> None:
        if call.done:
            return
        outcomes: list[Results | BaseException] = []
        if results is not None:
            outcomes = [self._finished_or_error(result) for result in results]
            if side and not isinstance(outcomes[-1], BaseException):  # those of a micro-batch go with its last row
                outcomes[-1] = [*outcomes[-1], *side]
            if len(outcomes) == 1 and isinstance(outcomes[0], ResultError):
                error = outcomes[0]
        try:
            delay = self._next_delay(call, error, results)
        except Exception as own:  # a predicate of the retry strategy failed
            error, delay = own, None
        if delay is not None:
            call.waited += delay
            self._loop.call_later(delay, self._retry, call)
        else:
            self._conclude(call, outcomes if error is None else [error] * len(call.records))

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        retry = self._options.retry
        if retry is None or (error is None and not retry.checks_results) or is_fatal(error):
            return None
        now = self._loop.time()
        result = None if results is None else self._invocation.seen_by_retry(results)
        delay = retry.next_delay(Attempt(call.attempt, now - call.started, call.waited, error, result), self._rng)
        late = delay is not None and call.deadline is not None and now + delay >= call.deadline
        return None if late else delay

    def _retry(self, call: Call) -> None:
        self._ready.append(call)
        self._hooks.wake()

    def _conclude(self, call: Call, outcomes: Sequence[Results | BaseException]) -> None:
        completed: list[Results] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if self._options.on_error is OnError.RAISE or is_fatal(outcome):
                    self._hooks.failed(self._row_error(call, outcome))
                    return
                completed.append((self._error_result(call, outcome),))
            else:
                completed.append(outcome)
        call.done = True
        if not call.workers:
            self._deadlines.stop(call)
        for entry, results in zip(call.entries, completed, strict=True):
            entry.complete(results)
        self._hooks.finished()

    def _finished(self, results: Results) -> Results:
        return results if self._finish is None else [self._finish(result) for result in results]

    def _finished_or_error(self, results: Results) -> Results | BaseException:
        try:
            return self._finished(results)
        except ResultError as error:
            return error

    def _error_result(self, call: Call, error: BaseException) -> Any:
        if self._options.on_error is OnError.NULL:
            return None
        told = told_error(error, call.attempt, self._loop.time() - call.started)
        if self._options.on_error is OnError.CAPTURE:
            return {"value": None, "error": told}
        where = {"function": self._invocation.name, "partition": self._context.partition}
        return SideRecord(DEAD_LETTERS, {"error": {**told, **where}})

    def _row_error(self, call: Call, error: BaseException) -> BaseException:
        values = call.records[0].value if len(call.records) == 1 else [r.value for r in call.records]
        where = f"{self._invocation.name} failed in attempt {call.attempt}, partition {self._context.partition}"
        return located_error(error, f"{where}, for the input {short(values)}")
