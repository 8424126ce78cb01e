"""HTTP services: a session for each task, errors by what to do next, and which of them are worth another attempt.

- `session(url)` is a resource: an `aiohttp.ClientSession` in each task, with the limits of the function.
- `raise_for_status(response)` raises a `ThrottledError`, a `RetryableError` or a `PermanentError`, with the beginning
  of the response.
- `error_for(status)` makes such an error for one item in the answer of a bulk endpoint.
- `tell_limits(headers)` tells the limits that are `RateLimit.from_headers` what the service says of them.
- `is_retryable` is a default for `retry_on=`: throttled and retryable responses, connections, timeouts, nothing else.

    @async_pandas_udf(
        "string",
        capacity=50,
        timeout=120,                    # of a row, with all its attempts
        attempt_timeout=20,             # of a call
        resources=http.session("https://api.example.com", token_env="API_TOKEN"),
        retry=RetryStrategy.exponential_backoff(
            attempts=5, initial=0.2, maximum=30.0, retry_on=http.is_retryable
        ),
    )
    async def title(key: str, session: aiohttp.ClientSession) -> str:
        async with session.get(f"/titles/{key}") as response:
            await http.raise_for_status(response)
            return (await response.json())["title"]

A `Retry-After` replaces the delay of the strategy, up to its `max_retry_after`. A test of a function needs no server:

>>> from asyncudf import RetryStrategy, RuntimeContext, http
>>> from asyncudf.testing import run_rows
>>> async def busy_at_first(key: str, context: RuntimeContext) -> str:
...     if context.attempt_number == 1:
...         raise http.ThrottledError(429, retry_after=60.0)
...     return key.upper()
>>> retry = RetryStrategy.exponential_backoff(attempts=5, initial=0.2, maximum=30.0, retry_on=http.is_retryable)
>>> run_rows(busy_at_first, ["a"], retry=retry)
['A']
"""

from asyncudf.queues._public import publish as _publish

from ._errors import (
    HTTPStatusError,
    PermanentError,
    RetryableError,
    ThrottledError,
    error_for,
    is_retryable,
    raise_for_status,
)
from ._limits import tell_limits
from ._session import SessionFactory, session
from ._tokens import Request

__all__ = (
    "HTTPStatusError",
    "PermanentError",
    "Request",
    "RetryableError",
    "SessionFactory",
    "ThrottledError",
    "error_for",
    "is_retryable",
    "raise_for_status",
    "session",
    "tell_limits",
)

_publish(__name__, [globals()[name] for name in __all__])
