#!/usr/bin/env bash
# openai 3.57.0, anthropic 2.14.0 and google-genai 3.6.1 with aiohttp 3.14.5, run on 2026-11-29.
# Expected: AsyncOpenAI(timeout=1.0) ends a request after a second, as the same option of google-genai does.
# Seen: openai and anthropic return the answer of a service that needs three seconds for it and sends a byte now and
#   then: their time limit is one for each wait for bytes. google-genai raises after a second.
# Matters: a proxy that keeps its connections alive with spaces makes such a call last as long as it likes, and a job
#   whose rows have a time limit of their own by this option stands still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile openai==3.57.0 anthropic==2.14.0 google-genai==3.6.1 aiohttp==3.14.5
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import logging
import sys
import time

import anthropic
import openai
from aiohttp import web
from google import genai

logging.disable()  # of the server, about the client that has gone
TIMEOUT = 1.0
SAID = [{"role": "user", "content": "hi"}]


async def answer_slowly(request):
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(6):
        await response.write(b" ")  # as JSON may begin
        await asyncio.sleep(TIMEOUT / 2)
    await response.write(b'{"id": "1"}')
    return response


async def outcome(call):
    began = time.monotonic()
    try:
        await call
    except Exception as error:  # each of the clients raises an error of its own
        return type(error).__name__, time.monotonic() - began
    return "answered", time.monotonic() - began


async def main():
    app = web.Application()
    app.router.add_post("/{path:.*}", answer_slowly)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    openai_client = openai.AsyncOpenAI(api_key="none", base_url=url, timeout=TIMEOUT, max_retries=0)
    anthropic_client = anthropic.AsyncAnthropic(api_key="none", base_url=url, timeout=TIMEOUT, max_retries=0)
    google_options = genai.types.HttpOptions(base_url=url, timeout=int(1000 * TIMEOUT))
    google_client = genai.Client(api_key="none", http_options=google_options)
    got = {
        "openai": await outcome(openai_client.chat.completions.create(model="m", messages=SAID)),
        "anthropic": await outcome(anthropic_client.messages.create(model="m", max_tokens=5, messages=SAID)),
        "google-genai": await outcome(google_client.aio.models.generate_content(model="m", contents="hi")),
    }
    await google_client.aio.aclose()
    await runner.cleanup()
    return got


got = asyncio.run(asyncio.wait_for(main(), 50))
print(f"openai {openai.__version__}, anthropic {anthropic.__version__}, google-genai {genai.__version__}")
for client, (what, seconds) in got.items():
    print(f"{client}, time limit {TIMEOUT} s: {what} after {seconds:.1f} s")
passed = [what == "answered" and seconds > 2.5 for what, seconds in got.values()]
sys.exit(not (passed == [True, True, False] and got["google-genai"][0] == "TimeoutError"))
PYTHON
