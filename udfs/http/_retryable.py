"""Which failures of a call to an HTTP service are tried again, whichever client raised them."""

from __future__ import annotations

from .._errors.http import refusal_of, retry_after, status_of
from .._errors.records import is_fatal
from .._errors.traces import leaves, related
from .._policies.call_outcome import CallOutcome, outcome_of
from .._text.safe import type_name
from ._errors import is_retryable_status

__all__ = ("is_retryable",)


# Of aiohttp, by name, so that it need not be imported: a body that ended too early. Another certificate than the one
# that was pinned counts as a failure of the connection there, and is none that goes away.
_BROKEN, _WRONG_SERVER = "ClientPayloadError", "ServerFingerprintMismatch"


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may mend it: a default for `retry_on=` that suits HTTP.

    True for a service that asks for fewer calls or cannot answer now (statuses as in `raise_for_status`), for
    connections that fail or break, and for timeouts, `attempt_timeout=` among them. False for a refusal with
    `x-should-retry: false`, for every other status, for certificates that are wrong, and for errors of Python or of the
    function itself, such as a KeyError or a result that does not fit. An exception counts as what it was raised from
    (`raise ... from error`); a group only if everything in it is retryable.

    It knows the exceptions of `raise_for_status` and aiohttp; `TimeoutError`, and of `OSError` what is of the network;
    and by their `status`, `response`, code or names those of httpx, requests, botocore, gRPC and others, none of which
    is imported.

    >>> from asyncudf import RetryStrategy
    >>> retry = RetryStrategy.exponential_backoff(attempts=5, initial=0.2, maximum=30.0, retry_on=is_retryable)
    >>> is_retryable(ThrottledError(429)), is_retryable(ConnectionResetError()), is_retryable(TimeoutError())
    (True, True, True)
    >>> is_retryable(PermanentError(404)), is_retryable(KeyError("title"))
    (False, False)
    """
    if is_fatal(error) or not issubclass(type(error), Exception):
        return False
    if issubclass(type(error), BaseExceptionGroup):
        return all(map(is_retryable, leaves(error)))
    refusal, status = refusal_of(error), status_of(error)
    if refusal is not None:
        return refusal.may_retry
    if status is not None:
        return is_retryable_status(status, retry_after(error))
    names = {type_name(one) for one in related(error)}
    if _WRONG_SERVER in names:
        return False
    return _BROKEN in names or outcome_of(error) is CallOutcome.DOWN
