"""`max_failures`: the rows that may fail before the task, or the job, ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from .._errors.exceptions import FatalError
from .._errors.records import error_text
from .._policies.error_budget import EXAMPLES, Failures
from .._policies.options import Options
from .._text.safe import type_name
from .interfaces import CallingOperator


class Tally(Protocol):
    """Adds up the failed rows of all tasks."""

    def add(self, rows: int, types: dict[str, int], examples: list[str]) -> None: ...


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # The operator counts the rows that are done; the budget looks at the counter when a row fails, and at the end.
    #
    # _added: rows that are in the tally already
    # tally: of the job; None: only this task counts

    def __init__(self, operator: CallingOperator, options: Options) -> None:
        assert options.max_failures is not None
        self.budget = options.max_failures
        self._redact = options.redact
        self._operator = operator
        self._own = Failures()
        self._added = 0
        self.tally: Tally | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if errors:
            examples = [error_text(error, self._redact) for error in errors[:EXAMPLES]]
            self._add(Counter(map(type_name, errors)), examples, rows)

    def finish(self) -> None:
        """All rows are done."""
        self._add({}, [], 0)

    def spent(self, failures: Failures) -> None:
        """These failures have spent the budget: end the task."""
        if self.error is None:
            self.error = FatalError(self.budget.message(self._operator.name, failures))
            self.error.option = "max_failures"
            self._operator.fail(self.error)

    def _add(self, types: dict[str, int], examples: list[str], rows_of_call: int) -> None:
        done = self._operator.counters.rows_done + rows_of_call  # the counter does not have these yet
        rows, self._added = max(0, done - self._added), max(done, self._added)
        if self.tally is not None:
            self.tally.add(rows, types, examples)
            return
        self._own.add(rows, types, examples)
        if self.budget.is_spent(self._own):
            self.spent(self._own)
