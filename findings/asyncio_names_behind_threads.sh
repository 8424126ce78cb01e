#!/usr/bin/env bash
# Python 3.11 with aiohttp 3.14.5, run on 2026-11-29.
# Expected: work that a coroutine hands to asyncio.to_thread holds up nothing but what awaits it: requests go on.
# Seen: asyncio looks up names of hosts in the same few threads (cores + 4). While slow functions fill them, a request
#   to a name waits until one of them ends, and its sock_connect time limit does not count that. The same request to
#   the address goes through at once.
# Matters: a job that mixes a blocking client by to_thread with aiohttp seems to have a service that hangs before it
#   takes a connection, on small machines with six such calls.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile aiohttp==3.14.5
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import os
import platform
import sys
import threading

import aiohttp
from aiohttp import web

THREADS = min(32, (os.cpu_count() or 1) + 4)  # asyncio's own number
WHILE = 3.0  # seconds, in which a request to an address is done long since


async def is_answered(host, port, busy):
    """Whether a request is answered while so many threads are busy."""
    may_end = threading.Event()
    working = [asyncio.create_task(asyncio.to_thread(may_end.wait)) for _ in range(busy)]
    await asyncio.sleep(0)
    time_limit = aiohttp.ClientTimeout(total=None, sock_connect=0.5)
    async with aiohttp.ClientSession(timeout=time_limit) as session:
        request = asyncio.create_task(session.get(f"http://{host}:{port}/"))
        answered, _ = await asyncio.wait({request}, timeout=WHILE)
        may_end.set()
        assert (await request).status == 200
    await asyncio.gather(*working)
    return bool(answered)


async def main():
    async def answer(_):
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    got = {
        "localhost, one thread free": await is_answered("localhost", port, THREADS - 1),
        "localhost, all busy": await is_answered("localhost", port, THREADS),
        "127.0.0.1, all busy": await is_answered("127.0.0.1", port, THREADS),
    }
    await runner.cleanup()
    return got


got = asyncio.run(main())
print(f"Python {platform.python_version()}, aiohttp {aiohttp.__version__}: answered within {WHILE} s: {got}")
sys.exit(list(got.values()) != [True, False, True])
PYTHON
