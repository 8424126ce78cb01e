"""How many rows of a job may fail."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .._errors.exceptions import OptionError
from .._text.safe import safe_repr
from .checks import is_number

FIRST_ROWS = 100  # fewer rows say nothing about a share
EXAMPLES = 3
NAMED_TYPES = 5  # error types that the message names


@dataclasses.dataclass(frozen=True)
class ErrorBudget:
    """What `max_failures=` means: a whole number is a count, a number below 1 is a share of the rows.

    A share counts after 100 rows.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, value: Any, name: str = "max_failures") -> ErrorBudget:
        """The budget that an option says.

        Raises:
            OptionError: neither a count nor a share.
        """
        if isinstance(value, ErrorBudget):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(count=value)
        if isinstance(value, float) and is_number(value) and 0 < value < 1:
            return cls(share=value)
        raise OptionError(
            f"{name} must be a whole number of rows, or a share of them, such as 0.02, not {safe_repr(value)}"
        )

    def is_spent(self, failures: Failures) -> bool:
        """Whether more rows have failed than may."""
        if self.count is not None:
            return failures.failed > self.count
        assert self.share is not None
        return failures.rows >= FIRST_ROWS and failures.failed > self.share * failures.rows

    def message(self, function: str, failures: Failures) -> str:
        """The text of the error that stops the job."""
        allowed = f"{self.count} may" if self.share is None else f"{100 * self.share:g}% may"
        most = Counter(failures.types).most_common()
        named = [f"{name} ({count:,})" for name, count in most[:NAMED_TYPES]]
        others = sum(count for _, count in most[NAMED_TYPES:])
        said = ", ".join([*named, *([f"others ({others:,})"] if others else [])])
        told = f"{failures.failed:,} of {failures.rows:,} rows of {function} failed, more than max_failures= allows"
        examples = [f"  for example {example}" for example in failures.examples[:EXAMPLES]]
        return "\n".join([f"{told} ({allowed}): {said}", *examples])


@dataclasses.dataclass
class Failures:
    """How many rows are done, how many of them failed, and with which errors.

    Rows that failed are those that became null, a captured error or a dead letter; examples are redacted already.
    """

    rows: int = 0
    failed: int = 0
    types: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        """Count rows that are done; `types` counts the errors of those that failed."""
        self.rows += rows
        if types:
            self.failed += sum(types.values())
            self.types.update(types)
            self.examples += [*examples][: EXAMPLES - len(self.examples)]
