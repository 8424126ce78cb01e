"""`max_failures`: how many rows may fail, of the task or of the whole job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from .._errors.exceptions import FatalError
from .._errors.records import error_text
from .._policies.error_budget import EXAMPLES, Failures
from .._policies.options import Options
from .._text.safe import type_name
from .gates import LimitedOperator

__all__ = ("FailureBudget",)


class Tally(Protocol):
    """Adds up the failures of all tasks."""

    def add(self, rows: int, types: dict[str, int], examples: list[str]) -> None: ...


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # Rows that are done are counted anyway: they are looked at when one fails, and at the end.
    #
    # _told: how many rows were counted when that was done last
    # tally: of the job; None: the task is all that counts

    def __init__(self, operator: LimitedOperator, options: Options) -> None:
        assert options.max_failures is not None
        self.budget = options.max_failures
        self._redact = options.redact
        self._operator = operator
        self._own = Failures()
        self._told = 0
        self.tally: Tally | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """Of the rows of a call, which are done now, these have failed."""
        if errors:
            examples = [error_text(error, self._redact) for error in errors[:EXAMPLES]]
            self._add(Counter(map(type_name, errors)), examples, rows)

    def finish(self) -> None:
        """All rows are done."""
        self._add({}, [], 0)

    def spent(self, failures: Failures) -> None:
        """The budget is spent, by these."""
        if self.error is None:
            self.error = FatalError(self.budget.message(self._operator.name, failures))
            self._operator.fail(self.error)

    def _add(self, types: dict[str, int], examples: list[str], rows_of_call: int) -> None:
        done = self._operator.counters.rows_done + rows_of_call  # which are not among them yet
        rows, self._told = max(0, done - self._told), max(done, self._told)
        if self.tally is not None:
            self.tally.add(rows, types, examples)
            return
        self._own.add(rows, types, examples)
        if self.budget.is_spent(self._own):
            self.spent(self._own)
