"""Figures of tasks that still run: from the Python worker straight to the driver, over an authenticated connection."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

__all__ = ("Address", "LiveReporter", "LiveServer")


Address = tuple[str, int]

NONCE = 32  # bytes, which the driver says first
TAG = 32  # bytes before each message
PATIENCE = 1.0  # seconds that a worker gives the driver
SILENCE = 60.0  # seconds after which the driver forgets who has not proved that he knows the secret
LARGEST = 4 << 20  # bytes of a message
MOST = 500  # connections; tasks beyond that tell their figures when they end


def _tag(secret: bytes, nonce: bytes, number: int, body: bytes) -> bytes:
    """Proves that the n-th message of a connection comes from one who knows the secret, which is itself never sent."""
    return hmac.digest(secret, nonce + struct.pack("!Q", number) + body, "sha256")


class LiveReporter:
    """The worker's end: sends messages as far as they can be sent, and never makes anybody wait.

    Opened and closed by Spark's thread; in between `send` is called by the loop's.
    """

    # A driver that is slow, or gone, costs nothing: what the socket does not take at once is kept, and until it has
    # left there is no next message. In a process that could not reach an address nobody tries it again.
    #
    # _rest: of the last message, what has not left; _socket is None when all is over

    _unreachable: set[Address] = set()

    def __init__(self, address: Address, secret: bytes) -> None:
        self._secret = secret
        self._number = 0
        self._rest = b""
        self._socket: socket.socket | None = None
        if address in self._unreachable:
            return
        try:
            self._socket = socket.create_connection(address, timeout=PATIENCE)
            self._nonce = self._socket.recv(NONCE, socket.MSG_WAITALL)
            self._socket.settimeout(0)
        except (OSError, ValueError, OverflowError):  # some hosts have no form that could be looked up
            self._unreachable.add(address)
            self.drop()
        else:
            if len(self._nonce) < NONCE:  # it has enough others
                self.drop()

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the driver, unless the last message is still on its way."""
        self._push()
        if self._socket is not None and not self._rest:
            self._rest = self._framed(message)
            self._push()

    def close(self, message: Mapping[str, Any]) -> None:
        """Tell the last thing, and wait a moment until the driver has heard it: Spark may tell it that all is over."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.settimeout(PATIENCE)
                self._socket.sendall(self._rest + self._framed(message))
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.recv(1)
        self.drop()

    def _framed(self, message: Mapping[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        tag = _tag(self._secret, self._nonce, self._number, body)
        self._number += 1
        return struct.pack("!I", len(body)) + tag + body

    def _push(self) -> None:
        try:
            while self._rest and self._socket is not None:
                self._rest = self._rest[self._socket.send(self._rest) :]
        except BlockingIOError:
            pass
        except OSError:  # the driver is gone, or listens no more
            self.drop()

    def drop(self) -> None:
        """Tell nothing any more."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class LiveServer:
    """The driver's end, in a thread of its own.

    Args:
        host: where it listens; OSError if it cannot.
        deliver: called in that thread with each message whose sender knows the secret.
        lost: called with the last message of a connection that has ended.
    """

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
        self._loop: asyncio.AbstractEventLoop
        self._is_over: asyncio.Event
        listening: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(host, listening), name="asyncudf-monitor", daemon=True)
        self._thread.start()
        self.port = listening.result()

    def close(self) -> None:
        """Listen no more, and end all connections."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(timeout=10 * PATIENCE)

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
        self._loop.set_exception_handler(lambda loop, context: None)  # such as that no file can be opened any more
        try:
            server = await asyncio.start_server(self._serve, host, 0)
            listening.set_result(server.sockets[0].getsockname()[1])
        except BaseException as error:
            listening.set_exception(error)
            return
        await self._is_over.wait()
        server.close()  # and what goes on is cancelled when this ends

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = None
        gone = (OSError, EOFError, ValueError, TimeoutError)
        with contextlib.closing(writer), contextlib.suppress(asyncio.CancelledError), contextlib.suppress(*gone):
            if len(asyncio.all_tasks()) > MOST:
                return
            writer.write(nonce := secrets.token_bytes(NONCE))
            async with asyncio.timeout(SILENCE):
                message = await self._read(reader, nonce, 0)
            number = 0
            while message is not None:
                self._deliver(message)
                number += 1
                message = await self._read(reader, nonce, number) or message
        if message is not None and not self._is_over.is_set():
            self._lost(message)

    async def _read(self, reader: asyncio.StreamReader, nonce: bytes, number: int) -> dict[str, Any]:
        """The next message; raises what `_serve` ends with if there is none, or if it proves nothing."""
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        if length > LARGEST:
            raise ValueError(length)
        tag, body = await reader.readexactly(TAG), await reader.readexactly(length)
        if not hmac.compare_digest(tag, _tag(self._secret, nonce, number, body)):
            raise ValueError(tag)
        message: dict[str, Any] = json.loads(body)
        return message
