"""What the end of a call tells of its service: that it answers, is too busy, or is down; or nothing."""

from __future__ import annotations

import enum
import errno
import re
import socket
import ssl
from typing import Any

from .._errors.exceptions import ResultError
from .._errors.http import is_of_a_broken_message, refusal_of, status_of
from .._errors.traces import related

__all__ = ("CallOutcome", "outcome_of")


# An OSError tells of the network by its class or its number; others are of files and data, as gzip's and Pillow's are.
_OF_THE_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLError)
_NUMBERS = {
    number
    for number, name in errno.errorcode.items()
    if re.fullmatch(r"E(NET|HOST|CONN)\w+|ENONET|ENOTCONN|ESHUTDOWN|ETIMEDOUT|EPIPE|EPROTO|EADDRNOTAVAIL", name)
}
# Of asyncio, which has tried each address of a host in vain: one error for all, without a number of its own.
_SEVERAL, _NUMBER = "Multiple exceptions: ", re.compile(r"\[Errno (\d+)\]")
_REQUEST_TIMEOUT = 408
# Not every client's exceptions are OSErrors or TimeoutErrors, or have one as their cause. By name, as in _errors/http,
# and by whole words: `CourseUnavailable` is a row's, `ServiceUnavailable` is not.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_DOWN = re.compile(
    r"\b((re|dis)?connect(s|ed|ing|ion|ions)?|time ?outs?|timed ?out|unreachable"
    r"|(service|server|host|endpoint|backend|upstream|gateway|cluster|node|broker|database) (temporarily )?unavailable"
    r"|(network|transport) (error|exception|failure|timeout|down|closed)"
    r"|(cluster|master) down|(admin|crash) shutdown|client payload)\b|^unavailable( error| exception)?$"
)
# These are of connections, by their bases, but of ones that were refused for a reason that stays, or never asked for.
_NOT_DOWN = ("AuthenticationError", "MaxConnectionsError")
_BROKEN = ("ChunkedEncodingError", "RetryError")  # of requests: a body that ended too early, and 500s again and again
# What is of these is a mistake of the function or of the row, whatever its name says.
_OF_PYTHON = (
    LookupError, ValueError, TypeError, ArithmeticError, AttributeError, AssertionError, NameError, ImportError,
    SyntaxError, MemoryError, NotImplementedError, Warning,
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, ChildProcessError,
    ProcessLookupError,
)  # fmt: skip
_GRPC_DOWN = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class CallOutcome(enum.Enum):
    """What a call has told of its service."""

    ANSWERED = "answered"  # also with a refusal of this one request
    THROTTLED = "throttled"  # it is there, and asks for fewer calls
    DOWN = "down"  # no answer, or one that tells that it cannot answer now
    NOTHING = "nothing"  # the function failed before or after the call, or was cancelled


def outcome_of(error: BaseException | None) -> CallOutcome:
    """What an attempt tells that ended with this error; None for one with a result.

    A refusal (`refusal_of`) is `THROTTLED`; 408 and 500 or more, timeouts and failures of connections are `DOWN`; every
    other status is an answer. Errors of Python itself, as of a KeyError, tell of the row or the function,
    as do those of files and data, which are OSErrors too.
    """
    if error is None:
        return CallOutcome.ANSWERED
    if isinstance(error, ResultError):  # a result that does not fit is one
        return CallOutcome.ANSWERED
    if refusal_of(error) is not None:
        return CallOutcome.THROTTLED
    status = status_of(error)
    if status is not None:
        return CallOutcome.DOWN if status >= 500 or status == _REQUEST_TIMEOUT else CallOutcome.ANSWERED
    return CallOutcome.DOWN if any(map(_is_of_the_connection, related(error))) else CallOutcome.NOTHING


def _is_of_the_connection(error: BaseException) -> bool:
    # issubclass of the type: isinstance would ask a class of the user's own.
    kind = type(error)
    if issubclass(kind, _OF_THE_NETWORK):
        return not issubclass(kind, ValueError)  # of a certificate, which will be as wrong the next time
    if not issubclass(kind, Exception) or issubclass(kind, _OF_PYTHON):
        return False
    if is_of_a_broken_message(error) or (issubclass(kind, OSError) and _has_number_of_the_network(error)):
        return True
    names = [one.__name__ for one in kind.__mro__ if one.__module__ != "builtins"]
    return not any(name in _NOT_DOWN for name in names) and (
        any(name in _BROKEN and issubclass(kind, OSError) for name in names)
        or any(_DOWN.search(" ".join(_WORD.findall(name)).lower()) for name in names)
        or ("RpcError" in names and _code_of_grpc(error) in _GRPC_DOWN)
    )


def _has_number_of_the_network(error: Any) -> bool:
    try:
        said = error.args[0] if error.args else None
        if type(said) is str and said.startswith(_SEVERAL):
            return any(int(number) in _NUMBERS for number in _NUMBER.findall(said))
        # urllib has the error of the socket as the reason of its own.
        reason: Any = getattr(error, "reason", None)
        return error.errno in _NUMBERS or (issubclass(type(reason), OSError) and _is_of_the_connection(reason))
    except Exception:  # of a class of the user's own
        return False


def _code_of_grpc(error: Any) -> str | None:
    try:
        return error.code().name  # type: ignore[no-any-return]
    except Exception:  # of another library, or a class of the user's own
        return None
