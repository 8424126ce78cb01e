"""`max_failures`: how many rows of a job may fail."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..._errors.exceptions import FatalError, ResultError
from ..._errors.records import error_text
from ..._errors.safe import type_name
from ..gate import HostTask
from .option import EXAMPLES, FIRST_ROWS, ErrorBudget, Failures, named_types, shown_examples

if TYPE_CHECKING:
    from .job import SharedFailures


logger = logging.getLogger("asyncudf")


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # The task counts the rows that are done; the budget looks at the counter when a row fails, and at the end.
    #
    # _added: rows that are in the tally already
    # tally: of the job; None: only this task counts

    def __init__(self, task: HostTask, budget: ErrorBudget, *, redacted: bool) -> None:
        self.budget = budget
        self._redacted = redacted
        self._task = task
        self._own = Failures()
        self._added = 0
        self.tally: SharedFailures | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if errors:
            examples = [error_text(error, redacted=self._redacted) for error in errors[:EXAMPLES]]
            self._add(Counter(map(type_name, errors)), examples, rows)

    def finish(self) -> None:
        self._add({}, [], 0)
        if self.tally is None and self.error is None and self.budget.is_unjudged(self._own):
            logger.warning(
                "%d of the %d rows of %s in this task failed, more than max_failures= allows, but a task judges a "
                "share from %d rows on: give a number of rows, or coordinator=, with which the rows of all tasks count "
                "together, as those of a sink do at its end",
                self._own.failed, self._own.rows, self._task.name, FIRST_ROWS,
            )  # fmt: skip

    def spent(self, failures: Failures) -> None:
        """These failures have spent the budget: end the task."""
        if self.error is None:
            self.error = FatalError(self.budget.message(self._task.name, failures))
            self.error.option = "max_failures"
            self._task.fail(self.error)

    def _add(self, types: dict[str, int], examples: list[str], rows_of_call: int) -> None:
        done = self._task.counters.rows_done + rows_of_call  # the counter does not have these yet
        rows, self._added = max(0, done - self._added), max(done, self._added)
        if self.tally is not None:
            self.tally.add(rows, types, examples)
            return
        self._own.add(rows, types, examples)
        if self.budget.is_spent(self._own):
            self.spent(self._own)


class OpenRow(Protocol):
    """A row that was under way."""

    is_done: bool


# What code raises that is wrong itself, or whose answers are not as it expects.
MISTAKES = (ResultError, TypeError, AttributeError, NameError, KeyError, IndexError, ImportError)


class FirstRows:
    """Ends a task whose first rows have all failed with a mistake of the function's own.

    For `on_error="null"` without `max_failures`: a column of NULLs does not show such a mistake.

    Args:
        under_way: the rows that have been taken and are not done.
    """

    # A mistake is quick, and a good call may be slow: so the rows that are under way when enough have failed are waited
    # for.
    #
    # _failures: the rows of the task so far; None: one has not failed so, or the task has ended
    # _earlier: the rows that were under way when enough had failed, less some that are done since; None before

    def __init__(self, task: HostTask, under_way: Callable[[], list[OpenRow]], *, redacted: bool) -> None:
        self._task, self._under_way, self._redacted = task, under_way, redacted
        self._failures: Failures | None = Failures()
        self._earlier: list[OpenRow] | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if (failures := self._failures) is None or not errors:
            return
        if self._has_others(failures) or len(errors) < rows or not all(issubclass(type(e), MISTAKES) for e in errors):
            self._failures = None
            return
        examples = [error_text(error, redacted=self._redacted) for error in errors[:EXAMPLES]]
        failures.add(rows, Counter(map(type_name, errors)), examples)
        if failures.failed < FIRST_ROWS:
            return
        if self._earlier is None:
            self._earlier = self._under_way()
        while self._earlier and self._earlier[-1].is_done:
            self._earlier.pop()
        if not self._earlier:
            self._end(failures)

    def finish(self) -> None:
        """All rows are done: none is under way any more."""
        failures = self._failures
        if failures is not None and failures.failed >= FIRST_ROWS and not self._has_others(failures):
            self._end(failures)

    def _has_others(self, failures: Failures) -> bool:
        """Whether some rows are done without a failure; rows that were not called for a NULL argument do not count."""
        counters = self._task.counters
        return counters.rows_done - counters.totals.null_rows > failures.failed

    def _end(self, failures: Failures) -> None:
        self._failures = None
        self.error = FatalError(_always_wrong(self._task.name, failures))
        self.error.option = "max_failures"
        self._task.fail(self.error)


def _always_wrong(function: str, failures: Failures) -> str:
    told = (
        f"{function} failed for each of the first {failures.failed} rows of a task, with errors of its own: "
        f"{named_types(failures)}. All its results would be NULL, so the job ends: mend the function, or its declared "
        "type; max_failures=1.0 lets such rows be NULL"
    )
    return "\n".join([told, *shown_examples(failures)])
