#!/usr/bin/env bash
# circuitbreaker 2.1.3 and purgatory 3.0.1, run on 2026-11-29.
# Expected: when its time is over an open circuit breaker lets one call through, and decides by it about the others; it
#   is what "half-open" means since the pattern has a name.
# Seen: of 50 calls at a time all 50 reach the service, by both libraries. One call at a time goes as expected.
# Matters: behind asyncio.gather, or Spark's tasks, a service that comes back is met by as many calls as it went down by.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile circuitbreaker==2.1.3 purgatory==3.0.1
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import circuitbreaker
import purgatory

FAILURES, OPEN_FOR, AT_ONCE = 5, 0.5, 50


class Service:
    calls = 0

    async def ask(self):
        self.calls += 1
        await asyncio.sleep(0.05)
        raise ConnectionError("down")


async def calls_after_the_wait(call, service):
    for _ in range(FAILURES):
        await asyncio.gather(call(), return_exceptions=True)
    service.calls = 0
    await asyncio.gather(call(), return_exceptions=True)
    while_open = service.calls
    await asyncio.sleep(OPEN_FOR + 0.1)
    await asyncio.gather(*(call() for _ in range(AT_ONCE)), return_exceptions=True)
    return while_open, service.calls


async def by_circuitbreaker():
    service = Service()
    guarded = circuitbreaker.circuit(failure_threshold=FAILURES, recovery_timeout=OPEN_FOR)(service.ask)
    return await calls_after_the_wait(guarded, service)


async def by_purgatory():
    service = Service()
    breakers = purgatory.AsyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=OPEN_FOR)

    async def guarded():
        async with await breakers.get_breaker("service"):
            await service.ask()

    return await calls_after_the_wait(guarded, service)


async def main():
    return {"circuitbreaker": await by_circuitbreaker(), "purgatory": await by_purgatory()}


got = asyncio.run(main())
for library, (while_open, half_open) in got.items():
    print(f"{library} {version(library)}: {while_open} calls while open, {half_open} of {AT_ONCE} when half-open")
sys.exit(set(got.values()) != {(0, AT_ONCE)})
PYTHON
