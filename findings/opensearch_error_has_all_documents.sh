#!/usr/bin/env bash
# opensearch-py 3.2.0 and elasticsearch 9.5.1, run on 2026-11-30.
# Expected: the BulkIndexError of helpers.async_bulk says how many documents were refused, and why.
# Seen: the text of opensearch-py's has each refused document with all of its fields; that of elasticsearch's, whose code has
#   the same origin, has their number alone, and no reason.
# Matters: str(error) goes to logs, dead letters and the messages of failed tasks: once for each row of a call of 500, with
#   the contents of 500 documents.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 300 python3 -m venv "$folder/venv"
timeout 600 "$folder/venv/bin/pip" install --quiet --no-compile "opensearch-py[async]==3.2.0" "elasticsearch[async]==9.5.1" aiohttp==3.14.5
timeout -k 10 120 "$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import sys

import elasticsearch
import elasticsearch.helpers
import opensearchpy
import opensearchpy.helpers
from aiohttp import web

DOCUMENTS = 50


async def bulk(request):
    lines = (await request.text()).splitlines()
    reason = {"type": "mapper_parsing_exception", "reason": "failed to parse field [total]"}
    items = [{"index": {"_index": "orders", "_id": str(n), "status": 400, "error": reason}} for n in range(len(lines) // 2)]
    headers = {"x-elastic-product": "Elasticsearch"}
    return web.json_response({"took": 1, "errors": True, "items": items}, headers=headers)


async def refused(client, helpers):
    """The text of the error when all documents are refused."""
    documents = [{"_index": "orders", "_id": str(n), "card": f"card of customer {n}", "total": "?"} for n in range(DOCUMENTS)]
    try:
        await helpers.async_bulk(client, documents)
    except helpers.BulkIndexError as error:
        return str(error)
    finally:
        await client.close()


async def main():
    app = web.Application()
    app.router.add_route("*", "/_bulk", bulk)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    texts = {
        f"opensearch-py {opensearchpy.__versionstr__}": await refused(
            opensearchpy.AsyncOpenSearch(url), opensearchpy.helpers
        ),
        f"elasticsearch {elasticsearch.__versionstr__}": await refused(
            elasticsearch.AsyncElasticsearch(url), elasticsearch.helpers
        ),
    }
    await runner.cleanup()
    for name, text in texts.items():
        print(f"{name}: {len(text):,} letters, {text.count('card of customer')} documents, reasons: {text.count('mapper_parsing')}")
        print(f"    {text[:110]}")
    open_search, elastic = texts.values()
    return open_search.count("card of customer") == DOCUMENTS and "mapper" not in elastic and "customer" not in elastic


sys.exit(not asyncio.run(main()))
PYTHON
