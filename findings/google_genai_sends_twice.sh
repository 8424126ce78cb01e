#!/usr/bin/env bash
# google-genai 3.6.1 and 2.20.0 with aiohttp 3.14.5, run on 2026-11-29.
# Expected: without retry_options a request is sent once, as the docstring of the client's own retry_args says, and with
#   `attempts=1` once in any case. The client and its `.aio` do the same.
# Seen: a server that takes a generate_content and drops the connection gets it a second time from `.aio`, unasked, and
#   once from the plain client. `attempts=1` turns that off in 3.6.1, and does not in 2.20.0.
# Matters: prompts are paid, and a job whose own retries are counted (three tries a row) sends six.
# Source: google/genai/_api_client.py has an except clause for aiohttp's errors that sends again after 1 to 10 s; the
#   branch for clients without aiohttp has none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
cat >"$folder/program.py" <<'PYTHON'
import asyncio
import contextlib
import logging
import socket
import sys
import threading

from google import genai
from google.genai import types

EXPECTED = {"3.6.1": [1, 2, 1], "2.20.0": [1, 2, 2]}
logging.disable()


def drop_each(listener, requests):
    while True:
        connection, _ = listener.accept()
        with connection:
            head = b""
            while b"\r\n\r\n" not in head and (received := connection.recv(65536)):
                head += received
            if head:
                requests.append(head)


async def requests_of(call, options):
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drop_each, args=(listener, requests), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        http_options = types.HttpOptions(base_url=address, timeout=10_000, retry_options=options)
        client = genai.Client(api_key="none", http_options=http_options)
        with contextlib.suppress(Exception):  # each of the clients raises an error of its own
            await call(client)
        await client.aio.aclose()
    return len(requests)


async def plain(client):
    client.models.generate_content(model="gemini-2.5-flash", contents="hi")


async def aio(client):
    await client.aio.models.generate_content(model="gemini-2.5-flash", contents="hi")


async def main():
    once = types.HttpRetryOptions(attempts=1)
    return [await requests_of(plain, None), await requests_of(aio, None), await requests_of(aio, once)]


seen = asyncio.run(asyncio.wait_for(main(), 50))
print(f"google-genai {genai.__version__}: requests seen for one call")
print(f"client.models {seen[0]}, client.aio.models {seen[1]}, client.aio.models with attempts=1 {seen[2]}")
sys.exit(seen != EXPECTED[genai.__version__])
PYTHON
for version in 3.6.1 2.20.0; do
  timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile "google-genai==$version" aiohttp==3.14.5
  timeout 60 "$folder/venv/bin/python" "$folder/program.py"
done
