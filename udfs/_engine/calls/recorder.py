"""Records each attempt of a task: when it began, what it cost, how it ended."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import BudgetSpentError
from ..._errors.failure import Failure
from ..._limits.gate import Gate
from ..._observe.counters import TaskCounters


class NotCalledError(BudgetSpentError):
    """The sample is complete; `on_error` decides about the row, as `on_spent` does not know this type."""


class AttemptRecord(NamedTuple):
    """An attempt that has ended; plain values, for JSON."""

    call: int  # a number in its task; attempts of the same rows have the same
    rows: int
    began: float  # seconds, on a clock that all tasks share
    seconds: float  # that it took
    in_flight: int  # attempts of its task, when it began
    is_refused: bool = False  # the service asks for fewer calls
    costs: tuple[float, ...] = ()  # that it reserved of each rate limit and budget
    keys: tuple[str | None, ...] = ()  # of these, where they are by key
    spent: dict[str, float] = {}


@dataclasses.dataclass(eq=False, repr=False)
class Recorder(Gate):
    """A gate that lets `most` calls begin, with all their attempts, and keeps what they came to.

    Attributes:
        not_called: rows beyond `most` calls, which end with `NotCalledError`.
    """

    follows_calls = False

    counters: TaskCounters
    most: int = sys.maxsize
    clock: Callable[[], float] = dataclasses.field(default=time.time, kw_only=True)
    records: list[AttemptRecord] = dataclasses.field(default_factory=list, init=False)
    not_called = 0
    _made = 0
    _running: dict[Any, tuple[int, float]] = dataclasses.field(default_factory=dict, init=False)
    # The number of the first call of each row. A row may be called again: so its object is kept.
    _calls: dict[Any, int] = dataclasses.field(default_factory=dict, init=False)
    _spent: dict[str, float] = dataclasses.field(default_factory=dict, init=False)

    def wait(self, attempt: Any, now: float) -> float:
        if self._made >= self.most and attempt.rows[0] not in self._calls:
            self.not_called += len(attempt.rows)
            raise NotCalledError("the sample is complete")
        return 0.0

    def began(self, attempt: Any, now: float) -> None:
        if attempt.rows[0] not in self._calls:
            self._calls.update(dict.fromkeys(attempt.rows, self._made))
            self._made += 1
        self._running[attempt] = len(self._running) + 1, self.clock()

    def ended(self, attempt: Any, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        in_flight, began = self._running.pop(attempt)
        self.records.append(
            AttemptRecord(
                self._calls[attempt.rows[0]],
                len(attempt.rows),
                began,
                now - attempt.began,
                in_flight,
                outcome is CallOutcome.THROTTLED,
                tuple(attempt.costs or ()),
                tuple(None if key is None else str(key) for key in attempt.keys),
                self._newly_spent(),
            )
        )

    def _newly_spent(self) -> dict[str, float]:
        """What the attempt did cost that ends now: it was settled just before."""
        before, self._spent = self._spent, dict(self.counters.totals.spent)
        changed = {unit: amount - before.get(unit, 0.0) for unit, amount in self._spent.items()}
        return {unit: amount for unit, amount in changed.items() if amount}
