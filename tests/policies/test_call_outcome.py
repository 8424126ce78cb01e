"""What errors tell of their service: those of the clients that people use, and rows that only sound so."""

from __future__ import annotations

import asyncio
import builtins
import errno
import gzip
import http.client
import io
import shutil
import socket
import sqlite3
import ssl
import types
import urllib.error
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
import redis.exceptions
import urllib3

from asyncudf import AsyncTimeoutError, ResultError
from asyncudf._errors.call_outcome import CallOutcome, outcome_of
from asyncudf.http import PermanentError, is_retryable
from asyncudf.testing import run_rows

UP, DOWN, NOTHING, THROTTLED = CallOutcome.ANSWERED, CallOutcome.DOWN, CallOutcome.NOTHING, CallOutcome.THROTTLED


def of_client(line: str, *args: Any, **attributes: Any) -> Exception:
    """An exception as a client has it: its class, then the classes that it derives from, the first of them last."""
    kind: type[Exception] = Exception
    for name in reversed(line.split()):
        kind = getattr(builtins, name, None) or types.new_class(name.strip("_"), (kind,))
    error = kind(*args)
    error.__dict__.update(attributes)
    return error


def of_package(module: str, line: str, *args: Any, **attributes: Any) -> Exception:
    error = of_client(line, *args, **attributes)
    type(error).__module__ = module
    return error


def of_database(module: str, *args: Any, **attributes: Any) -> Exception:
    return of_package(module, "OperationalError", *args, **attributes)


def of_librdkafka(name: str, *, retriable: bool = False) -> Exception:
    error = SimpleNamespace(name=lambda: name, retriable=lambda: retriable)
    return of_package("cimpl", "KafkaException", error)


def of_grpc(line: str, code: str, details: str = "no") -> Exception:
    return of_client(line, code=lambda: SimpleNamespace(name=code), details=lambda: details)


def answered(status: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={})


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("the call failed")
    error.__cause__ = cause
    return error


# The classes that users of each meet, with their bases; `ConnectionError_` is the client's own of that name.
CLIENTS: dict[str, list[tuple[BaseException | None, CallOutcome]]] = {
    "aiohttp": [
        (of_client("ClientConnectorError ClientOSError ClientConnectionError ClientError"), DOWN),
        (of_client("ServerDisconnectedError ServerConnectionError ClientConnectionError ClientError"), DOWN),
        (of_client("ServerTimeoutError ServerConnectionError ClientConnectionError ClientError"), DOWN),
        (of_client("ClientResponseError ClientError", status=502), DOWN),
        (of_client("ClientResponseError ClientError", status=404), UP),
        (of_client("ContentTypeError ClientResponseError ClientError", status=200), UP),
        (of_client("InvalidURL ClientError ValueError"), NOTHING),
        (of_client("ClientPayloadError ClientError"), DOWN),
    ],
    "httpx": [
        (of_client("ConnectError NetworkError TransportError RequestError HTTPError"), DOWN),
        (of_client("ReadTimeout TimeoutException TransportError RequestError HTTPError"), DOWN),
        (of_client("RemoteProtocolError ProtocolError TransportError RequestError HTTPError"), DOWN),
        (of_client("HTTPStatusError HTTPError", response=answered(429)), THROTTLED),
        (of_client("DecodingError RequestError HTTPError"), NOTHING),
        (
            of_client("UnsupportedProtocol TransportError RequestError HTTPError"),
            NOTHING,
        ),  # a row's URL without https://
        (
            of_client("LocalProtocolError ProtocolError TransportError RequestError HTTPError"),
            NOTHING,
        ),  # a row's header
    ],
    "httpcore": [
        (of_client("RemoteProtocolError ProtocolError"), DOWN),
        (of_client("LocalProtocolError ProtocolError"), NOTHING),
    ],
    "requests": [
        (of_client("ConnectionError_ RequestException OSError"), DOWN),
        (of_client("ConnectTimeout ConnectionError_ RequestException OSError"), DOWN),
        (of_client("ReadTimeout Timeout RequestException OSError"), DOWN),
        (of_client("ChunkedEncodingError RequestException OSError"), DOWN),
        (of_client("RetryError RequestException OSError"), DOWN),
        (of_client("HTTPError RequestException OSError", response=answered(404)), UP),
        (of_client("ContentDecodingError RequestException OSError"), NOTHING),
        (of_client("MissingSchema RequestException ValueError"), NOTHING),
    ],
    "urllib": [
        (urllib.error.URLError(ConnectionRefusedError()), DOWN),
        (urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "try again")), DOWN),
        (urllib.error.URLError("unknown url type: foo"), NOTHING),
        (urllib.error.URLError(FileNotFoundError()), NOTHING),
        (http.client.IncompleteRead(b"half"), DOWN),
        (http.client.BadStatusLine("it is down"), DOWN),
        (http.client.RemoteDisconnected(), DOWN),
        (http.client.InvalidURL("a row's"), NOTHING),
    ],
    "urllib3": [
        (urllib3.exceptions.IncompleteRead(4, 4), DOWN),
        (urllib3.exceptions.ReadTimeoutError(None, None, "timed out"), DOWN),  # type: ignore[arg-type]
        (urllib3.exceptions.ProtocolError("Connection aborted.", http.client.RemoteDisconnected()), DOWN),
        (urllib3.exceptions.DecodeError(), NOTHING),
    ],
    "asyncio": [
        (asyncio.IncompleteReadError(b"half", 8), DOWN),
        (asyncio.LimitOverrunError("a long line", 8), NOTHING),
    ],
    "asyncpg": [
        (of_client("ConnectionDoesNotExistError PostgresConnectionError PostgresError"), DOWN),
        (of_client("CannotConnectNowError OperatorInterventionError PostgresError"), DOWN),
        (of_client("TooManyConnectionsError InsufficientResourcesError PostgresError"), DOWN),
        (of_client("AdminShutdownError OperatorInterventionError PostgresError"), DOWN),
        (of_client("CrashShutdownError OperatorInterventionError PostgresError"), DOWN),
        (of_client("UniqueViolationError IntegrityConstraintViolationError PostgresError"), NOTHING),
        (of_client("InterfaceError InterfaceMessage"), NOTHING),
        (asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"), DOWN),
        (of_client("InternalClientError"), NOTHING),
        # Within a transaction; the next one prepares the statement again.
        (asyncpg.InvalidCachedStatementError("cached statement plan is invalid due to a schema change"), DOWN),
        (asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), DOWN),
        (asyncpg.QueryCanceledError("canceling statement due to user request"), NOTHING),
        # No client of PostgreSQL tries these again: they find the new master as they connect.
        (asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"), NOTHING),
        (of_client("DeadlockDetectedError TransactionRollbackError PostgresError", sqlstate="40P01"), DOWN),
        (of_client("SerializationError TransactionRollbackError PostgresError", sqlstate="40001"), DOWN),
        (of_client("UniqueViolationError IntegrityConstraintViolationError PostgresError", sqlstate="23505"), NOTHING),
    ],
    "services with numbers of their own": [  # to one of them 40001 is a wrong key
        (of_client("ApiError", code="40001"), NOTHING),
        (of_client("ApiError", reason="40P01"), NOTHING),
        (PermanentError(400, body={"code": "40001", "message": "invalid credential"}), UP),
        (of_client("ApiError", sqlstate=["40001"]), NOTHING),
    ],
    "psycopg": [
        (of_database("psycopg", "the connection is closed"), DOWN),
        (of_database("psycopg.errors", "disk full", sqlstate="53100"), NOTHING),
        (of_database("psycopg.errors", "deadlock detected", sqlstate="40P01"), DOWN),
        (of_client("OperationalError", "deadlock detected", pgcode="40P01"), DOWN),  # of psycopg2
    ],
    "pymysql": [
        (of_database("pymysql.err", 2013, "Lost connection to MySQL server during query"), DOWN),
        (of_database("pymysql.err", 1213, "Deadlock found when trying to get lock"), DOWN),
        (of_database("pymysql.err", 3572, "Statement aborted because lock(s) could not be acquired"), DOWN),
        (of_package("mysql.connector.errors", "DatabaseError Error", 1205, "Lock wait timeout exceeded"), DOWN),
        (of_package("mysql.connector.errors", "DatabaseError Error", 1366, "Incorrect integer value"), NOTHING),
        (of_package("psycopg.errors", "DatabaseError Error"), NOTHING),
        (of_database("pymysql.err", 1045, "Access denied"), NOTHING),
        (of_database("pymysql.err"), NOTHING),
        (of_database("http_client", 1213, "Deadlock found when trying to get lock"), NOTHING),
    ],
    "sqlite3": [(sqlite3.OperationalError("no such table: t"), NOTHING)],
    "redis": [
        (of_client("ConnectionError_ RedisError"), DOWN),
        (of_client("BusyLoadingError ConnectionError_ RedisError"), DOWN),
        (of_client("TimeoutError_ RedisError"), DOWN),
        (of_client("ClusterDownError ClusterError ResponseError RedisError"), DOWN),
        (of_client("MasterDownError ClusterDownError ResponseError RedisError"), DOWN),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), DOWN),
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), DOWN),
        (redis.exceptions.SlotNotCoveredError("Slot 7 not covered"), DOWN),
        (of_client("ReadOnlyError OfAFile"), NOTHING),
        (of_client("ResponseError RedisError"), NOTHING),
        (of_client("AuthenticationError ConnectionError_ RedisError"), NOTHING),
        (of_client("AuthorizationError ConnectionError_ RedisError"), NOTHING),
        (of_client("MaxConnectionsError ConnectionError_ RedisError"), NOTHING),
    ],
    "aiokafka": [
        (of_package("aiokafka.errors", "NotLeaderForPartitionError BrokerResponseError", retriable=True), DOWN),
        (of_package("aiokafka.errors", "NotEnoughReplicasError BrokerResponseError", retriable=True), DOWN),
        (of_package("aiokafka.errors", "KafkaTimeoutError KafkaError", retriable=False), DOWN),
        (of_package("aiokafka.errors", "MessageSizeTooLargeError BrokerResponseError", retriable=False), NOTHING),
        (of_package("aiokafka.errors", "InvalidSessionTimeoutError BrokerResponseError", retriable=False), NOTHING),
        (of_package("aiokafka.errors", "NotLeaderForPartitionError BrokerResponseError"), NOTHING),
        (of_client("NotLeaderForPartitionError BrokerResponseError", retriable=True), NOTHING),
    ],
    "confluent-kafka": [
        (of_librdkafka("NOT_LEADER_FOR_PARTITION"), DOWN),
        (of_librdkafka("_MSG_TIMED_OUT"), DOWN),
        (of_librdkafka("CONCURRENT_TRANSACTIONS", retriable=True), DOWN),
        (of_librdkafka("MSG_SIZE_TOO_LARGE"), NOTHING),
        (of_package("cimpl", "KafkaException", "closed"), NOTHING),
        (of_package("cimpl", "KafkaException"), NOTHING),
    ],
    "grpc": [
        (of_grpc("AioRpcError RpcError", "UNAVAILABLE"), DOWN),
        (of_grpc("_InactiveRpcError RpcError", "DEADLINE_EXCEEDED"), DOWN),
        (of_grpc("AioRpcError RpcError", "NOT_FOUND"), NOTHING),
        (of_grpc("AioRpcError RpcError", "RESOURCE_EXHAUSTED"), THROTTLED),
        (
            of_grpc("AioRpcError RpcError", "RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)"),
            NOTHING,
        ),  # a row's
        (of_client("ServiceUnavailable ServerError GoogleAPICallError"), DOWN),
    ],
    "botocore": [
        (of_client("EndpointConnectionError ConnectionError_ BotoCoreError"), DOWN),
        (of_client("ReadTimeoutError HTTPClientError BotoCoreError"), DOWN),
        (of_client("ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 503}}), DOWN),
        (of_client("ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 400}}), UP),
        (of_client("ParamValidationError BotoCoreError"), NOTHING),
        (of_client("IncompleteReadError BotoCoreError"), DOWN),
        (of_client("ResponseStreamingError HTTPClientError BotoCoreError"), DOWN),
    ],
    "elasticsearch": [
        (of_client("ConnectionTimeout TransportError"), DOWN),
        (of_client("ConnectionError_ TransportError"), DOWN),
        (of_client("SerializationError TransportError"), NOTHING),  # a row that no JSON can be made of
        (of_client("ApiError", status_code=409), UP),
    ],
    "openai": [
        (of_client("APIConnectionError APIError OpenAIError"), DOWN),
        (of_client("APITimeoutError APIConnectionError APIError OpenAIError"), DOWN),
        (of_client("InternalServerError APIStatusError APIError OpenAIError", status_code=500), DOWN),
        (of_client("RateLimitError APIStatusError APIError OpenAIError", status_code=429), THROTTLED),
        (of_client("BadRequestError APIStatusError APIError OpenAIError", status_code=400), UP),
        (of_client("LengthFinishReasonError OpenAIError"), NOTHING),
    ],
    "pymongo": [
        (of_client("AutoReconnect ConnectionFailure PyMongoError"), DOWN),
        (of_client("ServerSelectionTimeoutError AutoReconnect ConnectionFailure PyMongoError"), DOWN),
        (of_client("DuplicateKeyError WriteError OperationFailure PyMongoError"), NOTHING),
    ],
    "a call itself": [
        (None, UP),
        (ResultError("not a number"), UP),
        (ConnectionRefusedError(), DOWN),
        (AsyncTimeoutError("no result within 3 s"), DOWN),
        (of_client("Busy", status=408), DOWN),
        (of_client("Busy", status=500), DOWN),
        (of_client("Busy", status=503, headers={"retry-after": "3"}), THROTTLED),
        (caused_by(of_client("Busy", status=502)), DOWN),
        (caused_by(ConnectionResetError()), DOWN),
        (KeyError("city"), NOTHING),
        (asyncio.CancelledError(), NOTHING),
    ],
    "others": [
        (of_client("Unavailable RequestExecutionException DriverException"), DOWN),  # Cassandra
        (of_client("OperationTimedOut DriverException"), DOWN),
        (of_client("TTransportException TException"), DOWN),  # Thrift
        (of_client("ServiceUnavailable DriverError"), DOWN),  # Neo4j
        (of_client("SMTPServerDisconnected SMTPException OSError"), DOWN),
    ],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_clients_raise(client: str) -> None:
    """None of them is imported: what is read are statuses, codes, the numbers of OSErrors, and words of names."""
    for error, outcome in CLIENTS[client]:
        assert outcome_of(error) is outcome, [kind.__name__ for kind in type(error).__mro__]
        if error is not None:
            assert is_retryable(error) is (outcome in (DOWN, THROTTLED)), [
                kind.__name__ for kind in type(error).__mro__
            ]


def raised_in_place_of(cause: Exception) -> Exception:
    """As requests does it."""
    try:
        try:
            raise cause
        except Exception:
            raise of_client("SSLError_ ConnectionError_ RequestException OSError")  # noqa: B904 - it does not say from
    except Exception as error:
        return error


LASTING = [
    ssl.SSLCertVerificationError(),
    of_client("ServerFingerprintMismatch ServerConnectionError ClientConnectionError ClientError"),
    of_client("UnsupportedProtocol TransportError RequestError HTTPError"),
    of_client("LocalProtocolError ProtocolError TransportError RequestError HTTPError"),  # a token with a line's end
]


@pytest.mark.parametrize("cause", LASTING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("wrapped", [caused_by, raised_in_place_of])
def test_what_lasts_does_not_become_an_outage_where_a_client_wraps_it(cause: Exception, wrapped: Any) -> None:
    """As openai's APIConnectionError, "Connection error.": rows were called again and again, and opened the breaker."""
    error = of_client("APIConnectionError APIError OpenAIError")
    error.__cause__ = wrapped(cause)
    for one in (error, wrapped(cause), ExceptionGroup("two", [error])):
        assert outcome_of(one) is NOTHING
        assert not is_retryable(one)


SEVERAL = "Multiple exceptions: [Errno {0}] Connect call failed ('::1', 1, 0, 0), [Errno {0}] Connect call failed"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectionResetError(), DOWN),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), DOWN),
        (OSError(errno.EHOSTUNREACH, "No route to host"), DOWN),
        (OSError(SEVERAL.format(errno.ECONNREFUSED)), DOWN),  # of asyncio, where a host has several addresses
        (OSError(SEVERAL.format(errno.ENOENT)), NOTHING),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), DOWN),
        (socket.herror(), DOWN),
        (ssl.SSLEOFError(), DOWN),
        (ssl.SSLCertVerificationError(), NOTHING),
        (gzip.BadGzipFile("Not a gzipped file"), NOTHING),
        (shutil.Error(), NOTHING),
        (io.UnsupportedOperation(), NOTHING),
        (OSError("image file is truncated"), NOTHING),  # as Pillow says it
        (OSError(errno.ENOSPC, "No space left on device"), NOTHING),
        (FileNotFoundError(errno.ENOENT, "model.bin"), NOTHING),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else None,
)
def test_of_pythons_own_oserrors_only_those_of_the_network(error: BaseException, outcome: CallOutcome) -> None:
    """A row with a broken file opened the breaker, and was tried again and again."""
    assert outcome_of(error) is outcome
    assert is_retryable(error) is (outcome is DOWN)


def unsafe_tls(folder: Path) -> None:
    ssl.create_default_context(cafile=str(folder / "ca.pem"))


async def without_a_program(folder: Path) -> None:
    await asyncio.create_subprocess_exec(str(folder / "program"))


MISSING: dict[str, tuple[Callable[[Path], Any], CallOutcome]] = {
    "the socket of PostgreSQL": (lambda folder: asyncpg.connect(host=str(folder), user="me", database="flights"), DOWN),
    "a socket": (lambda folder: asyncio.open_unix_connection(folder / "socket"), DOWN),
    "a file": (lambda folder: (folder / "model.bin").read_bytes(), NOTHING),
    "a certificate": (unsafe_tls, NOTHING),
    "a program": (without_a_program, NOTHING),
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("use", "outcome"), MISSING.values(), ids=MISSING)
def test_a_socket_that_a_server_has_removed_is_a_lost_connection_and_no_other_file_is(
    use: Callable[[Path], Any], outcome: CallOutcome, loop: str, tmp_path: Path
) -> None:
    """PostgreSQL removes its socket when it restarts: rows failed at once, though a refused connection was retried."""

    async def call() -> None:
        await use(tmp_path)

    with (
        asyncio.Runner(loop_factory=pytest.importorskip(loop).new_event_loop) as runner,
        pytest.raises(FileNotFoundError) as failed,
    ):
        runner.run(call())
    for error in (failed.value, caused_by(failed.value)):
        assert outcome_of(error) is outcome
        assert is_retryable(error) is (outcome is DOWN)


class ClientConnectorError(OSError):
    """As aiohttp's, whose name and base say that the connection has failed."""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_say_nothing_of_the_service_and_may_be_fewer_the_next_time(number: int) -> None:
    """aiohttp's error counted as a failure of the service and opened the breaker."""
    cause = OSError(number, "Too many open files")
    several = OSError(SEVERAL.format(number))
    for error in (cause, ClientConnectorError(number, "Too many open files"), caused_by(cause), several):
        assert outcome_of(error) is NOTHING
        assert is_retryable(error)


@pytest.mark.parametrize(
    "line",
    [
        "UnknownTransport KeyError",
        "NetworkIdMissing LookupError",
        "ConnectionStringError ValueError",
        "TimeoutTypeError TypeError",
        "CourseUnavailable",
        "UnknownTransport",
        "NetworkIdMissing",
        "InterconnectedParts",
        "ConnectorMissing",
        "RpcError",
    ],
)
def test_names_of_rows_that_only_sound_like_it(line: str) -> None:
    assert outcome_of(of_client(line)) is NOTHING


def test_an_error_whose_own_code_fails_tells_nothing() -> None:
    class RpcError(OSError):
        def code(self) -> Any:
            raise ValueError("no code")

        @property
        def reason(self) -> Any:
            raise ValueError("no reason")

    assert outcome_of(RpcError()) is NOTHING


class Unnamed(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__module__", "__qualname__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class OddError(Exception, metaclass=Unnamed):
    pass


def test_an_error_of_a_class_that_does_not_tell_its_name_is_the_rows() -> None:
    """It ended the task, as an error without a place."""
    assert outcome_of(OddError("no")) is CallOutcome.NOTHING

    async def fails(x: int) -> int:
        raise OddError("no")

    (found,) = run_rows(fails, [1], on_error="capture")
    assert (found["error"]["type"], found["error"]["message"]) == ("OddError", "no")
