"""What a row gets from its attempts: checked results, what stands in for a late or failed one, and the counts."""

from __future__ import annotations

import contextvars
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import StreamRecord

from .._errors.exceptions import AsyncUDFError, BudgetSpentError, FatalError
from .._errors.records import (
    error_message,
    error_record,
    error_text,
    shown_input,
    task_error,
)
from .._functions.async_function import CURRENT_CALL, CallState, Results
from .._metrics.counters import TaskCounters
from .._policies.failure import Failure
from .._policies.options import OnError, Options
from .._policies.side_outputs import DEAD_LETTERS, SideRecord
from .._text.safe import type_name
from .invokers import Invoker
from .row import Call, JointAttempt

Validate = Callable[[Any], Any]
Outcome = Results | Failure  # of a row
LONGEST_CAUSE = 150  # characters
# A note and not part of the message, which ends with the user's own.
OTHER_POLICIES = (
    'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; a sink with dead_letters=.'
)


class ResultChecker:
    """Checks the results of attempts, and asks `on_timeout` for the answer of a row that is late.

    Args:
        validate: checks and converts each result.
    """

    def __init__(self, validate: Validate | None) -> None:
        self._validate = validate
        self._context = contextvars.copy_context()  # without any row's variables

    def checked(
        self, results: Sequence[Results | BaseException], side: Sequence[SideRecord]
    ) -> tuple[list[Outcome], Failure | None]:
        """For each row its results with its side records, or its failure; and the first failure."""
        outcomes: list[Outcome] = []
        validate = self._validate
        for result in results:
            if isinstance(result, BaseException):  # the function has answered so for this row
                outcomes.append(Failure(result))
                continue
            try:
                outcomes.append([*(result if validate is None else map(validate, result)), *side])
                side = ()  # the side records of a micro-batch go with its first good row
            except BaseException as own:  # a ResultError, or an error of the user's code that the check has run
                outcomes.append(Failure(own))
        return outcomes, next((one for one in outcomes if type(one) is Failure), None)

    def late(self, invoker: Invoker, call: Call, record: StreamRecord, error: BaseException) -> Outcome:
        """What the function, or `on_timeout`, answers for a row whose deadline has come, or a failure."""
        state = CallState(record, call.attempt)  # the answer may ask for its context too
        state.deadline, state.last_error = call.deadline, call.trouble.last_error

        def answer() -> Results:
            CURRENT_CALL.set(state)
            results = invoker.timed_out(record.value, error)
            return [*(results if self._validate is None else map(self._validate, results)), *state.side]

        try:
            return self._context.copy().run(answer)
        except BaseException as own:
            return Failure(own)


class ErrorPolicy:
    """The error policy of one function in one task."""

    def __init__(self, options: Options, function: str, partition: int) -> None:
        self._on_error = options.on_error
        self._on_spent = OnError(options.on_spent.value)
        self._redact, self._redacted = options.redact, options.redacted
        self._capacity = options.slots
        self._function = function
        self._partition = partition

    def fails_task(self, failure: Failure) -> bool:
        """Whether the task ends with this failure."""
        return self._policy_of(failure.error) is OnError.RAISE or failure.is_no_rows_fault

    def _policy_of(self, error: BaseException) -> OnError:
        if type(error) is not BudgetSpentError:
            return self._on_error
        is_captured = self._on_error is OnError.CAPTURE and self._on_spent is OnError.NULL
        return OnError.CAPTURE if is_captured else self._on_spent

    def result(self, failure: Failure, attempts: int, elapsed: float) -> Any:
        """The result of the row, if the task goes on."""
        policy = self._policy_of(failure.error)
        if policy is OnError.NULL:
            return None
        record = error_record(failure.error, failure.answer.status, attempts, elapsed, redacted=self._redacted)
        if policy is OnError.CAPTURE:
            return {"value": None, "error": record}
        # A dead letter is a result up to the output, so that it leaves at the row's place, and once.
        return SideRecord(DEAD_LETTERS, {"error": {**record, "function": self._function, "partition": self._partition}})

    def used_up(self, error: BaseException, code: str) -> FatalError:
        """The error of a call whose service has said by this code that a quota is used up."""
        fatal = FatalError(
            f"a quota of the service is used up ({code}), so it accepts no call any more, and the job ends: "
            f"{error_text(error, redacted=self._redacted)}. Results that are in a store= are kept: run the job again "
            "when the account has a quota"
        )
        fatal.__cause__ = error
        fatal.option = "quota"
        return fatal

    def task_error(self, failure: Failure, attempt: int, rows: Sequence[Any]) -> BaseException:
        """The error that ends the task; it names the function, the attempt, the partition and the input."""
        how = f"in attempt {attempt}" if attempt else "without a call"  # it has no key, or its error was stored
        where = f"{self._function} failed {how}, partition {self._partition}"
        where = f"{where}, for the input {shown_input(rows, self._redact)}"
        located = task_error(failure.error, where, redacted=self._redacted, capacity=self._capacity)
        if not failure.is_no_rows_fault:
            located.add_note(OTHER_POLICIES)
        return located


def usual_error(errors: Sequence[BaseException], rows: int) -> BaseException | None:
    """What a service has done that has answered each of so many rows: the error of most, if most have one."""
    if 2 * len(errors) <= rows:
        return None
    (usual, _), *_ = Counter(map(type, errors)).most_common(1)
    return next(error for error in errors if type(error) is usual)


class CallCounts:
    """Counts the calls of an operator."""

    # Most of what is counted follows from the length of a list of latencies, see TaskCounters.

    def __init__(self, counters: TaskCounters, *, redacted: bool) -> None:
        self._counters = counters
        self._redacted = redacted

    def failure(self, failure: Failure) -> None:
        """An attempt has ended so."""
        message = partial(error_message, failure.error, redacted=self._redacted)
        self._counters.totals.note_error(type_name(failure.error), message, failure.answer.status)

    def failures_of_rows(self, failures: Sequence[Any]) -> None:
        """The same of an attempt of which some rows have failed: it counts once for each type."""
        for failure in {type(one.error): one for one in reversed(failures)}.values():
            self.failure(failure)

    @property
    def throttled_attempts(self) -> int:
        """How many attempts the service has refused whose calls wait."""
        return self._counters.totals.throttled

    @throttled_attempts.setter
    def throttled_attempts(self, attempts: int) -> None:
        self._counters.totals.throttled = attempts

    def attempt_timed_out(self, call: Call) -> None:
        self._counters.totals.timeouts += not call.is_over

    def timed_out(self, call: Call, answers: Sequence[Outcome], *, goes_on: bool) -> None:
        """A call is late; these are the answers for its rows. Its attempt may go on for other rows."""
        self._counters.totals.timeouts += 1
        failure = next((answer for answer in answers if type(answer) is Failure), None)
        if call.trouble.parked is not None:  # no attempt runs
            self.unparks(call)
        elif failure is not None and call.attempt and not goes_on:  # one without an attempt follows another call
            self.failure(failure)

    def failed(self, result: object) -> None:
        """A row ends with an error, for which the error policy gave this result."""
        self._counters.totals.failures += 1
        if isinstance(result, SideRecord):
            self._counters.totals.dead_letters += 1

    def unpaid(self) -> None:
        """A row that has failed was not called."""
        self._counters.totals.unpaid += 1

    def call_failed(self) -> None:
        """A call ends with rows that have failed."""
        self._counters.failed_calls += 1

    def parks(self, call: Call) -> None:
        """No attempt of the call runs from now on."""
        call.own_trouble().parked = self._counters.clock()

    def begins_again(self, call: Call) -> None:
        """An attempt of a parked call begins."""
        if call.attempt:
            self._counters.totals.attempts += 1
            self.begins_for(call)
        self.unparks(call)

    def begins_for(self, call: Call) -> None:
        """Another attempt of a call begins, alone or with others."""
        if call.attempt == 1:
            self._counters.totals.retried_rows += len(call.rows)

    def unparks(self, call: Call) -> None:
        """The time until now was not the service's, however long the call has waited for another attempt."""
        if (trouble := call.trouble).parked is not None:
            # Its time may have begun anew meanwhile, after an outage: only time since then is in a latency.
            trouble.idle += self._counters.clock() - max(trouble.parked, call.started)
            trouble.parked = None

    def begins_jointly(self) -> None:
        """An attempt of calls begins that have had others."""
        self._counters.totals.attempts += 1

    def ended_jointly(self, call: JointAttempt, now: float) -> None:
        """Such an attempt has ended."""
        timed = sum(not (row.is_over or row.trouble.is_part) for row in call.rows)  # each has this time in its latency
        self._counters.totals.joint_seconds += (1 - timed) * (now - call.began)

    def ended_in_part(self, call: Call, has_failed: bool, now: float) -> None:
        """A call of many rows is over, but its rows go on alone; `has_failed`: most of them."""
        self._counters.latencies.append(now - call.started)
        self._counters.totals.waited += call.trouble.idle
        self._counters.more_rows -= 1
        self._counters.failed_calls += has_failed

    def ended(self, call: Call, completed: Sequence[Results], now: float) -> None:
        """A call has all its results."""
        rows, counters = len(completed), self._counters
        self.unparks(call)
        counters.latencies.append(now - call.started)
        counters.totals.waited += call.trouble.idle
        counters.more_rows += rows - 1
        counters.more_results += sum(map(_count_results, completed)) - rows

    def uncalled(self, completed: Sequence[Results]) -> None:
        """Rows are done without a call of their own."""
        self._counters.totals.rows += len(completed)
        self._counters.totals.results += sum(map(_count_results, completed))

    def count_open(self, calls: Iterable[Call]) -> None:
        """Bring up to date how long the open calls have taken."""
        now, seconds = self._counters.clock(), 0.0
        for call in calls:
            if call.attempt:
                trouble = call.trouble
                end = now if trouble.parked is None else max(trouble.parked, call.started)
                seconds += end - call.started - trouble.idle
        self._counters.totals.open_seconds = seconds

    def abandon(self, calls: Sequence[Call]) -> None:
        """The operator ends, and these are its open calls."""
        self._abandon(calls)
        self._counters.totals.open_seconds = 0.0

    def failed_task(self, call: Call) -> None:
        """The call ends the task."""
        self._abandon([call])

    def ends_task(self, error: BaseException, option: str | None = None) -> None:
        """The task ends with this error, unless it has ended with another one.

        Args:
            option: that says so.
        """
        ended_by = self._counters.totals.ended_by
        if not ended_by:
            text = type_name(error)
            if issubclass(type(error), AsyncUDFError):
                message = error_message(error, redacted=self._redacted)
                text = re.split(r"[:;.]\s|\n", message, maxsplit=1)[0][:LONGEST_CAUSE]
            ended_by[option or getattr(error, "option", None) or text] += 1

    def _abandon(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.unparks(call)
            call.is_over = True  # it is counted, and its deadline must not count it again
        begun = [call for call in calls if call.attempt and not call.trouble.is_part]
        now = self._counters.clock()
        self._counters.abandon(len(begun), sum(now - call.started for call in begun))
        self._counters.totals.waited += sum(call.trouble.idle for call in begun)


def _count_results(results: Results) -> int:
    if SideRecord not in {*map(type, results)}:
        return len(results)
    return sum(type(result) is not SideRecord for result in results)
