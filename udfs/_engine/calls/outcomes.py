"""What a row gets from its attempts: checked results, and what stands in for a late or failed one."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..._errors.exceptions import BudgetSpentError, FatalError
from ..._errors.failure import Failure
from ..._errors.records import error_record, error_text, shown_input, task_error
from ..._functions.async_function import CURRENT_CALL, AttemptState, Results
from ..._functions.options import OnError, Options
from ..._functions.side_outputs import DEAD_LETTERS, SideRecord
from .invokers import Invoker
from .row import Row

Validate = Callable[[Any], Any]
Outcome = Results | Failure  # of a row
# A note and not part of the message, which ends with the user's own.
OTHER_POLICIES = (
    'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; a sink with dead_letters=.'
)


class ResultChecker:
    """Checks the results of attempts, and asks `on_timeout` for the answer of a row that is late."""

    def __init__(self, validate: Validate | None) -> None:
        self._validate = validate
        self._context = contextvars.copy_context()  # without any row's variables

    def checked(self, results: Sequence[Results | BaseException], side: Sequence[SideRecord]) -> list[Outcome]:
        """For each row its results with its side records, or its failure."""
        outcomes: list[Outcome] = []
        validate = self._validate
        for result in results:
            if isinstance(result, BaseException):  # the function has answered so for this row
                outcomes.append(Failure(result))
                continue
            try:
                outcomes.append([*(result if validate is None else map(validate, result)), *side])
                side = ()  # the side records of a group go with its first good row
            except BaseException as own:  # a ResultError, or an error of the user's code that the check has run
                outcomes.append(Failure(own))
        return outcomes

    def late(self, invoker: Invoker, row: Row, error: BaseException) -> Outcome:
        """What the function, or `on_timeout`, answers for a row whose deadline has come, or a failure."""
        state = AttemptState(row.element, row.attempts)  # the answer may ask for its context too
        state.deadline, state.last_error = row.deadline, row.trouble.last_error

        def answer() -> Results:
            CURRENT_CALL.set(state)
            results = invoker.timed_out(row.record[0], error)
            return [*(results if self._validate is None else map(self._validate, results)), *state.side]

        try:
            return self._context.copy().run(answer)
        except BaseException as own:
            return Failure(own)


class ErrorPolicy:
    def __init__(self, options: Options, function: str, partition: int) -> None:
        self._on_error = options.on_error
        self._on_spent = OnError(options.on_spent.value)
        self._redact, self._redacted = options.redact, options.redacted
        self._capacity = options.slots
        self._function = function
        self._partition = partition

    def of(self, failure: Failure) -> OnError:
        """The error policy for a row that has failed with this error; RAISE: the task ends."""
        if failure.is_fatal or failure.fault is not None:
            return OnError.RAISE
        if type(failure.error) is not BudgetSpentError:
            return self._on_error
        is_captured = self._on_error is OnError.CAPTURE and self._on_spent is OnError.NULL
        return OnError.CAPTURE if is_captured else self._on_spent

    def result(self, failure: Failure, on_error: OnError, attempts: int, elapsed: float) -> Any:
        """The result of the row, if the task goes on."""
        if on_error is OnError.NULL:
            return None
        record = error_record(failure.error, failure.answer.status, attempts, elapsed, redacted=self._redacted)
        if on_error is OnError.CAPTURE:
            return {"value": None, "error": record}
        # A dead letter is a result up to the output, so that it leaves at the row's place, and once.
        return SideRecord(DEAD_LETTERS, {"error": {**record, "function": self._function, "partition": self._partition}})

    def used_up(self, error: BaseException, code: str) -> FatalError:
        """The error that ends the task: the service has said, by this code, that a quota is used up."""
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
    """The most common error of a call of so many rows; None if not more than half of the rows have one."""
    if 2 * len(errors) <= rows:
        return None
    (usual, _), *_ = Counter(map(type, errors)).most_common(1)
    return next(error for error in errors if type(error) is usual)
