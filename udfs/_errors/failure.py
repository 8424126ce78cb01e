"""What the error of an attempt says about its row, its service and its task, read once."""

from __future__ import annotations

import dataclasses
from typing import final

from .answers import Answer, Refusal, answer_of
from .call_outcome import CallOutcome, outcome_with
from .records import is_fatal
from .task_faults import TaskFault, fault_of


@final
class Failure:
    """The error of an attempt, and what follows from it: computed once, as to look into an error takes long."""

    __slots__ = ("_outcome", "answer", "error", "fault", "is_fatal")

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error
        self.answer: Answer = answer_of(error)
        self.fault: TaskFault | None = fault_of(error)  # None if the error may be the row's or the service's
        self.is_fatal: bool = is_fatal(error)  # fails the task under every policy, as SystemExit does
        self._outcome: CallOutcome | None = None

    @property
    def is_no_rows_fault(self) -> bool:
        """Whether it fails the task under every policy, as it says nothing about its row."""
        return self.is_fatal or self.fault is not None

    def refusal(self, longest: float) -> Refusal | None:
        """The service's refusal, with its wait capped at so many seconds; None if there is none, or with a cap of 0."""
        refusal = self.answer.refusal
        if refusal is None or self.is_fatal or not longest:
            return None
        return dataclasses.replace(refusal, wait=min(refusal.seconds, longest))

    @property
    def outcome(self) -> CallOutcome:
        if self._outcome is None:
            self._outcome = outcome_with(self.error, self.answer)
        return self._outcome
