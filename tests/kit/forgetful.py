"""A connection that something on the way forgets, as a NAT does after minutes of silence: neither end learns of it."""

from __future__ import annotations

import asyncio
from typing import Self


class Forgetful:
    """A way to a server at a port of this machine; an async context manager."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._epoch = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def forget(self) -> None:
        """From now on nothing passes over the connections that there are, and they stay open."""
        self._epoch += 1

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += writer, other_writer
        await asyncio.gather(self._pass(reader, other_writer), self._pass(other_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        epoch = self._epoch
        try:
            while data := await reader.read(1 << 16):
                if epoch == self._epoch:
                    writer.write(data)
            if epoch == self._epoch:
                writer.write_eof()
        except OSError:  # the test has ended
            pass
