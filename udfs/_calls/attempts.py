"""One row's call from its deadline to its result.

The order of wrapping, outermost first, with the piece of code that does it:

    deadline(             Calls.open, _expire     covers all attempts and back-offs
      retry(              Calls._outcome          back-off holds no slot
        slot(             SlotPool                one slot, one attempt
          attempt_timeout(  Calls.invoke, _attempt_expired
            function)))   Invoker.invoke
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamRecord

from .._errors.exceptions import AsyncTimeoutError
from .._errors.records import is_fatal
from .._functions.async_function import Results
from .._functions.context import RuntimeContext
from .._functions.side_outputs import SideRecord
from .._functions.signature import FunctionSpec
from .._metrics.counters import TaskCounters
from .._policies.options import Options
from .._policies.retry import Attempt
from .answers import Answers, Validate
from .call import Call, CallHooks
from .copies import copied, with_own_arguments
from .counting import CallCounts
from .deadlines import ROUNDING, Deadlines
from .error_policy import ErrorPolicy
from .invokers import Invoker
from .slots import CallSlot, SlotPool

__all__ = ("Calls",)


class Calls:
    """The calls in progress, in back-off and ready to be tried again.

    Args:
        may_edit: whether arguments may be lists or dicts, which an attempt could edit.
    """

    # An attempt may come back from its coroutine, its ResultFuture, its own limit or the row's deadline, more than one
    # of them at once. All end in `_outcome` or `_expire`; the first one counts, and later ones find `slot.call` taken
    # away or `call.done` set.
    #
    # A call that is not done is in one place: at work in a slot, in back-off (a timer of the loop), or in `ready`.

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
        hooks: CallHooks,
    ) -> None:
        self._invoker: Invoker
        self._options = options
        self._policy = ErrorPolicy(options, spec.name, context.partition)
        self._rng = rng
        self._loop = loop
        self._clock = counters.clock
        self._pool = pool
        self._latencies = counters.latencies
        is_even = not (spec.many_results or spec.has_context or spec.vectorized)
        self.counts = CallCounts(counters, options.redact, self._begun, is_even=is_even)
        self._answers = Answers(validate)
        self._hooks = hooks
        self._deadlines: Deadlines[Call] = Deadlines(
            loop, self._clock, options.timeout, partial(self._due, self._expire)
        )
        self._attempts: Deadlines[Call] = Deadlines(
            loop, self._clock, options.attempt_timeout, partial(self._due, self._attempt_expired)
        )
        self.ready: deque[Call] = deque()  # whose back-off is over
        self._backing_off: set[Call] = set()
        self._limits_attempts = options.attempt_timeout is not None
        # Whether the function can ask which row it works on, or its span which attempt it is of.
        self.asks = spec.has_context or options.spans
        # Whether an attempt gets copies of its arguments, which are seen again later; an AsyncFunction's is a dict.
        is_seen_again = spec.has_context or options.retry is not None or options.on_timeout is not None
        self._copies = is_seen_again and (may_edit or spec.takes_mapping)
        self._takes_any_result = options.retry is None or not options.retry.checks_results

    def use(self, invoker: Invoker) -> Callable[..., Coroutine[Any, Any, Any]] | None:
        """The function is open; returned is what `run_fast_path` may call, if it may."""
        self._invoker = invoker
        if invoker.direct is None or not self._takes_any_result:
            return None
        return with_own_arguments(invoker.direct) if self._copies else invoker.direct

    def open(self, records: Sequence[StreamRecord], entries: Sequence[Entry]) -> Call:
        """The call of rows that have just entered the queue: from here the deadline runs."""
        call = Call(records, entries, now := self._clock())
        call.deadline = self._deadlines.start(call, now)
        return call

    def admit(self, slot: CallSlot, record: StreamRecord, entry: Entry) -> None:
        """The call of a row whose first attempt is under way in the slot, whose state knows it already."""
        # All is dated back to when the attempt began: whether a row was admitted before or after must not be seen.
        started = slot.state.started
        call = Call((record,), (entry,), started)
        slot.state.deadline = call.deadline = self._deadlines.start(call, started)
        call.attempt = 1
        call.slots.append(slot)
        slot.call = call
        if self._limits_attempts:
            self._attempts.start(call, started)

    def invoke(self, slot: CallSlot, call: Call) -> Any:
        """The coroutine of the call's next attempt, for the slot to await."""
        call.attempt += 1
        call.slots.append(slot)
        slot.call = call
        values = [record.value for record in call.records]
        now = self._clock()
        if self.asks:
            element = call.records[0] if len(values) == 1 else StreamRecord(tuple(values))
            state = slot.meet(element, call.attempt)
            state.started, state.deadline, state.is_batch = now, call.deadline, len(values) > 1
        self._attempts.start(call, now)
        deliver = partial(self._delivered, slot, call, call.attempt)
        return self._invoker.invoke(copied(values) if self._copies else values, deliver)

    def next_ready(self) -> Call | None:
        """A call whose back-off is over."""
        while self.ready:
            call = self.ready.popleft()
            if self._is_over(call):
                self._expire(call)
            elif not call.done:
                self.counts.begins_again(call)
                return call
        return None

    def _is_over(self, call: Call) -> bool:
        """Whether the deadline has come, though the loop may not have noticed it."""
        return call.deadline is not None and self._clock() + ROUNDING >= call.deadline

    def ended(self, slot: CallSlot, call: Call, results: Sequence[Results] | None, error: BaseException | None) -> None:
        """The coroutine of an attempt is over."""
        call.slots.remove(slot)
        slot.is_suspended = False
        if slot.call is call:
            slot.call = None
            self._outcome(call, results, error, slot.state.side)
        elif call.done and not call.slots:  # a ResultFuture had ended it: until now the deadline watched what ran on
            self._deadlines.stop(call)

    def _delivered(
        self, slot: CallSlot, call: Call, attempt: int, results: Results | None, error: BaseException | None
    ) -> None:
        """A ResultFuture was completed: its attempt is decided, though the coroutine may run on."""
        if slot.call is call and call.attempt == attempt and not slot.abandoned:  # not one of an earlier attempt
            slot.call = None
            self._outcome(call, None if results is None else [results], error, slot.state.side)
            self._hooks.runs_on()

    def _begun(self) -> Iterable[Call]:
        return {*self._pool.calls, *self._backing_off, *self.ready}

    def close(self) -> None:
        """Watch no deadline any more."""
        self._deadlines.close()
        self._attempts.close()

    def _due(self, end: Callable[[Call], None], call: Call) -> None:
        try:
            end(call)
        except BaseException as error:  # a timer's exception would only be logged
            self._hooks.failed(error)

    def _expire(self, call: Call) -> None:
        """The row's deadline has come: it is done, whatever still runs for it."""
        self._abandon_slots(call)
        self._attempts.stop(call)
        if not call.done:
            self._time_out(call)
        self._pool.wake()

    def _attempt_expired(self, call: Call) -> None:
        """The attempt's own limit has come: an outcome like an exception, which may be tried again."""
        if self._is_over(call):
            self._expire(call)
            return
        self._abandon_slots(call)
        self._attempts.stop(call)
        self.counts.attempt_timed_out(call)
        limit = self._options.attempt_timeout
        self._outcome(call, None, AsyncTimeoutError(f"attempt {call.attempt} gave no result within {limit:g} s"))
        self._pool.wake()

    def _abandon_slots(self, call: Call) -> None:
        for slot in call.slots:
            self._pool.abandon(slot)
        call.slots.clear()

    def _time_out(self, call: Call) -> None:
        error = AsyncTimeoutError(f"no result within {self._options.timeout:g} s")
        answers = [self._answers.late(self._invoker, call, record, error) for record in call.records]
        self.counts.timed_out(call, answers)
        self._conclude(call, answers)

    def _outcome(
        self,
        call: Call,
        results: Sequence[Results] | None,
        error: BaseException | None,
        side: Sequence[SideRecord] = (),
    ) -> None:
        """An attempt has come back, in time or not: the row is done, or it is tried again."""
        # The clock decides, not the timer: where a call has blocked the loop, a late result may come before its timer.
        now = self._clock() - ROUNDING
        if call.deadline is not None and now > call.deadline:
            self._expire(call)  # the loop was too busy to notice it in time
            return
        if self._limits_attempts and now > (self._attempts.stop(call) or now):
            self._attempt_expired(call)
            return
        if call.done:
            return
        outcomes, misfit = self._answers.checked(results or (), side)
        failure = misfit if error is None else error
        if failure is None and self._takes_any_result:
            self._complete(call, outcomes, now)  # type: ignore[arg-type]
            return
        if failure is not None:
            self.counts.error(failure)
        try:
            delay = self._next_delay(call, failure, results)
        except BaseException as own:  # a predicate of the retry strategy failed
            error, delay = own, None
        if delay is not None:
            call.waited += delay
            self.counts.retries(call)
            self._backing_off.add(call)
            self._loop.call_later(delay, self._retry, call)
        else:
            self._conclude(call, outcomes if error is None else [error] * len(call.records))

    def _next_delay(self, call: Call, error: BaseException | None, results: Sequence[Results] | None) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        retry = self._options.retry
        if retry is None or (error is None and not retry.checks_results) or is_fatal(error):
            return None
        now = self._clock()
        result = None if results is None else self._invoker.seen_by_retry(results)
        delay = retry.next_delay(Attempt(call.attempt, now - call.started, call.waited, error, result), self._rng)
        # A row does not wait for an attempt that its deadline would cut off before it begins.
        late = delay is not None and call.deadline is not None and now + delay >= call.deadline
        return None if late else delay

    def _retry(self, call: Call) -> None:
        self._backing_off.discard(call)
        self.ready.append(call)
        self._pool.wake()

    def _conclude(self, call: Call, outcomes: Sequence[Results | BaseException]) -> None:
        """No attempt follows: errors go the way of `on_error`, row by row."""
        completed: list[Results] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if self._policy.fails_task(outcome):
                    rows = [record.value for record in call.records]
                    self.counts.failed_task(call)
                    self._hooks.failed(self._policy.task_error(outcome, call.attempt, rows))
                    return
                result = self._policy.result(outcome, call.attempt, self._clock() - call.started)
                self.counts.failed(result)
                completed.append((result,))
            else:
                completed.append(outcome)
        self._complete(call, completed, self._clock())

    def _complete(self, call: Call, completed: Sequence[Results], now: float) -> None:
        call.done = True
        self._latencies.append(now - call.started)
        if not self.counts.is_even:
            self.counts.completed(call, completed)
        if not call.slots:
            self._deadlines.stop(call)
        for entry, results in zip(call.entries, completed, strict=True):
            entry.complete(results)
        self._hooks.finished()
