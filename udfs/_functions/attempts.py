"""What an attempt has come to, and which errors are not worth another one."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from .._errors.call_outcome import CallOutcome
from .._errors.exceptions import AsyncTimeoutError, BudgetSpentError, ResultError
from .._errors.failure import Failure
from .._errors.traces import leaves

MAX_RETRY_AFTER = 300.0  # seconds; a server with a wrong clock must not stall a job
# A result of the wrong type is the function's mistake, which may be mended while the store lives on.
_PASSING = (AsyncTimeoutError, BudgetSpentError, ResultError, asyncio.CancelledError, MemoryError)


class EndedAttempt(NamedTuple):
    number: int  # from 1
    elapsed: float  # seconds since the first attempt began
    waited: float  # of these, the seconds spent in back-off
    error: BaseException | None
    result: Any
    asked: float | None = None  # seconds to wait, which the service has asked for in the error


class NamesErrors(Protocol):
    """A retry strategy, as far as it is asked which errors it names."""

    def singles_out(self, error: BaseException, /) -> bool: ...


def is_lasting(failure: Failure, retry: NamesErrors | None) -> bool:
    """Whether the same arguments would fail again, as far as the error and the strategy show; if so, it may be stored.

    A service that is down, or asks for fewer calls, says nothing about the row. An error that the strategy names as
    worth another attempt is not lasting either; a strategy that retries every error names none.
    """
    error = failure.error
    if failure.is_fatal or any(issubclass(type(one), _PASSING) for one in leaves(error)):
        return False
    if failure.outcome in (CallOutcome.THROTTLED, CallOutcome.DOWN):
        return False
    if retry is None:
        return True
    try:
        return not retry.singles_out(error)
    except BaseException:  # a user's predicate may raise anything
        return False
