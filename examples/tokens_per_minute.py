"""Share a budget of tokens per minute between two functions that ask the same model.

    python examples/tokens_per_minute.py [--texts 60] [--minute 4]

Model services count tokens, those of the prompt and those of the answer. The `cost` of a limit says how many a call
takes, from its arguments; before the call nobody knows how long the answer will be, so it counts with the longest that
it asks for, as many services do. Both functions have the limit `name="model"`: it is one, over both and all tasks. A
minute lasts four seconds here, so that nobody waits, and the service refuses with a 429 what is too much.
"""

from __future__ import annotations

import asyncio
import time

import _session
import aiohttp
from aiohttp import web

from asyncudf import AsyncStream, RateLimit, RetryStrategy, http

TOKENS = 10_000  # per minute
ANSWER = 50  # tokens of an answer, at most
CHARACTERS = 4  # of a token, about


class Model:
    """A model that refuses what is more than `TOKENS` in a minute."""

    def __init__(self, minute: float) -> None:
        self.minute = minute
        self.answered: list[tuple[float, int]] = []  # when, and the tokens
        self.refused = 0

    async def complete(self, request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        now, tokens = time.monotonic(), len(prompt) // CHARACTERS + ANSWER
        if self.tokens_in(now - self.minute, now) + tokens > TOKENS:
            self.refused += 1
            return web.Response(status=429, headers={"Retry-After": "1"})
        self.answered.append((now, tokens))
        await asyncio.sleep(0.1)
        return web.json_response({"text": prompt[:12]})

    def tokens_in(self, begin: float, end: float) -> int:
        return sum(tokens for when, tokens in self.answered if begin < when <= end)

    def worst_minute(self) -> int:
        return max(self.tokens_in(end - self.minute, end) for end, _ in self.answered)


async def ask(session: aiohttp.ClientSession, prompt: str) -> str:
    async with session.post("/complete", json={"prompt": prompt}) as response:
        await http.raise_for_status(response)
        return (await response.json())["text"]


async def summary(text: str, session: aiohttp.ClientSession) -> str:
    return await ask(session, text)


async def topic(summary: str, session: aiohttp.ClientSession) -> str:
    return await ask(session, summary)


def tokens_of(text: str) -> float:
    return len(text) / CHARACTERS + ANSWER


def read(url: str, texts: int, minute: float) -> int:
    """Summarise some texts and find their topics; returns how many have one."""
    spark = _session.session()
    options = {
        "capacity": 20,
        # With the burst and 2% more it is 9,900 tokens in any minute.
        "rate_limit": RateLimit(0.95 * TOKENS, per=minute, burst=0.02 * TOKENS, cost=tokens_of, name="model"),
        "retry": RetryStrategy.exponential_backoff(5, initial=0.2, maximum=10.0, retry_on=http.is_retryable),
        "resources": http.session(url),
    }
    library = spark.range(0, texts, 1, 2).selectExpr("id", "repeat('a word ', 10 + int(pmod(id, 7)) * 40) AS text")
    with AsyncStream(library).unordered_wait(summary, **options).unordered_wait(topic, **options) as stream:
        found = stream.to_df().where("topic IS NOT NULL").count()
    spark.stop()
    return found


async def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--texts", type=int, default=60, help="how many texts to read")
    parser.add_argument("--minute", type=float, default=4.0, help="how many seconds a minute has")
    args = parser.parse_args()
    model = Model(args.minute)
    app = web.Application()
    app.router.add_post("/complete", model.complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        found = await asyncio.to_thread(read, url, args.texts, args.minute)
    finally:
        await runner.cleanup()
    calls, tokens = len(model.answered), sum(tokens for _, tokens in model.answered)
    seconds = model.answered[-1][0] - model.answered[0][0]
    print(f"{found} texts have a topic: {calls} calls for {tokens} tokens in {seconds:.1f} s")
    print(f"worst minute: {model.worst_minute()} tokens of {TOKENS} allowed; {model.refused} calls were refused")


if __name__ == "__main__":
    asyncio.run(main())
