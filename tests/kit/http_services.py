"""HTTP services that answer as a test needs it: of aiohttp in a thread, or of bytes that are sent as they are."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from aiohttp import web

__all__ = ("Handler", "sending", "serving")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.contextmanager
def serving(handler: Handler, tls: ssl.SSLContext | None = None, backlog: int = 128) -> Iterator[str]:
    """The address of a service that answers every request by `handler`; it is gone when the block ends.

    `backlog` connections may wait to be taken.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls, backlog=backlog).start()
        return int(runner.addresses[0][1])

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def sending(answer: bytes) -> AsyncIterator[str]:
    """The address of a service that sends these bytes for each request, and closes the connection."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield "http://{}:{}/".format(*server.sockets[0].getsockname()[:2])
