"""What a call waits for, in all programs in Python: some seconds, or an answer to an HTTP request."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Self

import aiohttp

__all__ = ("Service",)


class Service:
    """Answers after so many seconds, or when the server at the address has.

    To be made where the calls are: the first request opens a session, on its loop. A program that ends with its calls
    need not close it.

    Args:
        authority: the file of the certificate that the server's is signed with; TLS only.
        is_kept: whether connections are used again.
    """

    def __init__(self, url: str, connections: int, *, authority: str = "", is_kept: bool = True) -> None:
        self.answer: Callable[[float], Awaitable[object]] = self._request if url else asyncio.sleep
        self._url = url
        self._connections = connections
        self._authority = authority
        self._is_kept = is_kept
        self._session: aiohttp.ClientSession | None = None

    async def call(self, latency: float) -> float:
        """Makes a call: when it began. One of latency 0 returns at once, without giving way to the event loop."""
        started = time.time()
        if latency:
            await self.answer(latency)
        return started

    async def _request(self, latency: float) -> None:
        if self._session is None:
            tls = ssl.create_default_context(cafile=self._authority) if self._authority else True
            connector = aiohttp.TCPConnector(limit=self._connections, ssl=tls, force_close=not self._is_kept)
            self._session = aiohttp.ClientSession(connector=connector)
        async with self._session.get(self._url) as response:
            response.raise_for_status()
            await response.read()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
