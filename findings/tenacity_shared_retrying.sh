#!/usr/bin/env bash
# tenacity 9.1.4, run on 2026-11-29.
# Expected: an AsyncRetrying is a policy, which may be made once and be called for many rows at a time: it takes the
#   function and its arguments with each call, and with a plain predicate that works.
# Seen: with a predicate that is a coroutine function, 90 and more of 100 calls at a time return None in place of their
#   own result, without an error. @retry with the same predicate, or .copy() for each call, returns all results.
# Matters: a column of NULLs from a service that has answered every row.
# Source: what an attempt has come to is kept in a threading.local of the AsyncRetrying, which all tasks of a thread
#   share; a call that awaits the predicate finds there what another has begun.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile tenacity==9.1.4
timeout -k 10 60 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

from tenacity import AsyncRetrying, retry, retry_if_result, stop_after_attempt
from tenacity.asyncio import retry_if_result as retry_if_result_of_coroutine

ROWS = range(1, 101)


async def ask(row):
    await asyncio.sleep(0.001)
    return row


def is_missing(answer):
    return answer is None


async def is_missing_later(answer):
    await asyncio.sleep(0)
    return answer is None


async def own_results(call):
    answers = await asyncio.gather(*map(call, ROWS))
    return sum(answer == row for row, answer in zip(ROWS, answers, strict=True))


async def main():
    stop, later = stop_after_attempt(3), retry_if_result_of_coroutine(is_missing_later)
    plain = AsyncRetrying(stop=stop, retry=retry_if_result(is_missing))
    shared = AsyncRetrying(stop=stop, retry=later)
    return {
        "shared, plain predicate": await own_results(lambda row: plain(ask, row)),
        "shared, coroutine predicate": await own_results(lambda row: shared(ask, row)),
        "copied, coroutine predicate": await own_results(lambda row: shared.copy()(ask, row)),
        "@retry, coroutine predicate": await own_results(retry(stop=stop, retry=later)(ask)),
    }


got = asyncio.run(main())
print(f"tenacity {version('tenacity')}: calls of {len(ROWS)} that return their own result: {got}")
sys.exit(not (got.pop("shared, coroutine predicate") <= 10 and set(got.values()) == {len(ROWS)}))
PYTHON
