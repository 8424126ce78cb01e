#!/usr/bin/env bash
# redis 8.1.0 (asyncio), run on 2026-11-29.
# Expected: `Redis(host=, port=)` and `Redis.from_url("redis://host:port")` are two spellings of one client.
# Seen: with nobody listening the first tries to connect 11 times, with waits between, for seconds; the second once.
#   The same for `Redis(connection_pool=ConnectionPool(host=, port=))`: it tries once.
# Matters: a cache in each of a cluster's workers either stands still at every row while its server restarts, or fails
#   each row at the first refused connection, and which of the two depends on how its address was written.
# Source: the Retry of ten is the default of an argument of Redis.__init__, and goes only into a pool that Redis makes
#   itself; a pool made by from_url has connections whose `retry` is None, which means none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile redis==8.1.0
timeout 100 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import socket
import sys
import time

import redis
from redis.asyncio import ConnectionPool, Redis

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]  # nobody listens there once this block has ended
CLIENTS = {
    "Redis(host=, port=)": lambda: Redis(host="127.0.0.1", port=PORT),
    "Redis.from_url(...)": lambda: Redis.from_url(f"redis://127.0.0.1:{PORT}"),
    "Redis(connection_pool=...)": lambda: Redis(connection_pool=ConnectionPool(host="127.0.0.1", port=PORT)),
}


async def attempts(make_client):
    loop = asyncio.get_running_loop()
    connect, count = loop.create_connection, 0

    def counting(*args, **kwargs):
        nonlocal count
        count += 1
        return connect(*args, **kwargs)

    loop.create_connection = counting
    client = make_client()
    try:
        await asyncio.wait_for(client.get("key"), 30)
    except redis.ConnectionError:
        return count
    finally:
        await client.aclose()
    raise AssertionError("somebody listens")


print(f"redis {redis.__version__}: one get, nobody listens")
tries = []
for name, make_client in CLIENTS.items():
    start = time.monotonic()
    tries.append(asyncio.run(attempts(make_client)))
    print(f"{name}: {tries[-1]} attempts to connect, {time.monotonic() - start:.1f} s")
sys.exit(tries != [11, 1, 1])
PYTHON
