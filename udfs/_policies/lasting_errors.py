"""Which errors are kept in a store: those that another attempt would not mend."""

from __future__ import annotations

import asyncio

from .._errors.exceptions import AsyncTimeoutError, ResultError
from .._errors.records import is_fatal
from .call_outcome import CallOutcome, outcome_of
from .retry import RetryStrategy

__all__ = ("is_lasting",)


_PASSING_OUTCOMES = (CallOutcome.THROTTLED, CallOutcome.DOWN)
# A result that does not fit is the function's fault, which somebody may mend while the store lives on.
_PASSING = (AsyncTimeoutError, ResultError, asyncio.CancelledError, MemoryError)


def is_lasting(error: BaseException, retry: RetryStrategy | None) -> bool:
    """Whether the same arguments would fail again, as far as the error and the retry strategy tell.

    Of a service that is down, or asks for fewer calls, nothing is known of the row. An error that the strategy names
    as one to be tried again is not lasting either; a strategy that tries again whatever comes names none.
    """
    if is_fatal(error) or issubclass(type(error), _PASSING) or outcome_of(error) in _PASSING_OUTCOMES:
        return False
    if retry is None:
        return True
    try:
        return not retry.singles_out(error)
    except BaseException:  # of a predicate of the user's
        return False
