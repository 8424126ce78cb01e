"""The plan of a sink's function: what it returns is dropped, but for exceptions."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from .._arrow.vectors import VectorCodec
from .._errors.exceptions import ResultError
from .._errors.type_mismatch import check_awaited
from .._stores.keys import ResultKeys
from .function_plan import FunctionPlan

ACKNOWLEDGED = pa.bool_()  # the type of what stands for a row that the function has written: True


def no_micro_batch() -> str:
    """For a sink over a whole DataFrame."""
    return ""


@dataclasses.dataclass(frozen=True)
class SinkPlan(FunctionPlan):
    """The plan of a function that writes rows, and whose results nobody reads.

    Args:
        micro_batch: names the stream and its micro-batch, in the task; empty where there is none.
    """

    # Equal rows of two micro-batches are two writes, and a micro-batch that runs again has the keys that it had.

    micro_batch: Callable[[], str] = no_micro_batch

    def _validator(self) -> Callable[[Any], Any]:
        return partial(_acknowledged, self.spec.name)

    def result_keys(self) -> ResultKeys:
        # The declared type is a part of each key: an acknowledgement is never taken for a column's result.
        return self._keys_of_type(f"sink {self.micro_batch()}".rstrip())

    def vector_codec(self, names: Sequence[str], arrow_types: Sequence[Any]) -> VectorCodec:
        return _SinkCodec(self.spec.name, self.spec.vectors, names, arrow_types, None)


def _acknowledged(function: str, result: Any) -> bool:
    """What is kept of a result. Raises ResultError for a coroutine that was not awaited, and for an exception."""
    check_awaited(function, result)
    return True


class _SinkCodec(VectorCodec):
    """Takes whatever a vectorized function returns. An exception in a list or a Series is the error of its row."""

    def decode(self, result: Any, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """An item for each row.

        Raises:
            ResultError: exceptions of which nobody can tell whose they are.
        """
        pd: Any = sys.modules.get("pandas")
        is_series = pd is not None and isinstance(result, pd.Series)
        if not is_series and type(result) not in (list, tuple):
            check_awaited(self._function, result)
            return [result] * len(rows)
        answers = result.tolist() if is_series else list(result)
        has_errors = any(issubclass(type(answer), BaseException) for answer in answers)
        if len(answers) == len(rows):
            return self._in_order(result, rows).tolist() if is_series and has_errors else answers
        if has_errors:
            raise ResultError(
                f"{self._function} returned {len(answers)} answers for {len(rows)} rows, with exceptions among them; "
                "give one answer for each row"
            )
        return [None] * len(rows)
