"""Serves an application of aiohttp on this machine, for examples."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def served(app: web.Application) -> Iterator[str]:
    """Its address, while the block runs; it runs in a thread."""
    ready, done, address = threading.Event(), threading.Event(), list[str]()

    async def run() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await asyncio.to_thread(done.wait)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield address[0]
    finally:
        done.set()
        thread.join()
