"""Records each attempt of a task: when it began, what it cost, how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import AsyncTimeoutError
from ..._errors.failure import Failure
from ..._errors.safe import type_name
from ..._limits.gate import AskingAttempt, Gate
from ..._observe.counters import TaskCounters


class AttemptRecord(NamedTuple):
    """An attempt that has ended; plain values, for JSON."""

    call: int  # a number in its task; attempts of the same rows have the same
    rows: int
    began: float  # seconds, on a clock that all tasks share
    seconds: float  # that it took
    in_flight: int  # attempts of its task, when it began
    error: str | None = None  # its type
    status: int | None = None  # of HTTP
    is_down: bool = False  # the service gave no answer
    is_refused: bool = False  # the service asks for fewer calls
    asked: float | None = None  # seconds to wait, if the refusal says so
    is_cut: bool = False  # it did not end in time
    costs: tuple[float, ...] = ()  # that it reserved of each rate limit and budget
    keys: tuple[str | None, ...] = ()  # of these, where they are by key
    spent: dict[str, float] = {}


class Recorder(Gate):
    """A gate that lets every attempt begin, and keeps what it came to.

    Attributes:
        records: of the attempts that have ended, in this order.
        processor: seconds of processor time of the process, from the first attempt to the last one that has ended.
    """

    follows_calls = False

    # A row may be called again in another attempt: so its object is kept, by which it is known again.

    def __init__(self, counters: TaskCounters, clock: Callable[[], float] = time.time) -> None:
        self.records: list[AttemptRecord] = []
        self.processor = 0.0
        self._counters = counters
        self._clock = clock
        self._running: dict[Any, tuple[int, float]] = {}
        self._calls: dict[Any, int] = {}
        self._spent: dict[str, float] = {}
        self._processor_before: float | None = None

    def began(self, attempt: AskingAttempt, now: float) -> None:
        if self._processor_before is None:
            self._processor_before = time.process_time()
        self._running[attempt] = len(self._running) + 1, self._clock()

    def ended(self, attempt: Any, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        in_flight, began = self._running.pop(attempt)
        self.processor = time.process_time() - (self._processor_before or 0.0)
        self.records.append(
            AttemptRecord(
                self._calls.setdefault(attempt.rows[0], len(self._calls)),
                len(attempt.rows),
                began,
                now - attempt.began,
                in_flight,
                None if failure is None else type_name(failure.error),
                None if failure is None else failure.answer.status,
                outcome is CallOutcome.DOWN,
                outcome is CallOutcome.THROTTLED,
                None if failure is None or failure.answer.refusal is None else failure.answer.refusal.wait,
                failure is not None and type(failure.error) is AsyncTimeoutError,
                tuple(attempt.costs or ()),
                tuple(None if key is None else str(key) for key in attempt.keys),
                self._newly_spent(),
            )
        )

    def _newly_spent(self) -> dict[str, float]:
        """What the attempt did cost that ends now: it was settled just before."""
        before, self._spent = self._spent, dict(self._counters.totals.spent)
        changed = {unit: amount - before.get(unit, 0.0) for unit, amount in self._spent.items()}
        return {unit: amount for unit, amount in changed.items() if amount}
