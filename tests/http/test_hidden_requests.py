"""How many requests a client makes of one call, by itself: the table on the page about HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anthropic
import botocore.session
import httpx
import openai
import pytest
import redis.asyncio
import requests
from botocore import exceptions
from botocore.config import Config
from google import genai
from google.genai import errors
from google.genai.types import HttpOptions, HttpRetryOptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from yarl import URL

pytestmark = pytest.mark.services

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "http.md"
FAILED = (
    anthropic.APIError,
    openai.APIError,
    errors.APIError,
    exceptions.BotoCoreError,
    exceptions.ClientError,
    redis.RedisError,
    aiohttp.ClientError,
    httpx.HTTPError,
    requests.RequestException,
)
Answer = Literal["503", "drop"]


class Service:
    """Answers the first request of `good` of them, and all later ones with a 503, or by closing the connection."""

    def __init__(self, answer: Answer, good: int = 0) -> None:
        self.requests, self._answer, self._good = 0, answer, good

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readline():
                while (line := await reader.readline()).strip():  # of HTTP, up to its empty line
                    if length := re.match(rb"content-length: (\d+)", line.lower()):
                        self.length = int(length[1])
                await reader.readexactly(self.__dict__.pop("length", 0))
                self.requests += 1
                if self.requests > self._good and self._answer == "drop":
                    break
                status = b"200 OK" if self.requests <= self._good else b"503 Service Unavailable"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nretry-after-ms: 1\r\n\r\n{}")
        finally:
            writer.close()


class RedisService(Service):
    """Closes each connection when it has been greeted."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        self.requests += 1
        writer.close()


async def by_openai(url: str, **options: Any) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=url, **options) as client:
        await client.responses.create(model="m", input="Hei")


async def by_anthropic(url: str, **options: Any) -> None:
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url, **options) as client:
        await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hei"}])


async def by_google(url: str, **options: Any) -> None:
    async with genai.Client(api_key="k", http_options=HttpOptions(base_url=url, **options)).aio as client:
        await client.models.generate_content(model="m", contents="Hei")


def client_of_aws(service: str, url: str, **options: Any) -> Any:
    session = botocore.session.get_session()
    session.set_credentials("key", "secret")
    return session.create_client(service, "eu-north-1", endpoint_url=url, config=Config(**options))


async def by_botocore(url: str, **options: Any) -> None:
    await asyncio.to_thread(lambda: client_of_aws("sqs", url, **options).list_queues())


async def by_dynamodb(url: str, **options: Any) -> None:
    await asyncio.to_thread(lambda: client_of_aws("dynamodb", url, **options).list_tables())


async def by_redis(url: str, **options: Any) -> None:
    async with redis.asyncio.Redis(port=URL(url).port or 0, **options) as client:
        await client.get("key")


async def by_redis_of_a_url(url: str) -> None:
    async with redis.asyncio.Redis.from_url(url.replace("http", "redis")) as client:
        await client.get("key")


async def by_aiohttp_get(url: str, *, repeats: bool = True) -> None:
    """On a connection that was used before: a new one is not tried again."""
    async with aiohttp.ClientSession() as session:
        session._retry_connection = repeats
        for _ in range(2):
            async with session.get(url) as response:
                await response.read()


async def by_aiohttp_post(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(url, data=b"x") as response:
                await response.read()


async def by_httpx(url: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.get(url)


async def by_requests(url: str) -> None:
    await asyncio.to_thread(requests.get, url)


async def requests_of(call: Callable[..., Awaitable[None]], answer: Answer, **options: Any) -> int:
    """How many requests the last call has made."""
    good = int("aiohttp" in call.__name__)
    service = RedisService(answer) if "redis" in call.__name__ else Service(answer, good)
    server = await asyncio.start_server(service, "127.0.0.1", 0)
    async with server:
        with contextlib.suppress(OSError, *FAILED):
            await call(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", **options)
        server.close()
    return service.requests - good


ROWS: list[tuple[str, Callable[..., Awaitable[None]], dict[str, Any]]] = [  # with what the page has to switch it off
    ("openai", by_openai, {"max_retries": 0}),
    ("anthropic", by_anthropic, {"max_retries": 0}),
    ("google-genai", by_google, {"retry_options": HttpRetryOptions(attempts=1)}),
    ("most services", by_botocore, {"retries": {"total_max_attempts": 1}}),
    ("DynamoDB", by_dynamodb, {"retries": {"total_max_attempts": 1}}),
    ("`Redis(...)`", by_redis, {"retry": Retry(NoBackoff(), 0)}),
    ("`Redis.from_url(...)`", by_redis_of_a_url, {}),
    ("a GET", by_aiohttp_get, {"repeats": False}),
    ("a POST", by_aiohttp_post, {}),
    ("httpx", by_httpx, {}),
    ("requests", by_requests, {}),
]


@pytest.mark.parametrize(("answer", "column"), [("503", 1), ("drop", 2)])
@pytest.mark.parametrize(("client", "call", "off"), ROWS, ids=[row[0] for row in ROWS])
async def test_a_client_makes_as_many_requests_as_the_page_says(
    client: str, call: Callable[..., Awaitable[None]], off: dict[str, Any], answer: Answer, column: int
) -> None:
    (row,) = [row for row in PAGE.read_text().splitlines() if re.match(rf"\|[^|]*{re.escape(client)}", row)]
    cell = row.strip("|").split("|")[column].strip()
    if cell:
        assert await requests_of(call, answer) == int(re.match(r"\d+", cell)[0])
        assert not off or await requests_of(call, answer, **off) == 1
