"""What a sink did, in one task or in many: the figures of its function, and why rows failed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from .function_metrics import FunctionMetrics

EXAMPLES = 20  # reasons of which a message is kept


class SinkFigures:
    """What a sink did.

    Attributes:
        metrics: of its function.
        stored_failures: rows without a call because the store has the error of an equal one.
        reasons: how many rows failed for each reason.
        examples: a message for each reason.
    """

    def __init__(self) -> None:
        self.metrics = FunctionMetrics()
        self.stored_failures = 0
        self.reasons: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def note_failures(self, failures: Iterable[tuple[str, str, bool]]) -> None:
        """Count rows that failed: the reason and the message of each, and whether the store had its error."""
        for reason, message, is_stored in failures:
            self.reasons[reason] += 1
            self.stored_failures += is_stored
            if len(self.examples) < EXAMPLES:
                self.examples.setdefault(reason, message)

    @property
    def failed(self) -> int:
        return sum(self.reasons.values())

    @property
    def reused(self) -> int:
        """Rows that the store had as acknowledged, or that share the call of an equal row."""
        return max(0, self.metrics.store_hits + self.metrics.shared_flights - self.stored_failures)

    @property
    def written(self) -> int:
        """Rows that the function has written."""
        return max(0, self.metrics.rows - self.failed - self.reused - self.metrics.null_rows)

    def merge(self, other: SinkFigures) -> None:
        """Add what the sink did in other tasks."""
        self.metrics.merge(other.metrics)
        self.stored_failures += other.stored_failures
        self.reasons.update(other.reasons)
        for reason, message in other.examples.items():
            if len(self.examples) < EXAMPLES:
                self.examples.setdefault(reason, message)

    def to_json(self) -> str:
        return json.dumps([self.metrics.to_plain(), self.stored_failures, self.reasons, self.examples])

    @classmethod
    def of_tasks(cls, texts: Iterable[str]) -> SinkFigures:
        """The figures of all tasks, from the text of each."""
        total = cls()
        for text in texts:
            one = cls()
            metrics, one.stored_failures, reasons, examples = json.loads(text)
            one.metrics = FunctionMetrics.from_plain(metrics)
            one.reasons.update(reasons)
            one.examples.update(examples)
            total.merge(one)
        return total
