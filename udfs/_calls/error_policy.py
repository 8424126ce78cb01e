"""`on_error`: what becomes of a row whose call failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._errors.records import error_record, is_fatal, shown_input, task_error
from .._functions.side_outputs import DEAD_LETTERS, SideRecord
from .._policies.options import OnError, Options

__all__ = ("ErrorPolicy",)


class ErrorPolicy:
    """The error policy of one function in one task."""

    def __init__(self, options: Options, function: str, partition: int) -> None:
        self._on_error = options.on_error
        self._redact = options.redact
        self._function = function
        self._partition = partition

    def fails_task(self, error: BaseException) -> bool:
        """Whether the task ends with this error."""
        return self._on_error is OnError.RAISE or is_fatal(error)

    def result(self, error: BaseException, attempts: int, elapsed: float) -> Any:
        """The result of the row, where the task goes on."""
        if self._on_error is OnError.NULL:
            return None
        record = error_record(error, attempts, elapsed, self._redact)
        if self._on_error is OnError.CAPTURE:
            return {"value": None, "error": record}
        # A dead letter is a result like any other up to the output: so it keeps the row's place, and leaves once.
        return SideRecord(DEAD_LETTERS, {"error": {**record, "function": self._function, "partition": self._partition}})

    def task_error(self, error: BaseException, attempt: int, rows: Sequence[Any]) -> BaseException:
        """The error that ends the task; it names the function, the attempt, the partition and the input."""
        how = f"in attempt {attempt}" if attempt else "without a call"  # its key, or an error that the store has kept
        where = f"{self._function} failed {how}, partition {self._partition}"
        return task_error(error, f"{where}, for the input {shown_input(rows, self._redact)}", self._redact)
