"""What the end of a call says about its service."""

from __future__ import annotations

import enum
import errno
import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from .answers import Answer, answer_of, bound_of_aiohttp, grpc_code, is_of_a_broken_message
from .exceptions import ResultError
from .safe import named_class, tried
from .task_faults import errnos_of, fault_of
from .traces import frames_of, is_group, leaves, related, replaced

# An OSError is of the network by its class or its number; others are of files and data, such as gzip's and Pillow's.
_OF_THE_NETWORK = (ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLError)
_NUMBERS = {
    number
    for number, name in errno.errorcode.items()
    if re.fullmatch(r"E(NET|HOST|CONN)\w+|ENONET|ENOTCONN|ESHUTDOWN|ETIMEDOUT|EPIPE|EPROTO|EADDRNOTAVAIL", name)
}
_REQUEST_TIMEOUT = 408
# Many clients have exceptions that are no OSError or TimeoutError and have none as their cause. They are recognized by
# name, as in _errors/answers, and by whole words: `CourseUnavailable` is about a row, `ServiceUnavailable` is not.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_DOWN = re.compile(
    r"\b((re|dis)?connect(s|ed|ing|ion|ions)?|time ?outs?|timed ?out|unreachable"
    r"|(service|server|host|endpoint|backend|upstream|gateway|cluster|node|broker|database) (temporarily )?unavailable"
    r"|(network|transport) (error|exception|failure|timeout|down|closed)"
    r"|(cluster|master) down|(admin|crash) shutdown|client payload|incomplete read|bad status line|remote protocol"
    r"|response streaming)\b|^unavailable( error| exception)?$"
)
# By their bases these are errors of connections, and clients wrap them as such. But their cause stays, or no connection
# was asked for: a key or certificate that is not accepted; a request that httpx or Elasticsearch cannot make; a setting
# that Kafka does not take.
_NOT_DOWN = {
    "AuthenticationError", "AuthorizationError", "MaxConnectionsError", "ServerFingerprintMismatch",
    "UnsupportedProtocol", "LocalProtocolError", "SerializationError",
    "InvalidSessionTimeoutError", "InvalidTransactionTimeout", "InvalidTransactionTimeoutError",
}  # fmt: skip
_BROKEN = ("ChunkedEncodingError", "RetryError")  # of requests: a body that ended too early, and repeated 500s
# Errors of these types are mistakes of the function or the row, whatever their names say.
_OF_PYTHON = (
    LookupError, ValueError, TypeError, ArithmeticError, AttributeError, AssertionError, NameError, ImportError,
    SyntaxError, MemoryError, NotImplementedError, Warning,
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, ChildProcessError,
    ProcessLookupError,
)  # fmt: skip
# Of these packages such an error may be about anything: with a number of MySQL (no connection, a lost one, too many, a
# shutdown, a lock, a deadlock), and in psycopg without an SQLSTATE, which only an answer of the server has.
_OF_DATABASES = {"OperationalError", "DatabaseError"}  # the latter of mysql.connector, for a lock
_OF_MYSQL = ("pymysql", "asyncmy", "MySQLdb", "mysql")
_NUMBERS_OF_MYSQL = {1040, 1053, 1205, 1213, 2002, 2003, 2006, 2013, 2055, 3572}
# By package. Of Redis: a master that has become a replica, and a slot that moves or has no master yet; its clients try
# again, too. Of asyncpg: a connection that the server has ended between two steps of an operation, and what it knew
# of tables that were changed since, and forgets. Of urllib3: a connection that was dropped.
_OF_REDIS = {"ReadOnlyError", "TryAgainError", "SlotNotCoveredError"}
_OF_ASYNCPG = {"InternalClientError", "InvalidCachedStatementError", "OutdatedSchemaCacheError"}
_FAILING_OVER = {"redis": _OF_REDIS, "valkey": _OF_REDIS, "asyncpg": _OF_ASYNCPG, "urllib3": {"ProtocolError"}}
# Errors of Kafka's clients say whether another try may succeed. confluent-kafka's, of the module cimpl, says it of
# transactions alone; of others there is the name, where a `_` begins those that no broker has sent.
_OF_KAFKA = ("aiokafka", "kafka")
_NAMES_OF_KAFKA = {
    "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT",
    "LEADER_NOT_AVAILABLE", "NETWORK_EXCEPTION", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT",
}  # fmt: skip
_GRPC_DOWN = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class CallOutcome(enum.Enum):
    """What the end of a call says about its service."""

    ANSWERED = "answered"  # it answered, if only to reject this one request
    THROTTLED = "throttled"  # it is up, and asks for fewer calls
    DOWN = "down"  # no answer, or one that says that it cannot answer now
    NOTHING = "nothing"  # the function failed before or after the call, or was cancelled


_WORST_FIRST = (CallOutcome.THROTTLED, CallOutcome.DOWN, CallOutcome.ANSWERED, CallOutcome.NOTHING)


def outcome_of(error: BaseException | None) -> CallOutcome:
    """The outcome of an attempt that ended with this error; None for one with a result.

    A refusal (see `Answer`) is `THROTTLED`; 408 and 500 or more, an answer that may pass, timeouts and failures of
    connections are `DOWN`; every other status is an answer. Python's own errors, such as a KeyError, are about the row
    or the function, and so are those of files and data, which are OSErrors too: `NOTHING`. A group counts as the worst
    that is in it, in the order `THROTTLED`, `DOWN`, `ANSWERED`, `NOTHING`.
    """
    return CallOutcome.ANSWERED if error is None else outcome_with(error, answer_of(error))


def outcome_with(error: BaseException, answer: Answer) -> CallOutcome:
    """The same, where it is known what the service has said in the error."""
    if is_group(error):  # a row needs all of its requests: the one that failed worst says what to do
        inside = {outcome_of(one) for one in leaves(error)}
        return next(outcome for outcome in _WORST_FIRST if outcome in inside)
    if issubclass(type(error), ResultError):  # a result came, of the wrong type
        return CallOutcome.ANSWERED
    if answer.refusal is not None:
        return CallOutcome.THROTTLED
    if answer.may_pass:
        return CallOutcome.DOWN
    if (status := answer.status) is not None:
        return CallOutcome.DOWN if status >= 500 or status == _REQUEST_TIMEOUT else CallOutcome.ANSWERED
    is_down = any(map(_is_of_the_connection, related(error)))
    # A client's error for a connection that was never asked for says nothing about the service.
    is_other = is_down and (fault_of(error) is not None or any(map(_lasts, replaced(error))))
    return CallOutcome.DOWN if is_down and not is_other else CallOutcome.NOTHING


def _is_of_the_connection(error: BaseException) -> bool:
    # issubclass of the type: isinstance would run code of a user's class.
    kind = type(error)
    if issubclass(kind, _OF_THE_NETWORK) or (issubclass(kind, FileNotFoundError) and _is_of_a_unix_socket(error)):
        return True
    if not issubclass(kind, Exception) or issubclass(kind, _OF_PYTHON):
        return False
    if is_of_a_broken_message(error):
        return bound_of_aiohttp(error) is None
    if issubclass(kind, OSError) and _has_number_of_the_network(error):
        return True
    names = _names(kind)
    return (
        any(name in _BROKEN and issubclass(kind, OSError) for name in names)
        or any(_DOWN.search(" ".join(_WORD.findall(name)).lower()) for name in names)
        or any(name in _FAILING_OVER.get(package, ()) for package, name in map(named_class, kind.__mro__))
        or grpc_code(error) in _GRPC_DOWN
        or _may_pass_in_kafka(error)
        or (not _OF_DATABASES.isdisjoint(names) and _is_of_a_database(error))
    )


def _is_of_a_unix_socket(error: BaseException) -> bool:
    """Whether a file that is missing is the socket of a server: PostgreSQL and others remove it when they end.

    It has no `filename`, but neither has that of a certificate. So what counts is who has looked for it.
    """
    return any(frame.f_code.co_name == "create_unix_connection" for frame in frames_of(error))


def _may_pass_in_kafka(error: Any) -> bool:
    packages = {_package(one) for one in type(error).__mro__}
    if packages.intersection(_OF_KAFKA):
        return tried(lambda: error.retriable) is True
    if "cimpl" not in packages:
        return False
    return bool(tried(lambda: error.args[0].retriable())) or tried(lambda: error.args[0].name()) in _NAMES_OF_KAFKA


def _is_of_a_database(error: BaseException) -> bool:
    """Whether an error of a client of MySQL or PostgreSQL is about the connection, or a lock."""
    package = next(package for package, name in map(named_class, type(error).__mro__) if name in _OF_DATABASES)
    if package in _OF_MYSQL:
        return bool(error.args) and type(error.args[0]) is int and error.args[0] in _NUMBERS_OF_MYSQL
    return package == "psycopg" and "OperationalError" in _names(type(error)) and tried(lambda: error.sqlstate) is None  # type: ignore[attr-defined]


def _lasts(error: BaseException) -> bool:
    """Whether the next call fails as this one."""
    return issubclass(type(error), ssl.SSLCertVerificationError) or not _NOT_DOWN.isdisjoint(_names(type(error)))


def _names(kind: type[BaseException]) -> Sequence[str]:
    return [name for package, name in map(named_class, kind.__mro__) if package != "builtins"]


def _package(kind: Any) -> str:
    return named_class(kind)[0]


def _has_number_of_the_network(error: Any) -> bool:
    if not _NUMBERS.isdisjoint(errnos_of(error)):
        return True
    reason = tried(lambda: error.reason)  # urllib has the error of the socket as the reason of its own
    return issubclass(type(reason), OSError) and _is_of_the_connection(reason)
