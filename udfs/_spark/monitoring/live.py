"""Figures of running tasks, from the Python worker straight to the driver over an authenticated connection."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

Address = tuple[str, int]

NONCE_BYTES = 32  # the driver sends a nonce first, and in another byte the seconds between two messages
HEAD = struct.Struct("!I32s")  # before each message: its length and its tag
TIMEOUT = 1.0  # seconds for the driver to answer a worker
AUTHENTICATION_TIMEOUT = 60.0  # seconds for the first message of a connection
MAX_MESSAGE_BYTES = 4 << 20
MAX_CONNECTIONS = 500  # tasks beyond that report when they end
PER_SECOND = 40  # connections for which a second between two messages is added
# Seconds until the system looks whether the other machine of a silent connection is there, and between two looks. A
# task that is only slow to send stays connected.
ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
BACKLOG = 4096  # connections that the system holds until the driver takes them: all tasks of a stage begin at once

logger = logging.getLogger("asyncudf")


def _tag(secret: bytes, nonce: bytes, number: int, body: bytes) -> bytes:
    """Proves that the n-th message of a connection is from a sender with the secret, which is itself never sent."""
    return hmac.digest(secret, nonce + struct.pack("!Q", number) + body, "sha256")


class LiveReporter:
    """The worker's end: sends each message as far as the socket takes it, and never blocks.

    Spark's thread opens and closes it; in between the loop's thread calls `send`, best every `interval` seconds.
    """

    # A slow driver costs nothing: what the socket does not take at once is kept, and until that has been sent there is
    # no next message. A process does not try an address again that it could not reach.
    #
    # _rest: what is not sent yet of the last message; _socket is None once the connection has ended

    _unreachable: set[Address] = set()

    def __init__(self, address: Address, secret: bytes) -> None:
        self._secret = secret
        self._number = 0
        self.interval = 1
        self._rest = b""
        self._socket: socket.socket | None = None
        if address in self._unreachable:
            return
        try:
            self._socket = socket.create_connection(address, timeout=TIMEOUT)
            hello = self._socket.recv(NONCE_BYTES + 1, socket.MSG_WAITALL)
            self._socket.settimeout(0)
        except (OSError, ValueError, OverflowError):  # a host name that cannot be encoded
            self._unreachable.add(address)
            self.drop()
        else:
            if len(hello) > NONCE_BYTES:
                self._nonce, self.interval = hello[:NONCE_BYTES], hello[NONCE_BYTES]
            else:  # the driver has enough connections
                self.drop()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, unless a part of the last one is not sent yet."""
        self._push()
        if self._socket is not None and not self._rest:
            self._rest = self._framed(message)
            self._push()

    def close(self, message: Mapping[str, Any]) -> None:
        """Send the last message, and wait at most `TIMEOUT` until the driver has read it.

        The driver then knows how the task ended before Spark tells it that the job is over.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.settimeout(TIMEOUT)
                self._socket.sendall(self._rest + self._framed(message))
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.recv(1)
        self.drop()

    def _framed(self, message: Mapping[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        tag = _tag(self._secret, self._nonce, self._number, body)
        self._number += 1
        return HEAD.pack(len(body), tag) + body

    def _push(self) -> None:
        try:
            while self._rest and self._socket is not None:
                self._rest = self._rest[self._socket.send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError:  # the driver has ended, or the monitor
            self.drop()

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class LiveServer:
    """The driver's end, in a thread of its own, which listens at an address of `host`; OSError if it cannot.

    That thread calls `deliver` with each message of a sender that has the secret, and `lost` with the last message of a
    connection that has ended.
    """

    was_reached = False  # whether a task has connected to a server of this process

    def __init__(
        self,
        host: str,
        secret: bytes,
        deliver: Callable[[dict[str, Any]], None],
        lost: Callable[[dict[str, Any]], None],
    ) -> None:
        self._secret = secret
        self._deliver = deliver
        self._lost = lost
        self._connections = 0
        self._is_sample = False  # whether a task was refused
        self._loop: asyncio.AbstractEventLoop
        self._is_over: asyncio.Event
        listening: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(host, listening), name="asyncudf-monitor", daemon=True)
        self._thread.start()
        self.port = listening.result()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(timeout=10 * TIMEOUT)

    def _run(self, host: str, listening: Future[int]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()
                runner.run(self._listen(host, listening))
        except BaseException as error:  # no loop can be made: too many files are open
            if not listening.done():
                listening.set_exception(error)

    async def _listen(self, host: str, listening: Future[int]) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: None)  # for example: too many open files
        try:
            server = await asyncio.start_server(self._serve, host, 0, backlog=10)
            for one in server.sockets:  # asyncio would take as many at once as may wait, and run out of files
                with socket.fromfd(one.fileno(), one.family, one.type) as same:
                    same.listen(BACKLOG)
            listening.set_result(server.sockets[0].getsockname()[1])
        except BaseException as error:
            listening.set_exception(error)
            return
        await self._is_over.wait()
        server.close()  # the runner then cancels the connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = None
        ended = (asyncio.CancelledError, OSError, EOFError, ValueError, TimeoutError)
        LiveServer.was_reached = True
        with self._counted(), contextlib.closing(writer), contextlib.suppress(*ended):
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in ALIVE.items():
                if hasattr(socket, name):  # not on each system
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if self._connections > MAX_CONNECTIONS:
                self._report_sample()
                return
            # So 500 connections send 120 messages in a second, and the last one sends one in 13 seconds.
            writer.write((nonce := secrets.token_bytes(NONCE_BYTES)) + bytes([1 + self._connections // PER_SECOND]))
            async with asyncio.timeout(AUTHENTICATION_TIMEOUT):
                message = await self._read(reader, nonce, 0)
            number = 0
            while message is not None:
                self._deliver(message)
                number += 1
                message = await self._read(reader, nonce, number) or message
        if message is not None and not self._is_over.is_set():
            self._lost(message)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1

    def _report_sample(self) -> None:
        if not self._is_sample:
            self._is_sample = True
            logger.warning(
                "asyncudf.monitor takes live figures from %d tasks at once, and more are running: the live figures are "
                "those of a sample. The others are added when they end",
                MAX_CONNECTIONS,
            )

    async def _read(self, reader: asyncio.StreamReader, nonce: bytes, number: int) -> dict[str, Any]:
        """The next message; raises an error that ends `_serve` if there is none, or if its tag is wrong."""
        length, tag = HEAD.unpack(await reader.readexactly(HEAD.size))
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(length)
        body = await reader.readexactly(length)
        if not hmac.compare_digest(tag, _tag(self._secret, nonce, number, body)):
            raise ValueError(tag)
        message: dict[str, Any] = json.loads(body)
        return message
