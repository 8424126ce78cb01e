"""The exceptions of the library: one root, and one class for each thing that a user can react to."""

from __future__ import annotations

from asyncudf.queues._public import public


@public("asyncudf")
class AsyncUDFError(Exception):
    """The root of all errors of this library.

    Raised as itself when a call failed for good under `on_error="raise"`: the message names the function,
    the attempts made, the partition and the input, and `__cause__` is the exception of the function.

    Attributes:
        is_located: whether the message names the function, the partition and the input.
        is_redacted: whether the traceback leaves out results that do not fit, which may repeat an input.
        without_value: the message without what may repeat an input, for functions with `redact=`; None if the message
            shows no such value.
    """

    is_located = False
    is_redacted = False
    without_value: str | None = None


@public("asyncudf")
class OptionError(AsyncUDFError, ValueError):
    """An option has a value that cannot work; the message names the value and the fix."""


@public("asyncudf")
class FunctionError(AsyncUDFError, TypeError):
    """A function, a resource or a set of columns that do not fit together; raised before anything runs."""


@public("asyncudf")
class AsyncTimeoutError(AsyncUDFError, TimeoutError):
    """A call, or one attempt of it, was not done in time."""


@public("asyncudf")
class ResultError(AsyncUDFError):
    """A result that does not fit: of another type than declared, or not a list where a list is needed."""


class UnreadableError(AsyncUDFError):
    """An argument that has no Python form: its row has failed without a call, and the message says what to write."""


@public("asyncudf")
class FatalError(AsyncUDFError):
    """Fails the task under every `on_error` and is not retried: it is no row's fault, and others would fail as well.

    A function may raise it, for example when the service does not accept its key.

    >>> from asyncudf.testing import run_rows
    >>> async def call(x: int) -> int:
    ...     raise FatalError("the key has expired")
    >>> run_rows(call, [1], on_error="null")
    Traceback (most recent call last):
    asyncudf.FatalError: call failed in attempt 1, partition 0, for the input (1,): the key has expired

    Attributes:
        option: the option that ends the task with this error, such as "max_calls"; None if it is none's.
    """

    option: str | None = None


class CredentialsError(AsyncUDFError):
    """No token that the service accepts can be had: no row's fault, so the task fails once no attempt is left."""


class BudgetSpentError(AsyncUDFError):
    """A row is not called because its budget is spent; `on_spent` says what becomes of it."""
