"""What the end of a call tells of its service: that it answers, is too busy, or is down; or nothing."""

from __future__ import annotations

import enum
import re

from .._errors.causes import related
from .._errors.exceptions import ResultError
from .._errors.http import retry_after, status_of

__all__ = ("ServiceSign", "sign_of")


# Of files and processes of our own, though they are OSErrors as well.
_LOCAL = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ChildProcessError,
    ProcessLookupError,
)
_TOO_MANY_REQUESTS, _REQUEST_TIMEOUT = 429, 408
# Not every client's exceptions are OSErrors or TimeoutErrors, or have one as their cause. By name, as in _errors/http.
_DOWN = re.compile(r"connect|time(d)?_?out|unavailable|unreachable|network|transport", re.IGNORECASE)


class ServiceSign(enum.Enum):
    """What a call has told of its service."""

    ANSWERED = "answered"  # also with a refusal of this one request
    THROTTLED = "throttled"  # it is there, and asks for fewer calls
    DOWN = "down"  # no answer, or one that tells that it cannot answer now
    NOTHING = "nothing"  # the function failed before or after the call, or was cancelled


def sign_of(error: BaseException | None) -> ServiceSign:
    """What an attempt tells that ended with this error; None for one with a result.

    A status of 429, or a time to wait, is `THROTTLED`; 408 and 500 or more, timeouts and failures of connections are
    `DOWN`; every other status is an answer. Errors of Python itself, as of a KeyError, tell of the row or the function.
    """
    if error is None:
        return ServiceSign.ANSWERED
    if isinstance(error, ResultError):  # a result that does not fit is one
        return ServiceSign.ANSWERED
    status = status_of(error)
    if status == _TOO_MANY_REQUESTS or retry_after(error) is not None:
        return ServiceSign.THROTTLED
    if status is not None:
        return ServiceSign.DOWN if status >= 500 or status == _REQUEST_TIMEOUT else ServiceSign.ANSWERED
    return ServiceSign.DOWN if any(map(_is_of_the_connection, related(error))) else ServiceSign.NOTHING


def _is_of_the_connection(error: BaseException) -> bool:
    # issubclass of the type: isinstance would ask a class of the user's own.
    kind = type(error)
    if issubclass(kind, (OSError, TimeoutError)):
        return not issubclass(kind, (*_LOCAL, ValueError))
    return issubclass(kind, Exception) and any(
        _DOWN.search(one.__name__) for one in kind.__mro__ if one.__module__ != "builtins"
    )
