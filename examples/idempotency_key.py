"""Charge each order once, though answers get lost: an `Idempotency-Key` that the service honours.

    python examples/idempotency_key.py [--orders 200]

The service charges, and then loses every fifth answer: the connection breaks after the work is done. The call is tried
again, with the same key, and the service answers from what it remembers. The key is that of the row's result in a
`ResultStore`: the same in each attempt, each run of the task, and each run of the job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import _session
import aiohttp
from aiohttp import web

from asyncudf import RetryStrategy, RuntimeContext, async_pandas_udf

LOST = 5  # every so many answers one


async def charge(order: int, cents: int, session: aiohttp.ClientSession, context: RuntimeContext) -> int:
    headers = {"Idempotency-Key": context.idempotency_key}
    async with session.post("/charges", json={"order": order, "cents": cents}, headers=headers) as response:
        response.raise_for_status()
        return (await response.json())["receipt"]


class Payments:
    """A service that charges once for each key, and loses answers."""

    def __init__(self) -> None:
        self.receipts: dict[str, int] = {}
        self.charged: Counter[int] = Counter()
        self.requests = 0

    async def charge(self, request: web.Request) -> web.Response:
        self.requests += 1
        number = self.requests
        order = await request.json()
        key = request.headers["Idempotency-Key"]
        if key not in self.receipts:
            self.charged[order["order"]] += order["cents"]
            self.receipts[key] = len(self.receipts) + 1
        if number % LOST == 0 and request.transport is not None:
            request.transport.abort()
        return web.json_response({"receipt": self.receipts[key]})


def pay(url: str, orders: int) -> int:
    """Charge the orders; returns how many have a receipt."""
    spark = _session.session()
    receipt = async_pandas_udf(
        charge,
        capacity=10,
        retry=RetryStrategy.fixed_delay(attempts=10, delay=0.01, retry_on=aiohttp.ClientConnectionError),
        resources={"session": partial(aiohttp.ClientSession, url)},
    )
    found = spark.range(orders).select(receipt("id", "id").alias("receipt")).collect()
    spark.stop()
    return len({row.receipt for row in found})


async def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--orders", type=int, default=200, help="how many orders")
    args = parser.parse_args()
    payments = Payments()
    app = web.Application()
    app.router.add_post("/charges", payments.charge)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receipts = await asyncio.to_thread(pay, f"http://127.0.0.1:{runner.addresses[0][1]}", args.orders)
    finally:
        await runner.cleanup()
    twice = sum(cents != order for order, cents in payments.charged.items())
    print(f"{payments.requests} requests, {receipts} receipts, {twice} orders charged twice")


if __name__ == "__main__":
    asyncio.run(main())
