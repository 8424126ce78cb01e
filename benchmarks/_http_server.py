"""An HTTP service with a fixed latency, in a process of its own.

    python benchmarks/_http_server.py [--latency 0.02] [--places 40]

Prints its address and runs until its standard input ends, so it cannot outlive the program that started it. Below its
address, `calls` tells how many requests have come, how many of them there were at once and when the last one came, and
`json/5000` gives a body of about so many bytes. With `--places` an answer takes longer the more requests there are
beyond so many: 80 at once, with 40 places, four times as long each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from aiohttp import web

__all__ = ("http_server",)

UNLIMITED = 1_000_000
ANSWER = b'{"temp": 12.5, "sky": "clear"}'
READING = {"at": "2026-07-14T12:00:00Z", "temp": 12.5, "wind": {"speed": 3.1, "from": "NW"}, "rain": False}


@contextlib.contextmanager
def http_server(latency: float, places: int = UNLIMITED) -> Iterator[str]:
    """The address of a server that answers after so many seconds, to as many at a time as it has places."""
    command = [sys.executable, __file__, "--latency", str(latency), "--places", str(places)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def json_body(size: int) -> bytes:
    """A document of about so many bytes."""
    count = max(1, size // len(json.dumps(READING)))
    return json.dumps({"temp": 12.5, "sky": "clear", "readings": [READING] * count}).encode()


async def serve(latency: float, places: int) -> None:
    seen = {"calls": 0, "most": 0, "last": 0.0}
    in_flight = 0

    async def calls(request: web.Request) -> web.Response:
        return web.json_response(seen)

    async def answer(request: web.Request) -> web.Response:
        nonlocal in_flight
        seen["calls"] += 1
        seen["last"] = time.time()
        if latency:
            in_flight += 1
            seen["most"] = max(seen["most"], in_flight)
            await asyncio.sleep(latency * max(1.0, in_flight / places) ** 2)
            in_flight -= 1
        return web.Response(body=ANSWER, content_type="application/json")

    async def body(request: web.Request) -> web.Response:
        size = int(request.match_info["size"])
        if size not in bodies:
            bodies[size] = json_body(size)
        return web.Response(body=bodies[size], content_type="application/json")

    bodies: dict[int, bytes] = {}
    app = web.Application()
    app.router.add_get("/json/{size}", body)
    app.router.add_get("/", answer)
    app.router.add_get("/calls", calls)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds")
    parser.add_argument("--places", type=int, default=UNLIMITED, help="requests that it can answer at a time")
    options = parser.parse_args()
    asyncio.run(serve(options.latency, options.places))
