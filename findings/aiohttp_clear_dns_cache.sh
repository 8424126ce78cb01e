#!/usr/bin/env bash
# aiohttp 3.14.5, run on 2026-11-30.
# Expected: after `TCPConnector.clear_dns_cache()` names are looked up again, and all else is as before: requests go on with a
#   host's addresses in turn, and requests that wait for a look-up get what it finds.
# Seen: two. Connections take a host's addresses in turn, but a cleared memory begins with the first one again: a program
#   that clears it after each request only ever reaches this one, also if a look-up gives both each time. And if it is
#   cleared in the moment in which a look-up has ended, requests that waited for it fail with a KeyError of the host's name,
#   where the request that had asked goes on.
# Matters: clearing it is how one makes a long job find a service that has moved. Done after each failure it keeps retries
#   with an address that accepts and never answers, and the KeyError is none of the errors that one retries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile aiohttp==3.14.5
cat >"$folder/program.py" <<'PYTHON'
import asyncio
import socket

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver

HOSTS = ["127.0.0.1", "127.0.0.2"]


class Resolver(AbstractResolver):
    """Knows two addresses of each name, and says them when it may; `ended` is called directly afterwards."""

    def __init__(self, port):
        self.port, self.may_answer, self.ended = port, asyncio.Event(), lambda: None
        self.may_answer.set()

    async def resolve(self, host, port=0, family=socket.AF_INET):
        await self.may_answer.wait()
        asyncio.get_running_loop().call_soon(self.ended)
        rest = {"port": self.port, "family": socket.AF_INET, "proto": 0, "flags": socket.AI_NUMERICHOST}
        return [{"hostname": host, "host": address, **rest} for address in HOSTS]

    async def close(self):
        pass


async def where(request):
    return web.Response(text=request.transport.get_extra_info("sockname")[0])


async def get(session):
    async with session.get("http://service.test/") as response:
        return await response.text()


async def main():
    app = web.Application()
    app.router.add_get("/", where)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, HOSTS[0], 0).start()
    port = runner.addresses[0][1]
    await web.TCPSite(runner, HOSTS[1], port).start()

    def opened():
        resolver = Resolver(port)
        connector = aiohttp.TCPConnector(resolver=resolver, ttl_dns_cache=60, force_close=True)
        return resolver, connector, aiohttp.ClientSession(connector=connector)

    for clears in (False, True):
        _, connector, session = opened()
        async with session:
            seen = []
            for _ in range(4):
                seen.append(await get(session))
                if clears:
                    connector.clear_dns_cache()
        print("cleared after each request:" if clears else "not cleared:", *seen)

    resolver, connector, session = opened()
    async with session:
        resolver.may_answer.clear()
        calls = [asyncio.create_task(get(session)) for _ in range(3)]
        await asyncio.sleep(0.1)
        resolver.ended = connector.clear_dns_cache
        resolver.may_answer.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
    print("cleared as a look-up ends:", *(one if isinstance(one, str) else type(one).__name__ for one in found))
    await runner.cleanup()


asyncio.run(main())
PYTHON
timeout 60 "$folder/venv/bin/python" "$folder/program.py" 2>"$folder/error" | tee "$folder/out" || { cat "$folder/error"; exit 1; }
cat >"$folder/expected" <<'TEXT'
not cleared: 127.0.0.1 127.0.0.2 127.0.0.1 127.0.0.2
cleared after each request: 127.0.0.1 127.0.0.1 127.0.0.1 127.0.0.1
cleared as a look-up ends: 127.0.0.1 KeyError KeyError
TEXT
diff "$folder/expected" "$folder/out" || { echo "it has changed"; exit 1; }
