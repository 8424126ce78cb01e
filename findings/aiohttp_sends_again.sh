#!/usr/bin/env bash
# aiohttp 3.14.5, run on 2026-11-29.
# Expected: a request that the service has taken and not answered ends in an error, and what is sent again is decided by
#   the caller: ClientSession has no option of retries.
# Seen: if the service drops the connection in place of an answer, a GET, PUT or DELETE is sent a second time, unasked
#   and unseen: the call returns the second answer. That is so on a connection that was just made, too, and not only for
#   one that was kept and has gone stale. A POST is sent once and ends in ServerDisconnectedError.
# Matters: a metered GET is paid twice, a limit of calls a second is passed, and three tries of the job's own are six
#   requests, of which its metrics have three.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile aiohttp==3.14.5
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import sys

import aiohttp


async def requests_of(method, dropped):
    """How many requests the service sees of one call, if it drops so many of them, and how the call ends."""
    heads = []

    async def serve(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if len(heads) > dropped:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, aiohttp.ClientSession() as session:
        try:
            async with session.request(method, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as response:
                outcome = await response.text()
        except aiohttp.ServerDisconnectedError as error:
            outcome = type(error).__name__
    return len(heads), outcome


async def main():
    got = {f"{method}, one dropped": await requests_of(method, 1) for method in ("GET", "PUT", "DELETE", "POST")}
    return got | {"GET, all dropped": await requests_of("GET", 10)}


got = asyncio.run(asyncio.wait_for(main(), 30))
print(f"aiohttp {aiohttp.__version__}: requests seen for one call, and how it ended")
for what, (requests, outcome) in got.items():
    print(f"{what}: {requests}, {outcome}")
AGAIN, ERROR = (2, "ok"), "ServerDisconnectedError"
sys.exit(list(got.values()) != [AGAIN, AGAIN, AGAIN, (1, ERROR), (2, ERROR)])
PYTHON
