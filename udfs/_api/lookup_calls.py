"""How a LookupTable calls its function: nothing that only stands in for a result becomes one."""

from __future__ import annotations

import random
from typing import Any

from .._errors.exceptions import ResultError
from .._policies.retry import Attempt, RetryStrategy
from .decorator import AsyncUDF

__all__ = ("capturing",)


def capturing(udf: AsyncUDF[..., Any]) -> AsyncUDF[..., Any]:
    """The function with its errors beside its results.

    A row that is late has its error, whatever `on_timeout` would make of it, and so has one whose last result the retry
    strategy would have tried again.
    """
    retry, timeout = udf.options.retry, udf.options.timeout
    if retry is not None and timeout is not None:  # which a strategy needs
        retry = _Exacting(retry, timeout)
    return udf.with_options(on_error="capture", on_timeout=None, retry=retry)


class _Exacting(RetryStrategy):
    """Another strategy, but its last result does not stand if another attempt would have been made for it."""

    def __init__(self, given: RetryStrategy, timeout: float) -> None:
        self._given = given
        self._timeout = timeout
        self.max_retry_after = given.max_retry_after

    @property
    def checks_results(self) -> bool:
        return self._given.checks_results

    def asks_again(self, attempt: Attempt) -> bool:
        return self._given.asks_again(attempt)

    def singles_out(self, error: BaseException) -> bool:
        return self._given.singles_out(error)

    def next_delay(self, attempt: Attempt, rng: random.Random) -> float | None:
        delay = self._given.next_delay(attempt, rng)
        is_last = delay is None or attempt.elapsed + delay >= self._timeout
        if is_last and attempt.error is None and self.asks_again(attempt):
            raise ResultError(
                f"after {attempt.number} attempt{'s' * (attempt.number > 1)} the retry strategy still asks again for "
                "the result, which is therefore not kept"
            )
        return delay
