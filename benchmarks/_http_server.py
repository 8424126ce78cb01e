"""An HTTP service with a fixed latency, in a process of its own.

    python benchmarks/_http_server.py [--latency 0.02] [--certificate cert.pem --key key.pem]

Prints its address and runs until its standard input ends, so it cannot outlive the program that started it. Below its
address, `calls` tells how many requests have come and how many of them there were at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import trustme
from aiohttp import web

__all__ = ("certified", "http_server")

BACKLOG = 4_096  # connections that the kernel takes before the server does; aiohttp's own is 128
ANSWER = b'{"temp": 12.5, "sky": "clear"}'


@contextlib.contextmanager
def http_server(latency: float, *options: str) -> Iterator[str]:
    """The address of a server that answers after so many seconds."""
    command = [sys.executable, __file__, "--latency", str(latency), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def certified(folder: str) -> tuple[list[str], str]:
    """The options of a server with TLS, and the file of the authority that its clients trust."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    key, certificate, trusted = (str(Path(folder, f"{name}.pem")) for name in ("key", "certificate", "authority"))
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    return ["--key", key, "--certificate", certificate], trusted


async def serve(latency: float, tls: ssl.SSLContext | None) -> None:
    seen = {"calls": 0, "most": 0}
    in_flight = 0

    async def calls(request: web.Request) -> web.Response:
        return web.json_response(seen)

    async def answer(request: web.Request) -> web.Response:
        nonlocal in_flight
        seen["calls"] += 1
        if latency:
            in_flight += 1
            seen["most"] = max(seen["most"], in_flight)
            await asyncio.sleep(latency)
            in_flight -= 1
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_get("/", answer)
    app.router.add_get("/calls", calls)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls, backlog=BACKLOG).start()
        print(f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    options = parser.parse_args()
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key)
    uvloop.run(serve(options.latency, context))
