"""What a call of a peer's Python program waits for: some seconds, or an answer to an HTTP request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

__all__ = ("Service", "blocking_answer")

_own = threading.local()  # a thread's connection


class Service:
    """Answers after so many seconds, or when the server at the address has.

    To be made where the calls are: the first one opens a session, on its loop. A program that ends with its calls need
    not close it.
    """

    def __init__(self, url: str, connections: int) -> None:
        self.answer: Callable[[float], Awaitable[None]] = self._request if url else asyncio.sleep
        self._url = url
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def _request(self, latency: float) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=self._connections))
        async with self._session.get(self._url) as response:
            response.raise_for_status()
            await response.read()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()


def blocking_answer(url: str, latency: float) -> None:
    """The same in a thread, with the client that costs least there: each thread has a connection of its own."""
    if not url:
        time.sleep(latency)
        return
    address = urlsplit(url)
    connection: HTTPConnection | None = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = HTTPConnection(address.netloc)
    connection.request("GET", address.path)
    response = connection.getresponse()
    response.read()
    if response.status != HTTPStatus.OK:
        raise HTTPException(f"{response.status} {response.reason}")
