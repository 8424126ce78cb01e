"""When to call again and after how long, in tenacity's vocabulary. A worker without retries does not import it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import tenacity
from tenacity import BaseRetrying as BaseRetrying  # for others: tenacity is imported here alone
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from asyncudf.queues._public import public

from .._errors.answers import answer_of
from .._errors.checks import flag, is_number, is_plain, span
from .._errors.exceptions import OptionError
from .._errors.safe import safe_repr
from .._errors.traces import matches
from .attempts import MAX_RETRY_AFTER, EndedAttempt

_RETRYING = tenacity.Retrying()  # tenacity's call states need an owner
ExceptionTypes = type[BaseException] | Collection[type[BaseException]]
RetryOn = ExceptionTypes | Callable[[BaseException], bool] | tenacity.retry_base


@public("asyncudf")
class RetryStrategy:
    """Which outcomes are tried again, how often, and after how long.

    Made with `fixed_delay` or `exponential_backoff`, or directly from tenacity's own objects. Each row's delays
    come from its own attempt number alone, so rows never disturb each other; a server's `Retry-After` (in
    `retry_after`, in seconds, or in the `headers` of the exception or its `response`) wins over the computed delay.
    Longer waits are capped at `max_retry_after` seconds. A wait of 0 seconds or less, such as a date in the past,
    leaves the computed delay; a refusal, which uses no attempt, waits a second then. The deadline of the row always
    holds: if the delay would end after it, the row ends at once with the error of its last attempt.

    Args:
        stop: a tenacity stop object, such as `tenacity.stop_after_attempt(3)`.
        wait: a tenacity wait object; no delay if left out.
        retry: a tenacity retry predicate; every `Exception` if left out.
        max_retry_after: the most seconds that a server's `Retry-After` is followed; 0: it is ignored.

    Raises:
        OptionError: an argument is not what tenacity calls by that name, or is asynchronous.

    >>> import tenacity
    >>> from asyncudf import RuntimeContext
    >>> from asyncudf.testing import run_rows
    >>> async def busy(x: int, context: RuntimeContext) -> int:
    ...     if context.attempt_number < 3:
    ...         raise ConnectionError("busy")
    ...     return context.attempt_number
    >>> run_rows(busy, [7], retry=RetryStrategy(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(60)))
    [3]
    """

    # tenacity's objects decide; its loop is not used, because it sleeps inside the call, which would hold the slot, and
    # reads a clock of its own. Here a failed attempt gets a delay, and its slot is free meanwhile.

    def __init__(
        self,
        *,
        stop: stop_base | None = None,
        wait: wait_base | None = None,
        retry: tenacity.retry_base | None = None,
        max_retry_after: float | timedelta = MAX_RETRY_AFTER,
    ) -> None:
        self._stop = _tenacity("stop", stop, stop_base, tenacity.stop_never)
        self._wait = _tenacity("wait", wait, wait_base, tenacity.wait_none())
        self._retry = _tenacity("retry", retry, tenacity.retry_base, _RetryOn(Exception, None))
        self.max_retry_after: float = span(max_retry_after, "max_retry_after")
        self._jitter = False  # not tenacity's, which uses the module `random`: ours uses the task's generator

    @classmethod
    def fixed_delay(
        cls,
        attempts: int | stop_base = 3,
        delay: float | timedelta | wait_base = 1.0,
        *,
        retry_on: RetryOn = Exception,
        retry_if_result: Callable[[Any], bool] | None = None,
        max_retry_after: float | timedelta = MAX_RETRY_AFTER,
    ) -> RetryStrategy:
        """Call again after the same delay each time: without arguments, three calls, a second apart.

        Args:
            attempts: calls in all, at least 1; or a tenacity stop object.
            delay: seconds between the end of a call and the next; or a tenacity wait object.
            retry_on: exception types, or a predicate of the exception, or a tenacity retry object; for HTTP
                `asyncudf.http.is_retryable`. With types, an `ExceptionGroup` (of an `asyncio.TaskGroup`) is retried if
                everything in it is of these types.
            retry_if_result: a predicate of the result; true means "not good enough, call again". Of a vectorized
                function, and of one of 0..n results, it gets the list of all results of the call. When the attempts
                are used up, the last result stands.
            max_retry_after: the most seconds that a server's `Retry-After` is followed; 0: it is ignored.

        Raises:
            OptionError: a value that cannot work.

        >>> strategy = RetryStrategy.fixed_delay(attempts=3, delay=1.0, retry_on=(OSError, TimeoutError))
        """
        wait = delay if isinstance(delay, wait_base) else tenacity.wait_fixed(span(delay, "delay"))
        predicate = _predicate(retry_on, retry_if_result)
        return cls(stop=_stop(attempts), wait=wait, retry=predicate, max_retry_after=max_retry_after)

    @classmethod
    def exponential_backoff(
        cls,
        attempts: int | stop_base = 5,
        initial: float | timedelta = 0.5,
        maximum: float | timedelta = 30.0,
        multiplier: float = 2,
        jitter: bool = True,
        *,
        retry_on: RetryOn = Exception,
        retry_if_result: Callable[[Any], bool] | None = None,
        max_retry_after: float | timedelta = MAX_RETRY_AFTER,
    ) -> RetryStrategy:
        """Call again after `initial`, then `multiplier` times as long each time, never more than `maximum`.

        Without arguments: five calls, with delays of 0.5, 1, 2 and 4 seconds before jitter, after any `Exception`. Give
        `retry_on=asyncudf.http.is_retryable` for services over HTTP, so that a wrong request is not sent five times.

        Args:
            attempts, retry_on, retry_if_result, max_retry_after: as in `fixed_delay`.
            initial, maximum: seconds; `initial` is at most `maximum`.
            multiplier: at least 1.
            jitter: shorten each delay by a random share of up to one half, so that rows which failed
                together do not come back together.

        Raises:
            OptionError: a value that cannot work.

        >>> strategy = RetryStrategy.exponential_backoff()
        >>> patient = RetryStrategy.exponential_backoff(attempts=10, initial=1.0, maximum=60.0)
        """
        first, longest = span(initial, "initial"), span(maximum, "maximum")
        if longest < first:
            raise OptionError(f"maximum must be at least initial ({first} s), not {longest} s")
        if not (is_number(multiplier) and multiplier >= 1):
            raise OptionError(f"multiplier must be a number of at least 1, not {safe_repr(multiplier)}")
        strategy = cls(
            stop=_stop(attempts),
            wait=tenacity.wait_exponential(first, longest, float(multiplier)),
            retry=_predicate(retry_on, retry_if_result),
            max_retry_after=max_retry_after,
        )
        strategy._jitter = flag(jitter, "jitter")
        return strategy

    @classmethod
    def of(cls, value: Any) -> RetryStrategy | None:
        """What the option `retry=` accepts: a strategy, one of tenacity's retrying objects, or None."""
        if value is None or isinstance(value, RetryStrategy):
            return value
        if isinstance(value, BaseRetrying):
            return cls(stop=value.stop, wait=value.wait, retry=value.retry)  # type: ignore[arg-type]
        raise OptionError(
            f"retry must be a RetryStrategy or a tenacity retrying object, not {safe_repr(value)}; "
            "for example RetryStrategy.fixed_delay(attempts=3, delay=1.0)"
        )

    @property
    def checks_results(self) -> bool:
        """Whether a result may be retried that came without an exception."""
        return not isinstance(self._retry, _RetryOn) or self._retry.if_result is not None

    def asks_again(self, attempt: EndedAttempt) -> bool:
        """Whether the outcome is retried, if there are attempts left."""
        return bool(self._retry(_state(attempt)))

    def singles_out(self, error: BaseException) -> bool:
        """Whether it retries this error, but not every error."""
        return [self.asks_again(EndedAttempt(1, 0.0, 0.0, one, None)) for one in (error, _AnyError())] == [True, False]

    def next_delay(self, attempt: EndedAttempt, draw: float) -> float | None:
        """Seconds until the next call, or None if the outcome stands.

        Args:
            draw: a random number from 0 to 1, for the jitter.
        """
        state = _state(attempt)
        if not self._retry(state):
            return None
        asked = answer_of(attempt.result).wait if attempt.error is None else attempt.asked
        delay = min(asked or 0.0, self.max_retry_after)
        if not delay:  # a server with a fast clock seems to say "at once"; that is no reason to hurry
            delay = float(self._wait(state)) * (0.5 + 0.5 * draw if self._jitter else 1.0)
        state.upcoming_sleep = delay
        return None if self._stop(state) else delay


class _AnyError(Exception):
    """An error that no strategy names."""


class _RetryOn(tenacity.retry_base):
    """A predicate of exceptions and of results together. Unlike tenacity's own, it can be pickled."""

    def __init__(self, on: Any, if_result: Any) -> None:  # on: exception types, or a predicate
        self.on = on
        self.if_result = if_result

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        outcome = retry_state.outcome
        assert outcome is not None
        if not outcome.failed:
            return self.if_result is not None and bool(self.if_result(outcome.result()))
        error = outcome.exception()
        assert error is not None
        if isinstance(self.on, (type, tuple)):
            return matches(error, self.on)
        return bool(self.on(error))


def _state(attempt: EndedAttempt) -> tenacity.RetryCallState:
    """An attempt as tenacity's objects see it."""
    # tenacity's clock is set by hand to the loop's time.
    state = tenacity.RetryCallState(_RETRYING, None, (), {})
    state.attempt_number = attempt.number
    if attempt.error is not None:
        state.set_exception((type(attempt.error), attempt.error, None))
    else:
        state.set_result(attempt.result)
    state.start_time, state.outcome_timestamp = 0.0, attempt.elapsed
    state.idle_for = attempt.waited
    return state


def _tenacity(name: str, value: Any, allowed: type, default: Any) -> Any:
    """Check an argument: one of tenacity's objects, or a plain function in its place; never an `async def`."""
    if value is None:
        return default
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise OptionError(f"{name} must be synchronous, not {safe_repr(value)}")
    if isinstance(value, allowed) or inspect.isfunction(value):
        return value
    raise OptionError(f"{name} must be one of tenacity's {name} objects, not {safe_repr(value)}")


def _stop(attempts: int | stop_base) -> stop_base:
    if isinstance(attempts, stop_base):
        return attempts
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise OptionError(
            f"attempts must be at least 1 (it counts all calls, the first too), not {safe_repr(attempts)}"
        )
    return tenacity.stop_after_attempt(attempts)


def _predicate(on: Any, if_result: Any) -> tenacity.retry_base:
    if if_result is not None and not is_plain(if_result):
        raise OptionError(f"retry_if_result must be a plain function of the result, not {safe_repr(if_result)}")
    if isinstance(on, tenacity.retry_base):
        return on if if_result is None else tenacity.retry_any(on, _RetryOn((), if_result))
    types = (on,) if isinstance(on, type) else tuple(on) if isinstance(on, (list, tuple, set, frozenset)) else None
    if types is not None:
        if all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
            return _RetryOn(types, if_result)
    elif is_plain(on):
        return _RetryOn(on, if_result)
    raise OptionError(f"retry_on must be exception types or a plain function of the exception, not {safe_repr(on)}")
